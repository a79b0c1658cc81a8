"""A language model of Llama 7B's shape (Touvron et al. 2023), 6.7e9 parameters.

Width 4096, 32 layers, sequences of 4096 tokens, bfloat16 computation, AdamW in float32:
what a 7B model takes on eight cards, asked from any machine.

Command:
    revremat report experiments/configs/gpt_7b.py:problem --target h100:8

Expected: 148 GiB on each H100, of which 9.4 GiB are state and 113 GiB attention's:
without rematerialization it fits no card of 141 GiB or less. With `--set seq_len=2048`
it takes 56.3 GiB, with `--set model.attention=cudnn` and 4096 tokens 49.3 GiB.
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
    name="gpt_7b",
    model=GPTConfig(
        vocab_size=32_000,
        seq_len=4096,
        width=4096,
        num_layers=32,
        num_heads=32,
        mlp_width=11_008,
        positions="rotary",
        norm="rms",
        gated=True,
        bias=False,
        tied=False,
        dtype="bfloat16",
    ),
    data=DataConfig(batch_size=8),
    optim=OptimConfig(learning_rate=3e-4, warmup_steps=2000),
    train=TrainConfig(num_steps=100_000, save_every=1000, valid_every=1000),
    sharding=ShardingConfig(data=1, fsdp=None),
)


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
