"""Segments: parts of a program without equal layers, cut where little is passed on.

A program's operations are cut in two where the least of what is made before is used
after, then the larger part again, and so on (Chen et al., 2016, cut a chain so). Values
that pass over a whole part, as a U-Net's skips do, count for no cut within it: they are
there anyway. The first few cuts make groups, all of them make segments. A cut has to
give something back: where most of what is kept before it is passed on, or more than is
kept after it, both parts are better computed again together.
"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from revremat._primitives import MOVES
from revremat.program.ir._costs import num_bytes
from revremat.program.ir._ops import Constant, Op
from revremat.program.units._stretch import Stretch, made_by

_MOST_SEGMENTS = 24
"""Of one stretch: a search chooses among a few actions for each."""
_FEWEST_SEGMENTS = 4
"""With fewer there is next to nothing to choose that the whole has not."""
_FEWEST_OPS = 8
"""Of a segment without a product, where no operation is one."""
_LEAST_PART = 1 / 64
"""Of what a stretch makes, by a segment."""
_MIDDLE = 0.2
"""Of what a part makes: as much at least lies before a cut and after it."""

Part = tuple[int, int]
"""From which operation of a stretch on, up to which."""
Allowed = Callable[[int, int, int, float], bool]
"""Whether to cut a part: where it begins, the place, where it ends; bytes passed on."""
_SUMS = {"add", "add_any", "sub", "neg"}
_SCALES = {"mul", "div"}
"""By a number, whose derivative needs the number alone."""


def find_segments(stretch: Stretch) -> list[list[Part]]:
    """The segments of a stretch of operations in groups, in program order.

    Args:
      stretch: Where.

    Returns:
      Parts that follow one another from the first operation to the last; nothing where
      they would be too few.
    """
    kept = np.cumsum([0, *map(_kept_of, stretch.ops)])

    def gives_back(begin: int, place: int, end: int, passed_on: float) -> bool:
        before, after = kept[place] - kept[begin], kept[end] - kept[place]
        return bool(2 * passed_on <= before and passed_on <= after)

    steps = _cuts(stretch, gives_back)
    if len(steps) < _FEWEST_SEGMENTS:
        steps = _cuts(stretch, lambda begin, place, end, passed_on: True)
    parts = steps[-1]
    if len(parts) < _FEWEST_SEGMENTS:
        return []
    groups = steps[math.isqrt(len(parts) - 1)]
    return [[part for part in parts if begin <= part[0] < end] for begin, end in groups]


def _kept_of(op: Op) -> int:
    """Bytes that an operation makes, unless no derivative needs them for its sake."""
    is_scaled = op.kind in _SCALES and any(isinstance(a, Constant) for a in op.inputs)
    return 0 if is_scaled or op.kind in MOVES | _SUMS else made_by(op)


def _cuts(stretch: Stretch, allowed: Allowed) -> list[list[Part]]:
    """One part, then two, and so on, each time with the largest one cut in two."""
    parts = [(0, len(stretch))]
    whole: set[Part] = set()
    steps = [parts]
    while len(parts) < _MOST_SEGMENTS:
        waiting = [part for part in parts if part not in whole]
        if not waiting:
            break
        largest = max(waiting, key=lambda part: _made(stretch, part))
        place = _narrowest(stretch, *largest, allowed)
        if place is None:
            whole.add(largest)
            continue
        k = parts.index(largest)
        begin, end = largest
        parts = [*parts[:k], (begin, place), (place, end), *parts[k + 1 :]]
        steps.append(parts)
    return steps


def _made(stretch: Stretch, part: Part) -> float:
    begin, end = part
    return float(stretch.made[end] - stretch.made[begin])


def _narrowest(stretch: Stretch, begin: int, end: int, allowed: Allowed) -> int | None:
    """The operation before which the least is passed on within a part."""
    made = stretch.made[begin : end + 1] - stretch.made[begin]
    crossing = _crossing(stretch, begin, end)
    options = []
    for k in range(1, end - begin):
        if not (
            _is_enough(stretch, begin, begin + k)
            and _is_enough(stretch, begin + k, end)
        ):
            continue
        if not allowed(begin, begin + k, end, float(crossing[k])):
            continue
        share = float(made[k] / made[-1])
        is_central = _MIDDLE <= share <= 1 - _MIDDLE
        is_product = stretch.heavy[begin + k + 1] > stretch.heavy[begin + k]
        options.append(
            (
                not is_central,
                float(crossing[k]),
                not is_product,
                abs(share - 1 / 2),
                begin + k,
            )
        )
    return min(options)[-1] if options else None


def _is_enough(stretch: Stretch, begin: int, end: int) -> bool:
    """Whether operations make a segment."""
    heavy, made = stretch.heavy, _made(stretch, (begin, end))
    has_product = bool(heavy[end] > heavy[begin])
    is_long = not heavy[-1] and end - begin >= _FEWEST_OPS
    return (has_product or is_long) and made >= _LEAST_PART * float(stretch.made[-1])


def _crossing(stretch: Stretch, begin: int, end: int) -> Float[np.ndarray, " _"]:
    """Bytes made in a part before each of its operations and used last in it later."""
    steps = np.zeros(end - begin + 2)
    for k, op in enumerate(stretch.ops[begin:end]):
        for out in op.outputs:
            last = stretch.last_use.get(out, -1)
            if last < end and last > begin + k:
                steps[k + 1] += num_bytes(out.aval)
                steps[last - begin + 1] -= num_bytes(out.aval)
    return np.cumsum(steps)
