"""largest: the most of something that still fits, by compiles."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from revremat import xla
from revremat._errors import DoesNotFit, UserError
from revremat._format import parse_bytes
from revremat._measure import measure
from revremat._measurement import Measurement
from revremat._problem import Problem
from revremat.xla import Target

_NEIGHBOURS = 2
_MOST_TRIALS = 60


@dataclass(frozen=True)
class Trial:
    """One size that was compiled.

    Attributes:
      size: What was tried.
      bytes: On each device; None where the compiler itself refused the program.
      fits: Whether that is within the budget.
    """

    size: int
    bytes: int | None
    fits: bool


@dataclass(frozen=True)
class Largest:
    """The largest size that fits, and everything that was compiled to know.

    Attributes:
      size: The largest that fits; 0 where not even the smallest does.
      step: Sizes are multiples of this.
      budget_bytes: What a size had to stay within, on each device.
      trials: What was compiled, by size.
      measurement: Of the largest that fits; None where none does.
      is_cut_short: Whether as many were compiled as are at most, so that a larger one
        may fit.

    Example:
      >>> import revremat as rr
      >>> rr.Largest(64, 8, budget_bytes=2**30, trials=(), measurement=None).size
      64
    """

    size: int
    step: int
    budget_bytes: int
    trials: tuple[Trial, ...]
    measurement: Measurement | None
    is_cut_short: bool = False


def largest(
    make: Callable[[int], Problem],
    *,
    start: int,
    target: str | Target = "local",
    budget: int | str | None = None,
    step: int | None = None,
) -> Largest:
    """The largest size whose step fits a target, by compiles.

    Memory is not monotone: a larger size may take less, because the compiler chooses
    other kernels or another order. So after bisection the two next larger sizes are
    compiled as well, and the search goes on from there if one of them fits. Beyond
    those nothing is promised, and sixty are compiled at most.

    Args:
      make: The problem of a size, such as a batch.
      start: A size to begin with; it need not fit.
      target: Where it would run.
      budget: Bytes on each device: an int, `"60GiB"`, or `"75%"` of what is usable; by
        default all that is usable.
      step: Sizes are multiples of this; by default of the number of devices that the
        arguments' sizes are split over.

    Returns:
      A `Largest`.

    Raises:
      UserError: `start` or `step` is not positive, the size changes nothing, or sizes
        cannot be split as the arguments are.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> def make(n):
      ...     x = jax.ShapeDtypeStruct((n, 256), jnp.float32)
      ...     return rr.Problem(lambda x: jnp.sum(x * x), (x,))
      >>> rr.largest(make, start=8, target="cpu:1", budget="1MiB").size
      511
    """
    wanted = xla.target(target)
    usable = wanted.usable_bytes
    limit = usable if budget is None else parse_bytes(budget, usable_bytes=usable)
    for name, value in (("start", start), ("step", step)):
        if value is not None and value < 1:
            raise UserError(
                f"sizes are positive: {name} is {value}; write 1 or more, such as 8"
            )
    shards = _shards(make, start)
    unit = step or shards
    if unit % shards:
        raise UserError(
            f"sizes are split over {shards} devices and step is {step}, so most cannot "
            f"be: write {math.lcm(unit, shards)}, or leave it away for {shards}"
        )
    found: dict[int, Trial] = {}
    best: tuple[int, Measurement] | None = None
    is_cut_short = False

    def fits(count: int) -> bool:
        nonlocal best, is_cut_short
        if count in found:
            return found[count].fits
        if len(found) >= _MOST_TRIALS:
            is_cut_short = True
            return False
        problem = make(count * unit)
        function, specs = problem.make_step()
        try:
            m = measure(
                function,
                *specs,
                target=wanted,
                donate=problem.donate,
                name=problem.name,
            )
        except DoesNotFit:
            found[count] = Trial(count * unit, None, False)
            return False
        total = m.memory.total_bytes
        found[count] = Trial(count * unit, total, total <= limit)
        if total <= limit and (best is None or count > best[0]):
            best = count, m
        return total <= limit

    low, high = _bracket(fits, max(1, start // unit))
    while high:
        low, high = _bisect(fits, found, low, high, limit)
        beyond = [n for n in range(high + 1, high + 1 + _NEIGHBOURS) if fits(n)]
        if not beyond:
            break
        low, high = _bracket(fits, beyond[-1])
    trials = tuple(found[n] for n in sorted(found))
    size, measurement = (0, None) if best is None else (best[0] * unit, best[1])
    return Largest(size, unit, limit, trials, measurement, is_cut_short)


def _bracket(fits: Callable[[int], bool], count: int) -> tuple[int, int]:
    """A count that fits (0 for none) and a larger one that does not."""
    if fits(count):
        for _ in range(40):
            if not fits(2 * count):
                return count, 2 * count
            count *= 2
        raise UserError(
            f"sizes up to {count} times the step all fit: the size may change nothing"
        )
    while count > 1 and not fits(count // 2):
        count //= 2
    return count // 2, count


def _bisect(
    fits: Callable[[int], bool],
    found: dict[int, Trial],
    low: int,
    high: int,
    limit: int,
) -> tuple[int, int]:
    """Neighbours of which the lower fits; every second guess is a straight line's."""
    straight = True
    while high - low > 1:
        middle = (low + high) // 2
        a, b = (found[n].bytes if n in found else None for n in (low, high))
        if straight and a is not None and b is not None and b > a:
            middle = low + (limit - a) * (high - low) // (b - a)
            middle = min(max(middle, low + 1), high - 1)
        straight = not straight
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


def _shards(make: Callable[[int], Problem], size: int) -> int:
    """Over how many devices the dimensions that grow with the size are split."""
    leaves, doubled = (
        jax.tree.leaves((p.specs, p.make_step()[1]))
        for p in map(make, (size, 2 * size))
    )
    if len(leaves) != len(doubled):  # the size is how many there are of something
        return 1
    unit, grows = 1, False
    for one, two in zip(leaves, doubled, strict=True):
        numbers = zip(np.shape(one), np.shape(two), _splits(one), strict=True)
        for whole, more, number in numbers:
            if more != whole:
                grows, unit = True, math.lcm(unit, number)
    if not grows:
        raise UserError(
            f"twice the size ({2 * size}) changes no argument's shape: it is no size "
            "of the step's"
        )
    return unit


def _splits(leaf: Any) -> tuple[int, ...]:
    """Over how many devices each dimension is split."""
    shape, sharding = np.shape(leaf), getattr(leaf, "sharding", None)
    if sharding is None:
        return (1,) * len(shape)
    # Of a shape that divides, whatever the size.
    whole = tuple(len(sharding.device_set) * max(1, size) for size in shape)
    pieces = zip(whole, sharding.shard_shape(whole), strict=True)
    return tuple(size // piece for size, piece in pieces)
