"""A 24-layer language model of width 4096 on two replicas of four cards each.

Tensor parallel over four cards, data parallel over two: the program whose report has to
be quick, with 4.9e9 parameters, none of them allocated.

Command:
    revremat report experiments/configs/gpt_24.py:problem --target h100:8

Expected: 69.4 GiB on each card, of which 14.0 GiB are state: it fits an 80 GB card with
7 GiB to spare.
"""

from typing import Any

from experiments import step
from experiments.configs.common import ShardingConfig, large_gpt, override
from revremat import Problem

config = large_gpt(
    "gpt_24",
    ShardingConfig(data=2, model=4),
    vocab_size=32_768,
    width=4096,
    num_layers=24,
    num_heads=32,
    mlp_width=16_384,
)


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
