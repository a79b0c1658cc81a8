"""Unrolled loops found again: the same computation, several times in a row.

The operations of a program are compared as tokens (what they do, on which shapes); the
longest stretch that equals itself shifted by some period is a loop, if the values flow
in the same way in every iteration. Turns are layers if they have a product of matrices,
or if they make a good part of what the program makes. Where in the period an iteration
begins is chosen so that the least is carried from iteration to iteration, which for a
residual network is the residual stream.

A few passes through a network of many layers, as a loss of pairs has them, are
no layers: those of each pass are, and equal ones are one unit in the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from revremat.program.ir._costs import num_bytes
from revremat.program.ir._ops import Atom, Constant, Op, Program, Value, is_scalar
from revremat.program.units._runs import Runs, find_runs
from revremat.program.units._stretch import Stretch, used_by

MOST_OPS = 100_000
_FEWEST_LIGHT_ITERATIONS = 3
_LEAST_PART = 0.25
_MOST_PASSES = 4
_MOST_LOOP = 0.5
"""Of what a pass makes, by a loop within it."""
_LACKING = 0.1
"""Of two: what the first layer reads may need no operation that others have."""


@dataclass(frozen=True, eq=False)
class Iteration:
    """One iteration of an unrolled loop: its operations, and what goes in and out."""

    ops: tuple[Op, ...]
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """An unrolled loop: the body of all iterations, and the iterations.

    Attributes:
      body: What every iteration computes.
      iterations: Where it does.
      module: What the user's library calls it, if it is one of a network's modules.
    """

    body: Program
    iterations: tuple[Iteration, ...]
    module: str = ""


def find_repeats(
    stretch: Stretch, made_bytes: float, begin: int = 0, end: int | None = None
) -> list[Repeat]:
    """The unrolled loops in a stretch of operations, in program order.

    Args:
      stretch: Where.
      made_bytes: Of all that the program makes.
      begin: From which operation on.
      end: Up to which one; by default to the end.
    """
    if len(stretch) > MOST_OPS:
        return []
    least_bytes = _LEAST_PART * made_bytes
    found: list[tuple[int, Repeat]] = []
    pieces = [_Piece(stretch, begin, len(stretch) if end is None else end)]
    while pieces:
        piece = pieces.pop()
        best = piece.longest_loop(least_bytes)
        if best is None:
            continue
        loop = _within_passes(piece, best, least_bytes) or best
        repeat, first, last = _best_rotation(stretch, loop)
        if repeat is not None:
            found.append((first, repeat))
        pieces += [piece.part(piece.begin, first), piece.part(last, piece.end)]
    return [repeat for _, repeat in sorted(found, key=lambda one: one[0])]


def find_loop(stretch: Stretch, least_bytes: float, most_period: int) -> Repeat | None:
    """The longest loop of a stretch, by what is said of its operations.

    Its body is the first iteration's, which speaks for all only if no more can be said.
    """
    best = longest_loop(stretch, 0, len(stretch), least_bytes, most_period)
    return best and _best_rotation(stretch, best)[0]


class Loop(NamedTuple):
    """Where operations repeat themselves: `length` ones from `start` on."""

    start: int
    period: int
    length: int


@dataclass(frozen=True, eq=False)
class _Piece:
    """A part of a stretch, with the runs in it."""

    stretch: Stretch
    begin: int
    end: int
    around: Runs | None = None

    def part(self, begin: int, end: int) -> "_Piece":
        """A part of the piece."""
        return _Piece(self.stretch, begin, end, self.runs)

    @cached_property
    def runs(self) -> Runs:
        around = self.around or self.stretch.runs
        return around.within(self.begin, self.end)

    def longest_loop(
        self, least_bytes: float, most_period: int = MOST_OPS
    ) -> Loop | None:
        """The loop over most operations."""
        return _longest(self.stretch, self.runs, least_bytes, most_period)


def longest_loop(
    stretch: Stretch, begin: int, end: int, least_bytes: float, most_period: int
) -> Loop | None:
    """The part between two places that repeats over most operations.

    Args:
      stretch: Where.
      begin: From which operation on.
      end: Up to which one.
      least_bytes: What it has to make without a product of matrices.
      most_period: Operations of an iteration.
    """
    return _Piece(stretch, begin, end).longest_loop(least_bytes, most_period)


def _longest(
    stretch: Stretch, runs: Runs, least_bytes: float, most_period: int
) -> Loop | None:
    starts, periods = runs.starts, runs.periods
    iterations = runs.matched // periods + 1
    stops = starts + runs.matched + periods
    enough = iterations >= _FEWEST_LIGHT_ITERATIONS
    enough &= stretch.made[stops] - stretch.made[starts] >= least_bytes
    enough |= stretch.heavy[starts + periods] > stretch.heavy[starts]
    enough &= periods <= most_period
    if not enough.any():
        return None
    # Of those that cover as much, the one with the shortest iterations, then the first.
    best = int(np.argmax(np.where(enough, iterations * periods, 0)))
    start, period = int(starts[best]), int(periods[best])
    return Loop(start, period, int(stops[best]) - start)


def _within_passes(piece: _Piece, best: Loop, least_bytes: float) -> Loop | None:
    """The longest loop within passes through a network, if these are iterations."""
    start, period, length = best
    if (passes := length // period) > _MOST_PASSES:
        return None
    one = piece.part(start, start + period)
    inner = one.longest_loop(0.0)
    if inner is None or loop_part(piece.stretch, one.begin, one.end) <= _MOST_LOOP:
        return None
    _, layer, covered = _within_passes(one, inner, 0.0) or inner
    if covered // layer <= max(2, passes):
        return None
    return piece.longest_loop(least_bytes, layer)


def loop_part(stretch: Stretch, begin: int, end: int) -> float:
    """Of what a part of a stretch makes, the part by its longest unrolled loop."""
    found = find_runs(stretch.tokens[begin:end], end - begin, _LACKING)
    runs = replace(found, starts=found.starts + begin)
    best = _longest(stretch, runs, 0.0, end - begin)
    if best is None:
        return 0.0
    made = stretch.made
    covered = made[best.start + best.length] - made[best.start]
    return float(covered / (made[end] - made[begin]))


def _best_rotation(stretch: Stretch, loop: Loop) -> tuple[Repeat | None, int, int]:
    """The loop whose iterations hand the least on, and the operations it covers."""
    start, period, length = loop
    flows = _same_rotations(stretch, loop)
    options = []
    for offset, cost in enumerate(_carried_bytes(stretch, loop)):
        begin, count = start + offset, (length - offset) // period
        if count >= 2 and flows[offset]:
            options.append((cost, -count, begin))
    for _, count, begin in sorted(options):
        end = begin - count * period
        iterations = [stretch.ops[k : k + period] for k in range(begin, end, period)]
        repeat = same_flow(iterations, stretch.leaving(stretch.ops[begin:end]))
        if repeat is not None:
            return repeat, begin, end
    return None, start, start + length


def _carried_bytes(stretch: Stretch, loop: Loop) -> list[int]:
    """Bytes that the first iteration carries, for each operation it may begin with."""
    start, period, _ = loop
    steps = [0] * (period + 1)
    for k in range(start, start + 2 * period - 1):
        for out in stretch.ops[k].outputs:
            used = stretch.last_use.get(out, -1)
            if used >= len(stretch):
                used = k + period
            # The iteration begins at the maker or before, ends after it and before the
            # use.
            first, last = max(start, k - period + 1), min(k, used - period)
            last = min(last, start + period - 1)
            if first <= last:
                steps[first - start] += num_bytes(out.aval)
                steps[last + 1 - start] -= num_bytes(out.aval)
    return list(accumulate(steps[:-1]))


def _same_rotations(stretch: Stretch, loop: Loop) -> Bool[np.ndarray, " _"]:
    """With which operations iterations may begin so that values flow alike in all.

    Where a value comes from only has to be the same if it is made in the iteration: the
    later in its iteration an operation stands, the more of what it takes is.
    """
    start, period, length = loop
    steps = np.zeros(period + 1, np.int64)

    def rule_out(first: int, last: int) -> None:
        if first <= last:
            steps[first] += 1
            steps[last + 1] -= 1

    for k in range(start, start + length - period):
        pairs = zip(stretch.ops[k].inputs, stretch.ops[k + period].inputs, strict=True)
        for pair in pairs:
            one, other = (
                stretch.maker.get(a) if isinstance(a, Value) else None for a in pair
            )
            if one == other:
                nearest = period if one is None else k - one[0]
            elif one and other and (one[0] + period, one[1]) == other:
                continue
            else:
                places = [(k, one), (k + period, other)]
                nearest = min(at - made[0] for at, made in places if made)
            # The iteration of the second one has to be whole for it to count.
            least = max(nearest, k + 2 * period - start - length)
            if k < start + period:  # iterations begin at or before the first one
                rule_out(0, k - least - start)
            elif least < period:
                first = (k - period + 1 - start) % period
                last = first + period - least - 1
                rule_out(first, min(last, period - 1))
                rule_out(0, last - period)
    return np.cumsum(steps[:-1]) == 0


def same_flow(iterations: Sequence[Sequence[Op]], leaving: set[Value]) -> Repeat | None:
    """The loop, if values flow in the same way in every iteration; None otherwise.

    Args:
      iterations: The operations of each.
      leaving: What all others use of what they make.
    """
    made = [
        {out: (k, j) for k, op in enumerate(ops) for j, out in enumerate(op.outputs)}
        for ops in iterations
    ]
    slots: dict[tuple[int, ...], tuple[Value, tuple[Atom, ...]]] = {}
    env: dict[tuple[int, int], Value] = {}
    body = []
    for k, row in enumerate(zip(*iterations, strict=True)):
        inputs: list[Atom] = []
        for atoms in zip(*(op.inputs for op in row), strict=True):
            places = {
                inside.get(atom) for atom, inside in zip(atoms, made, strict=True)
            }
            if len(places) != 1:
                return None
            (place,) = places
            if place is not None:
                inputs.append(env[place])
            elif equal_numbers(atoms):
                inputs.append(atoms[0])
            else:
                key = tuple(map(id, atoms))
                inputs.append(slots.setdefault(key, (Value(atoms[0].aval), atoms))[0])
        op = row[0]
        outputs = tuple(Value(out.aval) for out in op.outputs)
        env.update({(k, j): out for j, out in enumerate(outputs)})
        body.append(Op(op.eqn, tuple(inputs), outputs, op.scope))
    last_iteration = {a: n for n, ops in enumerate(iterations) for a in used_by(ops)}
    places = sorted(
        {
            place
            for n, inside in enumerate(made)
            for value, place in inside.items()
            if value in leaving or last_iteration.get(value, n) > n
        }
    )
    program = Program(
        inputs=tuple(value for value, _ in slots.values()),
        ops=tuple(body),
        outputs=tuple(env[place] for place in places),
    )
    return Repeat(
        body=program,
        iterations=tuple(
            Iteration(
                ops=tuple(ops),
                inputs=tuple(atoms[n] for _, atoms in slots.values()),
                outputs=tuple(ops[k].outputs[j] for k, j in places),
            )
            for n, ops in enumerate(iterations)
        ),
    )


def equal_numbers(atoms: Sequence[Atom]) -> bool:
    """Whether all of them are the same plain number."""
    if not all(isinstance(a, Constant) and is_scalar(a) for a in atoms):
        return False
    values = [np.asarray(a.value) for a in atoms]  # type: ignore[union-attr]
    # By their bits: -0.0 == 0.0, and layers that have one of each differ.
    return len({(v.dtype, v.tobytes()) for v in values}) == 1
