"""A language model of GPT-3's shape on eight hosts of eight cards each.

96 layers of width 12288, sequences of 2048 tokens (Korthikanti et al. 2022, table 3),
bfloat16 computation, AdamW in float32; tensor parallel over the cards of a host, the
state sliced over the hosts.

Command:
    revremat search experiments/configs/gpt_175b.py:problem --target h100:8x8 \
        --budget 60GiB --compiles 12

Expected: ten compiles; 59.1 GiB and 3.16 s a step with the products and the attention
of every layer kept, where the baseline takes 150 GiB and keeping nothing
takes 3.59 s.
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
    name="gpt_175b",
    model=GPTConfig(
        vocab_size=51_200,
        seq_len=2048,
        width=12_288,
        num_layers=96,
        num_heads=96,
        mlp_width=49_152,
        bias=False,
        dtype="bfloat16",
    ),
    data=DataConfig(batch_size=8),
    optim=OptimConfig(learning_rate=6e-5, warmup_steps=375),
    train=TrainConfig(num_steps=100_000, save_every=1000, valid_every=1000),
    sharding=ShardingConfig(data=1, fsdp=None, model=8),
)


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
