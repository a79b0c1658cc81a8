"""What inverting costs: multiply-accumulates and, on this CPU, time.

    python -m experiments.papers.revbifpn.flops

Counts the convolutions and matrix products of the training step of each RevBiFPN as
traced, inverted and stored. With `--timed S0` that one's steps are timed as well, one
of each in turn: the fastest and the median of each, and of the rounds' ratios. On a
machine that does other things they say little; its load is written beside them.

Expected: 1.27 to 1.30 times the multiply-accumulates of the plain counterpart, to 1.34
where the head is computed again as well.

Writes results/revbifpn-flops.json.
"""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from flax import nnx

from experiments.files import write_whole
from experiments.models.depthwise import use_sums_of_products
from experiments.papers.revbifpn.macs import num_macs
from experiments.papers.revbifpn.networks import (
    HEAD_TOO,
    INVERTED,
    STORED,
    Network,
    network,
    training_step,
)
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
      rounds: Of the timing; a round is one step of each variant, either first in turn.
      depthwise: Depthwise convolutions are XLA's, or sums of products, which a CPU is
        faster at; of the timing.
      out: Folder for the results.
    """

    networks: tuple[str, ...] = tuple(REVBIFPN)
    timed: tuple[str, ...] = ()
    image_size: int = 128
    batch: int = 8
    rounds: int = 10
    depthwise: Literal["xla", "sums"] = "xla"
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
    """Seconds a step of the variants, in turn on this CPU."""
    load_before = os.getloadavg()[0]
    runs, args = {}, ()
    for way in (STORED, INVERTED):
        step = training_step(_prepared(network(name, way), cost), cost.batch)
        # The variants take the same arrays.
        args = jax.tree.map(_filled, step.specs)
        runs[way] = jax.jit(step.function).lower(*args).compile()
        jax.block_until_ready(runs[way](*args))
    seconds: dict[str, list[float]] = {way: [] for way in runs}
    for number in range(cost.rounds):
        for way in sorted(runs, reverse=bool(number % 2)):
            start = time.perf_counter()
            jax.block_until_ready(runs[way](*args))
            seconds[way].append(time.perf_counter() - start)
    return {
        "image_size": cost.image_size,
        "batch": cost.batch,
        "rounds": cost.rounds,
        "depthwise": cost.depthwise,
        "cpus": os.cpu_count(),
        "load": [round(load, 1) for load in (load_before, os.getloadavg()[0])],
        "temp_bytes": {
            way: run.memory_analysis().temp_size_in_bytes for way, run in runs.items()
        },
        **ratios(seconds),
    }


def ratios(seconds: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """Minimum and median of each way's seconds, and what inverting takes of storing."""
    inverted, stored = seconds[INVERTED], seconds[STORED]
    return {
        "seconds": {
            way: {"min": round(min(each), 4), "median": round(median(each), 4)}
            for way, each in seconds.items()
        },
        "ratio": {
            "of_minima": round(min(inverted) / min(stored), 3),
            "median_of_rounds": round(
                median(a / b for a, b in zip(inverted, stored, strict=True)), 3
            ),
        },
    }


def _filled(spec: jax.ShapeDtypeStruct) -> jax.Array:
    """Numbers to compute with; which ones they are costs no time."""
    if jnp.issubdtype(spec.dtype, jax.dtypes.prng_key):
        return jnp.broadcast_to(jax.random.key(0), spec.shape)
    if not jnp.issubdtype(spec.dtype, jnp.floating):
        return jnp.zeros(spec.shape, spec.dtype)
    draws = np.random.default_rng(0).normal(scale=0.1, size=spec.shape)
    return jnp.asarray(draws, spec.dtype)


def _prepared(net: Network, cost: Cost) -> Network:
    """At another size, perhaps with other depthwise convolutions."""

    def make(rngs: nnx.Rngs) -> nnx.Module:
        model = net.make(rngs)
        if cost.depthwise == "sums":
            use_sums_of_products(model)
        return model

    return replace(net, image_size=cost.image_size, make=make)


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
        key = "cpu" if cost.depthwise == "xla" else "cpu, sums of products"
        found.setdefault(name, {})[key] = timed(name, cost)
        write_whole(path, json.dumps(found, indent=1) + "\n")
        print(name, found[name][key], flush=True)


if __name__ == "__main__":
    main()
