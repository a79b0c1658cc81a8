"""A small language model on the bytes of Python's standard library.

Command:
    python experiments/train.py gpt

Expected: the held-out loss falls from 8 to about 3.4 bits a byte (2.33 nats) in 300
steps, some two minutes on two CPU cores; the report says 206 MiB.
"""

from typing import Any

from experiments import step
from experiments.configs.common import Experiment, override
from experiments.models.gpt import GPTConfig
from revremat import Problem

config = Experiment(name="gpt", model=GPTConfig())


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
