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
from experiments.configs.common import (
    Experiment,
    OptimConfig,
    ShardingConfig,
    TrainConfig,
    override,
)
from experiments.data import DataConfig
from experiments.models.gpt import GPTConfig
from revremat import Problem

config = Experiment(
    name="gpt_24",
    model=GPTConfig(
        vocab_size=32_768,
        seq_len=2048,
        width=4096,
        num_layers=24,
        num_heads=32,
        mlp_width=16_384,
        bias=False,
        dtype="bfloat16",
    ),
    data=DataConfig(batch_size=8),
    optim=OptimConfig(learning_rate=3e-4, warmup_steps=2000),
    train=TrainConfig(num_steps=100_000, save_every=1000, valid_every=1000),
    sharding=ShardingConfig(data=2, model=4),
)


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
