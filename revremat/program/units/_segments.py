"""Segments: parts of a program without equal layers, cut where little is passed on.

A program's operations are cut in two where the least of what is made before is used
after, then the larger part again, and so on (Chen et al., 2016, cut a chain so). Values
that pass over a whole part, as a U-Net's skips do, count for no cut within it: they are
there anyway. The first few cuts make groups, all of them make segments. A cut has to
give something back: where most of what is kept before it is passed on, or more than is
kept after it, both parts are better computed again together.
"""

from collections.abc import Callable, Iterable
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from revremat._primitives import EXACT, KEEPS_RESULT, MOVES, is_intensive
from revremat.program.ir._costs import num_bytes
from revremat.program.ir._ops import Constant, Op, Value, as_closed, flatten
from revremat.program.units._segment_groups import Part, in_groups
from revremat.program.units._stretch import Stretch, used_by

_MOST_SEGMENTS = 24
"""Of one stretch: a search chooses among a few actions for each."""
_FEWEST_SEGMENTS = 3
"""With fewer there is next to nothing to choose that the whole has not."""
_FEWEST_OPS = 8
"""Of a segment without a product, where no operation is one."""
_LEAST_PART = 1 / 64
"""Of what a stretch makes, by a segment."""
_ABOUT_AS_NARROW = 1.3
"""How much wider than the narrowest a cut before a product may be."""

Allowed = Callable[[int, int, int, float], bool]
"""Whether to cut a part: where it begins, the place, where it ends; bytes passed on."""
_SUMS = {"add", "add_any", "sub", "neg"}
_SCALES = {"mul", "div"}
"""By a number, whose derivative needs the number alone."""


def find_segments(stretch: Stretch, at_any_place: bool = True) -> list[list[Part]]:
    """The segments of a stretch of operations in groups, in program order.

    Args:
      stretch: Where.
      at_any_place: Whether a cut that gives nothing back is better than too few of
        them, because there is nothing else to decide.

    Returns:
      Parts that follow one another from the first operation to the last; nothing where
      they would be too few.
    """
    kept = np.cumsum([0, *(_there_of(stretch, op) for op in stretch.ops)])

    def gives_back(begin: int, place: int, end: int, passed_on: float) -> bool:
        before, after = kept[place] - kept[begin], kept[end] - kept[place]
        return bool(2 * passed_on <= before and passed_on <= after)

    cuts = _cuts(stretch, gives_back)
    if at_any_place and len(cuts) + 1 < _FEWEST_SEGMENTS:
        cuts = _cuts(stretch, lambda begin, place, end, passed_on: True)
    if len(cuts) + 1 < _FEWEST_SEGMENTS:
        return []
    there = np.cumsum([0, *(_there_of(stretch, op) for op in stretch.ops)])
    needed = lambda begin, end: float(there[end] - there[begin])
    return in_groups(stretch, _parts(len(stretch), cuts), needed)


def _parts(length: int, cuts: Iterable[int]) -> list[Part]:
    return list(pairwise((0, *sorted(cuts), length)))


def _kept_of(stretch: Stretch, op: Op) -> int:
    """Bytes of an operation's results that a backward pass needs.

    Those are its own, or what the operations that take them are differentiated by.
    """
    keeps = op.kind in KEEPS_RESULT or _selects(op)
    return sum(
        num_bytes(out.aval)
        for out in op.outputs
        if keeps or any(map(_needs_what_it_takes, stretch.users.get(out, ())))
    )


def _there_of(stretch: Stretch, op: Op) -> int:
    """Bytes of what a backward pass needs that are there while that runs.

    Between products, what is cheap is computed as part of what uses it, and never
    there as a whole.
    """
    if not stretch.heavy[-1] or is_intensive(op.kind):
        return _kept_of(stretch, op)
    users = (stretch.users.get(out, ()) for out in op.outputs)
    if any(is_intensive(user.kind) for few in users for user in few):
        return _kept_of(stretch, op)
    return 0


def _needs_what_it_takes(op: Op) -> bool:
    """Whether the derivative of an operation is told by what it takes."""
    is_scaled = op.kind in _SCALES and any(isinstance(a, Constant) for a in op.inputs)
    is_linear = is_scaled or op.kind in MOVES | _SUMS
    return not is_linear and op.kind not in KEEPS_RESULT and not _selects(op)


def _selects(op: Op) -> bool:
    """Whether it gives entries of what it takes, and its result says which, as relu."""
    if not op.kind.startswith("custom_jvp_call"):
        return False
    inside = flatten(as_closed(op.eqn.params["call_jaxpr"])).ops
    return all(one.kind in EXACT for one in inside)


def _cuts(stretch: Stretch, allowed: Allowed) -> dict[int, float]:
    """Places of cuts with their widths: each time the largest part is cut in two."""
    cuts: dict[int, float] = {}
    whole: set[Part] = set()
    while len(cuts) + 1 < _MOST_SEGMENTS:
        waiting = [p for p in _parts(len(stretch), cuts) if p not in whole]
        if not waiting:
            break
        largest = max(waiting, key=lambda part: _made(stretch, part))
        found = _narrowest(stretch, *largest, allowed)
        if found is None:
            whole.add(largest)
        else:
            place, cuts[place] = found
    return cuts


def _made(stretch: Stretch, part: Part) -> float:
    begin, end = part
    return float(stretch.made[end] - stretch.made[begin])


def _narrowest(
    stretch: Stretch, begin: int, end: int, allowed: Allowed
) -> tuple[int, float] | None:
    """The operation before which least is passed on, of what the smaller half makes.

    A cut near an end gives little back, however little is passed on there. What comes
    from elsewhere counts as well where both halves use it: mostly, a block ends after
    that. Of places that are about as narrow the one with fewest bytes is taken, and
    best before a product.
    """
    made = stretch.made[begin : end + 1] - stretch.made[begin]
    crossing, beside = _crossing(stretch, begin, end), _shared(stretch, begin, end)
    options = []
    for k in range(1, end - begin):
        if not (
            _is_enough(stretch, begin, begin + k)
            and _is_enough(stretch, begin + k, end)
        ):
            continue
        if not allowed(begin, begin + k, end, float(crossing[k])):
            continue
        smaller = float(min(made[k], made[-1] - made[k]))
        is_product = stretch.heavy[begin + k + 1] > stretch.heavy[begin + k]
        passed_on = float(crossing[k] + beside[k])
        options.append((passed_on, not is_product, passed_on / smaller, begin + k))
    least = min((width for *_, width, _ in options), default=0.0)
    narrow = [one for one in options if one[2] <= _ABOUT_AS_NARROW * least]
    *_, width, place = min(narrow, default=(0.0, None))
    return None if place is None else (place, width)


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


def _shared(stretch: Stretch, begin: int, end: int) -> Float[np.ndarray, " _"]:
    """Bytes made elsewhere that a part uses before each of its operations and later."""
    uses: dict[Value, tuple[int, int]] = {}
    for k, op in enumerate(stretch.ops[begin:end]):
        for value in used_by([op]):
            first, _ = uses.get(value, (k, k))
            uses[value] = first, k
    made = {out for op in stretch.ops[begin:end] for out in op.outputs}
    steps = np.zeros(end - begin + 2)
    for value, (first, last) in uses.items():
        if value not in made:
            steps[first + 1] += num_bytes(value.aval)
            steps[last + 1] -= num_bytes(value.aval)
    return np.cumsum(steps)
