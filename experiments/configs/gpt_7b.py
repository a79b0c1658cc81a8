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
from experiments.configs.common import ShardingConfig, large_gpt, override
from revremat import Problem

config = large_gpt(
    "gpt_7b",
    ShardingConfig(data=1, fsdp=None),
    vocab_size=32_000,
    seq_len=4096,
    width=4096,
    num_layers=32,
    num_heads=32,
    mlp_width=11_008,
    positions="rotary",
    norm="rms",
    gated=True,
    tied=False,
)


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
