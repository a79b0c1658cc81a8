"""Unrolled loops found again: the same computation, several times in a row.

The operations of a program are compared as tokens (what they do, on which shapes); the
longest stretch that equals itself shifted by some period is a loop, if the values flow
in the same way in every turn. Turns are layers if they have a product of matrices, or
if they make a good part of what the program makes. Where in the period a turn begins is
chosen so that the least is handed from turn to turn, which for a residual network is
the residual stream.

A few passes through a network of many layers, as a loss of pairs has them, are
no layers: those of each pass are, and equal ones are one unit in the end.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from revremat.program._costs import num_bytes
from revremat.program._fingerprint import describe_op
from revremat.program._keep import MATMULS
from revremat.program._ops import (
    Atom,
    Constant,
    Op,
    Program,
    Value,
    as_closed,
    flatten,
    is_scalar,
)

MOST_OPS = 20_000
_FEWEST_LIGHT_TURNS = 3
_LEAST_PART = 0.25
_MOST_PASSES = 4
_MOST_LOOP = 0.5
"""Of what a pass makes, by a loop within it."""
_LACKING = 0.1
"""Of two turns: what the first layer reads may need no operation that others have."""


@dataclass(frozen=True, eq=False)
class Turn:
    """One turn of an unrolled loop: its operations, and what goes in and out."""

    ops: tuple[Op, ...]
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """An unrolled loop: the body of all turns, and the turns.

    Attributes:
      body: What every turn computes.
      turns: Where it does.
      module: What the user's library calls it, if it is one of a network's modules.
    """

    body: Program
    turns: tuple[Turn, ...]
    module: str = ""


def find_repeats(
    ops: Sequence[Op], used_after: set[Value], made_bytes: float
) -> list[Repeat]:
    """The unrolled loops in a stretch of operations, in program order.

    Args:
      ops: A stretch without scans, blocks and checkpoints.
      used_after: What the rest of the program uses.
      made_bytes: Of all that the program makes.
    """
    if len(ops) > MOST_OPS:
        return []
    best = longest_loop(ops, least := _LEAST_PART * made_bytes)
    if best is None:
        return []
    start, period, length = _within_passes(ops, best, least) or best
    repeat, begin, end = _best_rotation(ops, start, period, length, used_after)
    before = find_repeats(ops[:begin], used_after | used_by(ops[begin:]), made_bytes)
    after = find_repeats(ops[end:], used_after, made_bytes)
    return [*before, *([] if repeat is None else [repeat]), *after]


def find_loop(
    ops: Sequence[Op],
    used_after: set[Value],
    least_bytes: float,
    most_period: int,
    describe: Callable[[Op], str],
) -> Repeat | None:
    """The longest loop of a stretch, by what is said of its operations.

    Its body is the first turn's, which speaks for all only if no more can be said.
    """
    best = longest_loop(ops, least_bytes, most_period, describe=describe)
    return best and _best_rotation(ops, *best, used_after)[0]


def _within_passes(
    ops: Sequence[Op], best: tuple[int, int, int], least_bytes: float
) -> tuple[int, int, int] | None:
    """The longest loop within passes through a network, if turns are such passes."""
    start, period, length = best
    if (passes := length // period) > _MOST_PASSES:
        return None
    one = ops[start : start + period]
    inner = longest_loop(one, 0.0)
    if inner is None or loop_part(one) <= _MOST_LOOP:
        return None
    _, layer, covered = _within_passes(one, inner, 0.0) or inner
    if covered // layer <= max(2, passes):
        return None
    return longest_loop(ops, least_bytes, layer)


def loop_part(ops: Sequence[Op]) -> float:
    """Of what a stretch makes, the part by its longest unrolled loop."""
    best = longest_loop(ops, 0.0, lacking=_LACKING)
    if best is None:
        return 0.0
    start, _, length = best
    return sum(map(made_by, ops[start : start + length])) / sum(map(made_by, ops))


def used_by(ops: Iterable[Op]) -> set[Value]:
    """What operations take."""
    return {atom for op in ops for atom in op.inputs if isinstance(atom, Value)}


def made_by(op: Op) -> int:
    """Bytes that an operation makes."""
    return sum(num_bytes(out.aval) for out in op.outputs)


def passed_on(ops: Sequence[Op], used_after: set[Value]) -> np.ndarray:
    """Bytes made before each operation and used there or later."""
    last_use = {a: k for k, op in enumerate(ops) for a in op.inputs}
    steps = np.zeros(len(ops) + 2)
    for k, op in enumerate(ops):
        for out in op.outputs:
            until = len(ops) if out in used_after else last_use.get(out, k)
            steps[k + 1] += num_bytes(out.aval)
            steps[until + 1] -= num_bytes(out.aval)
    return np.cumsum(steps)


def tokens_of(
    ops: Sequence[Op], describe: Callable[[Op], str] = describe_op
) -> np.ndarray:
    """Operations as numbers, the same ones for what does the same."""
    numbers: dict[str, int] = {}
    listed = [numbers.setdefault(describe(op), len(numbers)) for op in ops]
    return np.array(listed, dtype=np.int64)


def longest_loop(
    ops: Sequence[Op],
    least_bytes: float,
    most_period: int = MOST_OPS,
    lacking: float = 0.0,
    describe: Callable[[Op], str] = describe_op,
) -> tuple[int, int, int] | None:
    """Start, period and length of the stretch that repeats over most operations.

    Args:
      ops: Where.
      least_bytes: What it has to make without a product of matrices.
      most_period: Operations of a turn.
      lacking: Part of a turn that the last one may be short of.
      describe: Operations of which it says the same are equal.
    """
    tokens = tokens_of(ops, describe)
    heavy = np.array([is_heavy(op) for op in ops], dtype=bool)
    made = np.cumsum([0, *map(made_by, ops)])
    best, best_covered = None, 0
    longest = int(len(ops) / (2 - lacking))
    for period in range(1, min(longest, most_period) + 1):
        same = tokens[period:] == tokens[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate(([False], same, [False]))))
        for start, stop in zip(edges[::2], edges[1::2], strict=True):
            matched = int(stop - start)
            covered = (matched // period + 1) * period
            if matched < (1 - lacking) * period or covered <= best_covered:
                continue
            enough = covered >= _FEWEST_LIGHT_TURNS * period and (
                made[stop + period] - made[start] >= least_bytes
            )
            if enough or heavy[start : start + period].any():
                best, best_covered = (int(start), period, matched + period), covered
    return best


def is_heavy(op: Op) -> bool:
    """Whether it is a product, or a branch or a call with one inside."""
    if op.kind.startswith(MATMULS):
        return True
    inside = (flatten(as_closed(jaxpr)).ops for jaxpr in _inside(op))
    return any(map(is_heavy, chain.from_iterable(inside)))


def _inside(op: Op) -> Iterator[Any]:
    for value in op.eqn.params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            if hasattr(item, "eqns") or hasattr(item, "jaxpr"):
                yield item


def _best_rotation(
    ops: Sequence[Op], start: int, period: int, length: int, used_after: set[Value]
) -> tuple[Repeat | None, int, int]:
    """The loop whose turns hand the least on, and the operations it covers."""
    options = []
    for offset in range(period):
        begin, count = start + offset, (length - offset) // period
        if count < 2:
            break
        end = begin + count * period
        turns = [ops[k : k + period] for k in range(begin, end, period)]
        after = used_after | used_by(ops[end:])
        crossing = {v for t in turns[:1] for op in t for v in op.outputs}
        crossing &= after | used_by(ops[begin + period : end])
        cost = sum(num_bytes(v.aval) for v in crossing)
        options.append((cost, -count, begin, end, turns, after))
    for _, _, begin, end, turns, after in sorted(options, key=lambda o: o[:3]):
        repeat = same_flow(turns, after)
        if repeat is not None:
            return repeat, begin, end
    return None, start, start + length


def same_flow(turns: Sequence[Sequence[Op]], used_after: set[Value]) -> Repeat | None:
    """The loop, if values flow in the same way in every turn; None otherwise."""
    made = [
        {out: (k, j) for k, op in enumerate(ops) for j, out in enumerate(op.outputs)}
        for ops in turns
    ]
    slots: dict[tuple[int, ...], tuple[Value, tuple[Atom, ...]]] = {}
    env: dict[tuple[int, int], Value] = {}
    body = []
    for k, row in enumerate(zip(*turns, strict=True)):
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
    leaving = set()
    for n, ops in enumerate(turns):
        later = used_after.union(*(used_by(t) for t in turns[n + 1 :][:1]))
        rest = later | {v for t in turns[n + 2 :] for v in used_by(t)}
        leaving |= {made[n][v] for op in ops for v in op.outputs if v in rest}
    places = sorted(leaving)
    program = Program(
        inputs=tuple(value for value, _ in slots.values()),
        ops=tuple(body),
        outputs=tuple(env[place] for place in places),
    )
    return Repeat(
        body=program,
        turns=tuple(
            Turn(
                ops=tuple(ops),
                inputs=tuple(atoms[n] for _, atoms in slots.values()),
                outputs=tuple(ops[k].outputs[j] for k, j in places),
            )
            for n, ops in enumerate(turns)
        ),
    )


def equal_numbers(atoms: Sequence[Atom]) -> bool:
    """Whether all of them are the same plain number."""
    if not all(isinstance(a, Constant) and is_scalar(a) for a in atoms):
        return False
    values = [np.asarray(a.value) for a in atoms]  # type: ignore[union-attr]
    return all(v.dtype == values[0].dtype and v == values[0] for v in values)
