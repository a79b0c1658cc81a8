"""FCOS on RevBiFPN at S0's width: digits of many sizes on a canvas, reversible.

Command:
    python -m experiments.papers.revbifpn.detection

It trains this config (`python experiments/train.py fcos_digits` does only that) and
reads the average precision off 256 scenes made of digits it has never seen.

Expected: AP of at least 0.50; the run on record has 0.62 (AP50 0.82, AP75 0.75) after
1200 steps, ten minutes on one CPU core after three of compiling.
"""

from typing import Any

from experiments import step
from experiments.configs.common import Experiment, OptimConfig, TrainConfig, override
from experiments.data import DataConfig
from experiments.models.fcos import FCOSConfig
from revremat import Problem

EXPECTED_AP = 0.5

config = Experiment(
    name="fcos_digits",
    model=FCOSConfig(),
    data=DataConfig(name="scenes", batch_size=16),
    optim=OptimConfig(
        learning_rate=3e-3, warmup_steps=50, weight_decay=0.02, b2=0.99, clip_norm=5.0
    ),
    train=TrainConfig(
        num_steps=1200, valid_every=400, valid_batches=16, save_every=200
    ),
)


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
