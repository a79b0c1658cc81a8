"""RevBiFPN at S0's width on Fashion-MNIST, reversible.

Command:
    apt-get install dataset-fashion-mnist
    python experiments/train.py revbifpn_fashion

`--model.reversible False` trains its plain counterpart; `python -m
experiments.papers.revbifpn.accuracy` compares the two over three seeds.

Expected: accuracy about 0.82 on held-out images after 200 steps: a minute or two of
training on two CPU cores, after some minutes of compiling.
"""

from typing import Any

from experiments import step
from experiments.configs.common import Experiment, OptimConfig, TrainConfig, override
from experiments.data import DataConfig
from experiments.models.revbifpn import RevBiFPNClassifierConfig
from revremat import Problem

config = Experiment(
    name="revbifpn_fashion",
    model=RevBiFPNClassifierConfig(),
    data=DataConfig(name="fashion", batch_size=64),
    optim=OptimConfig(learning_rate=3e-3, warmup_steps=20, weight_decay=0.02, b2=0.99),
    train=TrainConfig(num_steps=200, valid_every=200, valid_batches=48),
)


def problem(target: Any, **overrides: Any) -> Problem:
    """This experiment's training step on a target, for `revremat report`."""
    return step.problem(override(config, overrides), target)
