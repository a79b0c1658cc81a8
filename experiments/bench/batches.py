"""The largest batch: of the baseline, and with searched plans."""

import bisect
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import jax

import revremat as rr

_MOST_LOST = 0.05
FACTORS = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0)
"""Times the batch that fits as the program is written."""


def batch_of(problem: rr.Problem) -> int:
    """The size that most of the data's arrays begin with."""
    leaves = jax.tree.leaves(problem.specs[1:])
    count = Counter(leaf.shape[0] for leaf in leaves if leaf.shape)
    return max(count, key=lambda size: (count[size], size))


def with_batch(problem: rr.Problem, batch: int) -> rr.Problem:
    """The same program on another batch: all data that begin with it."""
    old = batch_of(problem)

    def resized(tree: Any) -> Any:
        change = lambda leaf: (
            jax.ShapeDtypeStruct(
                (batch, *leaf.shape[1:]), leaf.dtype, sharding=leaf.sharding
            )
            if leaf.shape and leaf.shape[0] == old
            else leaf
        )
        return jax.tree.map(change, tree)

    def make_step(loss: Any) -> tuple[Any, tuple[Any, ...]]:
        step, (state, *data) = problem.make_step(loss)
        return step, (state, *resized(data))

    first, *data = problem.specs
    specs = (first, *resized(data))
    return dataclasses.replace(problem, specs=specs, step=make_step)


def largest(
    problem: rr.Problem,
    target: rr.Target,
    *,
    factors: Sequence[float] = FACTORS,
    most_compiles: int | None = None,
    stop: Callable[[], None] = lambda: None,
    unroll: bool = True,
) -> dict[str, Any]:
    """How much larger the batch can be, for JSON.

    Args:
      problem: Data with a batch in front.
      target: Its usable memory is the budget.
      factors: How many times larger the batch may be.
      most_compiles: Of each search.
      stop: Called before each compile.
      unroll: Whether searches may unroll loops.

    Returns:
      The largest batch of the baseline, and what searched plans take at larger ones, by
      bisection between those that fit at no more than 5 % of throughput per sample and
      those that do not.
    """

    def make(size: int) -> rr.Problem:
        stop()
        return with_batch(problem, size)

    plain = rr.largest(make, start=batch_of(problem), target=target)
    found: dict[str, Any] = {
        "program": problem.name,
        "target": target.spec,
        "factors": list(factors),
        "usable_bytes": target.usable_bytes,
        "baseline": {"batch": plain.size},
        "searched": [],
        "factor": 1.0,
    }
    if plain.measurement is None:
        return found
    per_sample_us = plain.measurement.time.step_us / plain.size
    found["baseline"] |= {
        "bytes": plain.measurement.memory.total_bytes,
        "us_per_sample": per_sample_us,
    }
    step = plain.step
    sizes = {math.ceil(f * plain.size / step) * step for f in factors}
    sizes = sorted(size for size in sizes if size > plain.size)

    def holds(size: int) -> bool:
        fit = rr.fit(
            make(size),
            budget=target.usable_bytes,
            target=target,
            most_compiles=most_compiles,
            unroll=unroll,
            progress=lambda *_: stop(),
        )
        us = fit.measurement.time.step_us / size
        found["searched"].append(
            {
                "batch": size,
                "bytes": fit.plan.compiled_bytes,
                "fits": fit.plan.fits,
                "us_per_sample": us,
                "plan": [str(unit) for unit in fit.plan.units],
            }
        )
        return fit.plan.fits and us <= per_sample_us / (1 - _MOST_LOST)

    num_held = bisect.bisect_left(sizes, True, key=lambda size: not holds(size))
    found["searched"].sort(key=lambda one: one["batch"])
    if num_held:
        found["factor"] = sizes[num_held - 1] / plain.size
    return found
