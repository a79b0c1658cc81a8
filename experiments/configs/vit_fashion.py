"""A small vision transformer on Fashion-MNIST (Xiao et al. 2017).

Command:
    apt-get install dataset-fashion-mnist
    python experiments/train.py vit_fashion

Expected: accuracy about 0.80 on held-out images after 800 steps, some four minutes on
two CPU cores.
"""

from typing import Any

from experiments import step
from experiments.configs.common import Experiment, TrainConfig, override
from experiments.data import DataConfig
from experiments.models.vit import ViTConfig
from revremat import Problem

config = Experiment(
    name="vit_fashion",
    model=ViTConfig(image_size=28, patch_size=4, dropout=0.1),
    data=DataConfig(name="fashion", batch_size=64),
    train=TrainConfig(num_steps=800, valid_every=200, valid_batches=40),
)


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
