"""What inverting costs: multiply-accumulates and, on this CPU, time.

    python -m experiments.papers.revbifpn.flops

Counts the convolutions and matrix products of the training step of each RevBiFPN as
traced, inverted and stored. With `--timed S0` that one's steps are timed as well, in
turn, the fastest of each; say nothing about it that this machine was too busy for.

Expected: 1.27 to 1.30 times the multiply-accumulates of the plain twin.

Writes results/revbifpn-flops.json.
"""

import json
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import tyro
from flax import nnx

from experiments.papers.revbifpn.macs import num_macs
from experiments.papers.revbifpn.networks import (
    HEAD_TOO,
    INVERTED,
    STORED,
    Network,
    network,
    training_step,
)
from experiments.records import write_whole
from revremat.reversible import REVBIFPN

RESULTS = Path(__file__).parents[2] / "results"


@dataclass(frozen=True)
class Cost:
    """What to count and what to time.

    Attributes:
      networks: Counted, unless the results have them already.
      timed: Timed too, at `image_size` and `batch`.
      image_size: Of the timing; a multiple of 32.
      batch: Of the timing.
      rounds: Of the timing.
      out: Folder for the results.
    """

    networks: tuple[str, ...] = tuple(REVBIFPN)
    timed: tuple[str, ...] = ()
    image_size: int = 128
    batch: int = 8
    rounds: int = 10
    out: Path = RESULTS


def counted(name: str) -> dict[str, Any]:
    """Multiply-accumulates of one sample's step, by way."""
    macs = {}
    for way in (STORED, INVERTED, HEAD_TOO):
        step = training_step(network(name, way), 1)
        macs[way] = num_macs(step.function, *step.specs)
    ratio = {way: round(macs[way] / macs[STORED], 4) for way in (INVERTED, HEAD_TOO)}
    return {"macs": macs, "ratio": ratio}


def timed(name: str, cost: Cost) -> dict[str, Any]:
    """Seconds a step of the twins, in turn on this CPU; the fastest of each."""
    steps = {}
    for way in (STORED, INVERTED):
        net = _resized(network(name, way), cost.image_size)
        step = training_step(net, cost.batch)
        params, state = nnx.split(net.make(nnx.Rngs(0)), nnx.Param, ...)[1:]
        size = net.image_size
        images = jax.random.normal(jax.random.key(0), (cost.batch, size, size, 3))
        labels = jax.numpy.arange(cost.batch) % 1000
        args = (params, state, images, labels)
        steps[way] = (jax.jit(step.function).lower(*args).compile(), args)
    seconds: dict[str, float] = dict.fromkeys(steps, float("inf"))
    for _ in range(1 + cost.rounds):
        for way, (run, args) in steps.items():
            start = time.perf_counter()
            jax.block_until_ready(run(*args))
            seconds[way] = min(seconds[way], time.perf_counter() - start)
    return {
        "image_size": cost.image_size,
        "batch": cost.batch,
        "rounds": cost.rounds,
        "seconds": {way: round(value, 4) for way, value in seconds.items()},
        "ratio": round(seconds[INVERTED] / seconds[STORED], 3),
        "load": round(os.getloadavg()[0], 1),
    }


def _resized(net: Network, image_size: int) -> Network:
    return replace(net, image_size=image_size)


def main() -> None:
    """Count what is missing, time what is asked, write after each."""
    cost = tyro.cli(Cost, description=__doc__)
    path = cost.out / "revbifpn-flops.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for name in cost.networks:
        if "macs" not in found.get(name, {}):
            found[name] = {**found.get(name, {}), **counted(name)}
            write_whole(path, json.dumps(found, indent=1) + "\n")
        print(name, found[name]["ratio"], flush=True)
    for name in cost.timed:
        found.setdefault(name, {})["cpu"] = timed(name, cost)
        write_whole(path, json.dumps(found, indent=1) + "\n")
        print(name, found[name]["cpu"], flush=True)


if __name__ == "__main__":
    main()
