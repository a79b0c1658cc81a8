"""How often a loop fusion of a CPU evaluates what it is made of.

XLA writes one loop over the result, and into it, for each element, all that the
element depends on. What is used at several indices is evaluated at each of them: a
value and its neighbour, say, each with all that they are made of in turn. What only
dimensions outside of the innermost loop decide is evaluated outside of it, where
`_starts` does not speak against it. Padding and concatenation branch, and what lies
beyond a branch is evaluated where it is taken.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from revremat.xla.hlo._hlo import Module, elements_of, is_tuple, size_of
from revremat.xla.hlo._opcodes import FREE, MOVES, TRANSCENDENTAL
from revremat.xla.step_time._access import LINE_BYTES, SETS, WAYS
from revremat.xla.step_time._starts import Starts, Visit

_MOST = 20_000
"""Evaluations that are followed; of more the rest counts once each."""

_HELD = WAYS // 2
"""Lines of a set that stay: what is written and what comes next take ways as well."""

_UNROLLED = 64
"""Numbers of an innermost loop up to which LLVM unrolls it whole. What the loop around
it does not decide is then computed once for all of that one's iterations: a cosine of
64 angles for 8 heads took a sixth as long for an element as one of 128."""

_APART_BYTES = SETS * LINE_BYTES
"""Lines so far apart fall on the same set."""

Index = tuple[Any, ...]
"""For each dimension of a value the way its index follows from the result's:
`("at", dimension, factor, offset)`, a number, or what hides both."""


@dataclass
class Evaluations:
    """What a loop fusion does, each in all of its loops.

    Attributes:
      loads: Elements read of its operands.
      operations: Additions and the like; comparisons and choices, too.
      functions: Of each transcendental function.
      guards: Branches of padding and concatenation.
      crowded: Loads that push one another out of the first-level cache: of more rows at
        a time than its sets have ways for, in loops that do not read whole lines.
      elements: Of the result; of several, all.
      innermost: Length of the innermost loop.
      starts: Instructions that read starts of slices anew for each element.
      by_number: Of all work, what is done for one number at a time because of that.

    Example:
      >>> from revremat import xla
      >>> xla.Evaluations(loads=2.0, operations=1.0).work
      3.0
    """

    loads: float = 0.0
    operations: float = 0.0
    functions: dict[str, float] = field(default_factory=dict)
    guards: float = 0.0
    crowded: float = 0.0
    elements: float = 0.0
    innermost: int = 1
    starts: float = 0.0
    by_number: float = 0.0

    @property
    def work(self) -> float:
        """All but functions: each of them is about an instruction."""
        return self.loads + self.operations + self.guards + self.starts


def evaluations_of(i: Any, module: Module) -> Evaluations:
    """What a loop fusion evaluates.

    Args:
      i: A fusion.
      module: Its module.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> run, x = lambda x: x * x + x, jnp.ones(256)
      >>> artifact = xla.compile_step(run, (x,), rr.target("cpu:1"))
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> xla.evaluations_of(module.entry.root, module).loads
      256.0
    """
    return _Walk(module).of(i)


class _Walk:
    def __init__(self, module: Module):
        self.module = module
        self.found = Evaluations()
        self._seen: dict[tuple[int, Index], float] = {}
        self._lines: dict[float, float] = {}

    def of(self, i: Any) -> Evaluations:
        roots = [self.module.called(i)[0].root]
        while roots:
            root = roots.pop()
            if root.opcode == "tuple":
                roots += self.module.operands(root)
                continue
            written = self._written(root)
            if is_tuple(written.shape):
                continue
            self._sizes = list(written.shape.dimensions)
            self._order = list(written.shape.layout.minor_to_major)[::-1]
            large = [n for n in (self._sizes[d] for d in self._order) if n > 1]
            self.found.elements += elements_of(written.shape)
            self.found.innermost = max(self.found.innermost, *large[-1:], 1)
            start = tuple(
                ("at", d, 1, 0) if size > 1 else 0 for d, size in enumerate(self._sizes)
            )
            self._lines = {}
            self._visit_all(written, start)
            if (
                self.found.innermost < LINE_BYTES // 4
            ):  # else lines are done with at once
                self.found.crowded += self._crowded() * elements_of(written.shape)
        return self.found

    def _crowded(self) -> float:
        """Loads for an element that share a set of the cache with too many others.

        Where arrays begin is not known here; large ones begin alike in the first-level
        cache, as their sizes are multiples of it.
        """
        sets: dict[float, list[float]] = {}
        for line, share in self._lines.items():
            sets.setdefault(line % SETS, []).append(share)
        return sum(sum(found) for found in sets.values() if len(found) > _HELD)

    def _line(self, i: Any, index: Index) -> float | None:
        """The line of the first element that is read so, beside what loops add."""
        strides, step = [0] * len(index), size_of(i.shape) // elements_of(i.shape)
        for d in i.shape.layout.minor_to_major:
            strides[d] = step
            step *= i.shape.dimensions[d]
        offset = 0.0
        for x, stride in zip(index, strides, strict=True):
            if not isinstance(x, tuple):
                offset += x * stride
            elif x[0] == "at":
                offset += float(x[3]) * stride
            else:
                return None
        return offset // LINE_BYTES

    def _written(self, root: Any) -> Any:
        """What is computed: of an update in place, the part that is replaced."""
        inner = root
        while inner.opcode in ("bitcast", "copy", "convert") and inner.operand_ids:
            inner = self.module.operands(inner)[0]
        if inner.opcode == "dynamic-update-slice":
            return self.module.operands(inner)[1]
        return root

    def _visit_all(self, root: Any, index: Index) -> None:
        visits = list(self._visits(Visit(root, index)))
        starts = Starts((visit for visit, _ in visits), self.module)
        for visit, share in visits:
            whole = bool(starts) and starts.decides(visit)
            work = self._count(visit, share * self._runs(visit.index, whole))
            if starts:
                self.found.by_number += work * starts.share(visit)
        read = starts.work * elements_of(root.shape)
        self.found.starts += read
        self.found.by_number += read

    def _visits(self, first: Visit) -> Iterator[tuple[Visit, float]]:
        """All values that a loop needs, and the share that was not needed before."""
        waiting = [first]
        while waiting and len(self._seen) < _MOST:
            visit = waiting.pop()
            key = visit.instruction.id, visit.index
            before = self._seen.get(key, 0.0)
            if visit.share <= before:
                continue
            self._seen[key] = visit.share
            yield visit, visit.share - before
            waiting += self._needed_by(visit)

    def _needed_by(self, visit: Visit) -> Iterator[Visit]:
        i, branches, slices = visit.instruction, visit.branches, visit.slices
        if i.opcode == "dynamic-slice":
            slices = (*slices, i.id)
        is_branch = i.opcode in ("pad", "concatenate")
        for number, (operand, index, part) in enumerate(self._behind(i, visit.index)):
            inner = (*branches, (i.id, number)) if is_branch else branches
            yield Visit(operand, index, visit.share * part, inner, slices)

    def _count(self, visit: Visit, times: float) -> float:
        """Adds what a value takes so often; of that loads, operations and branches."""
        i, found = visit.instruction, self.found
        if i.opcode == "parameter":
            if elements_of(i.shape) == 1:
                return 0.0
            found.loads += times
            line = self._line(i, visit.index)
            if line is not None and size_of(i.shape) >= _APART_BYTES:
                # Of other arrays other lines, on the same sets.
                self._lines[line + i.parameter_number * _APART_BYTES] = visit.share
            return times
        if i.opcode in ("pad", "concatenate"):
            guards = times * (len(i.operand_ids) - 1)
            found.guards += guards
            return guards
        if i.opcode in TRANSCENDENTAL:
            found.functions[i.opcode] = found.functions.get(i.opcode, 0.0) + times
        elif i.opcode == "select" or i.opcode not in FREE | MOVES:
            found.operations += times
            return times
        return 0.0

    def _runs(self, index: Index, whole: bool) -> float:
        """How often the loops run around what has such an index; `whole`: all do."""
        used: set[int] = set()
        summed: dict[Any, int] = {}
        waiting = list(index)
        while waiting:
            part = waiting.pop()
            if not isinstance(part, tuple):
                continue
            if part[0] == "at":
                used.add(part[1])
            elif part[0] == "summed":
                summed[part[1]] = part[2]
            else:
                waiting += part[1:]
        runs = math.prod(summed.values())
        loops = [d for d in self._order if self._sizes[d] > 1]
        if not whole and loops and self._sizes[loops[-1]] <= _UNROLLED:
            if loops[-1] in used:
                runs *= self._sizes[loops[-1]]
            loops = loops[:-1]
        depth = max((k for k, d in enumerate(loops) if whole or d in used), default=-1)
        return float(runs * math.prod(self._sizes[d] for d in loops[: depth + 1]))

    def _behind(self, i: Any, index: Index) -> list[tuple[Any, Index, float]]:
        operands = self.module.operands(i)
        match i.opcode:
            case "parameter" | "constant" | "iota":
                return []
            case "broadcast":
                return [(operands[0], tuple(index[d] for d in i.dimensions), 1.0)]
            case "transpose":
                inner: list[Any] = [0] * len(index)
                for out, d in enumerate(i.dimensions):
                    inner[d] = index[out]
                return [(operands[0], tuple(inner), 1.0)]
            case "slice":
                inner = [
                    _moved(x, s.stride or 1, s.start)
                    for x, s in zip(index, i.slices, strict=True)
                ]
                return [(operands[0], tuple(inner), 1.0)]
            case "dynamic-slice":
                inner = [
                    ("from", x, start)
                    for x, start in zip(index, i.operand_ids[1:], strict=True)
                ]
                return [(operands[0], tuple(inner), 1.0)]
            case "reverse":
                return [(operands[0], _reversed(i, index), 1.0)]
            case "pad":
                return [(operands[0], _unpadded(i, index), _share(operands[0], i))]
            case "concatenate":
                return _pieces(i, operands, index)
            case "bitcast" | "reshape":
                return [
                    (operands[0], _reshaped(i.shape, operands[0].shape, index), 1.0)
                ]
            case "reduce":
                return self._summed(i, operands, index)
            case "gather":
                inner = [
                    ("read", i.id, d, *index) for d in operands[0].shape.dimensions
                ]
                start = ("start", i.id, *index)
                rank = len(operands[1].shape.dimensions)
                return [
                    (operands[0], tuple(inner), 1.0),
                    (operands[1], (start,) * rank, 1.0),
                ]
            case _:
                same = list(i.shape.dimensions)
                return [
                    (o, index if list(o.shape.dimensions) == same else (), 1.0)
                    for o in operands
                    if list(o.shape.dimensions) == same or elements_of(o.shape) == 1
                ]

    def _summed(
        self, i: Any, operands: list[Any], index: Index
    ) -> list[tuple[Any, Index, float]]:
        found = []
        for operand in operands[: len(operands) // 2]:
            kept = iter(index)
            inner = [
                ("summed", (i.id, d), size) if d in i.dimensions else next(kept)
                for d, size in enumerate(operand.shape.dimensions)
            ]
            found.append((operand, tuple(inner), 1.0))
        return found


def _moved(x: Any, factor: int | Fraction, offset: int) -> Any:
    """`factor * x + offset`."""
    if factor == 1 and offset == 0:
        return x
    if not isinstance(x, tuple):
        return x * factor + offset
    if x[0] == "at":
        return ("at", x[1], x[2] * factor, x[3] * factor + offset)
    return ("moved", x, factor, offset)


def _reversed(i: Any, index: Index) -> Index:
    return tuple(
        _moved(x, -1, size - 1) if d in i.dimensions else x
        for d, (x, size) in enumerate(zip(index, i.shape.dimensions, strict=True))
    )


def _unpadded(i: Any, index: Index) -> Index:
    found = []
    for x, pad in zip(index, i.padding.dimensions, strict=True):
        moved = _moved(x, 1, -pad.low)
        if pad.interior:  # beyond the branch it is a multiple
            moved = _moved(moved, Fraction(1, pad.interior + 1), 0)
        found.append(moved)
    return tuple(found)


def _share(part: Any, whole: Any) -> float:
    return min(1.0, elements_of(part.shape) / max(1, elements_of(whole.shape)))


def _pieces(
    i: Any, operands: list[Any], index: Index
) -> list[tuple[Any, Index, float]]:
    (along,) = i.dimensions
    found, before = [], 0
    for operand in operands:
        inner = list(index)
        inner[along] = _moved(inner[along], 1, -before)
        found.append((operand, tuple(inner), _share(operand, i)))
        before += operand.shape.dimensions[along]
    return found


def _reshaped(shape: Any, other: Any, index: Index) -> Index:
    """The index into `other` of the same elements in the same order."""
    large = [d for d, size in enumerate(shape.dimensions) if size > 1]
    wanted = [d for d, size in enumerate(other.dimensions) if size > 1]
    sizes = [shape.dimensions[d] for d in large]
    if sizes == [other.dimensions[d] for d in wanted]:
        found: list[Any] = [0] * len(other.dimensions)
        for d, inner in zip(large, wanted, strict=True):
            found[inner] = index[d]
        return tuple(found)
    if math.prod(other.dimensions) == 1:
        return (0,) * len(other.dimensions)
    whole = tuple(shape.dimensions), tuple(other.dimensions)
    return tuple(("part", d, whole, *index) for d in range(len(other.dimensions)))
