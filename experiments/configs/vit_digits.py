"""A small vision transformer on scikit-learn's 8 x 8 digits.

Command:
    python experiments/train.py vit_digits

Expected: accuracy about 0.88 on 256 held-out digits after 400 steps, half a minute on
two CPU cores.
"""

from typing import Any

from experiments import step
from experiments.configs.common import Experiment, TrainConfig, override
from experiments.data import DataConfig
from experiments.models.vit import ViTConfig
from revremat import Problem

config = Experiment(
    name="vit_digits",
    model=ViTConfig(dropout=0.1),
    data=DataConfig(name="digits", batch_size=64),
    train=TrainConfig(num_steps=400, valid_batches=4),
)


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
