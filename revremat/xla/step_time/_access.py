"""How the innermost loop of a fusion walks over its operands and its result.

A loop over the result's fastest dimension that steps over an operand's rows touches a
cache line for every element; on a CPU that costs many times the bytes it reads. The
next element of the rows is in the same lines, if a cache still has them. Rows a
multiple of many lines apart, though, share few of a cache's sets, and so do operands
that lie so far apart: the fewer sets the lines come and go in, the longer each takes.

Of arrays that are put together along an outer dimension, one is walked over after the
other. Along the innermost one, every row walks over them all.

Where that pays, LLVM turns the loops around, and steps over the result's rows instead:
with several such operands, if there is none that only an outer loop moves along.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from revremat.xla.hlo._hlo import Module, dtype_of, elements_of, size_of
from revremat.xla.hlo._opcodes import LAYOUT, NOT_TILED, SAME_RANK
from revremat.xla.hlo._placement import place_of

LINE_BYTES = 64
SETS, WAYS = 64, 8  # of the first-level cache of a CPU's core, or a little more


@dataclass(frozen=True)
class Access:
    """Reads of one operand, or writes of the result, that step over rows.

    Attributes:
      number: How many there are.
      lines_bytes: All lines that the innermost loop touches, which it comes back to in
        its next iteration.
      sets: Of the first-level cache, on which those fall that are too many for theirs;
        all of them if none are.
    """

    number: float
    lines_bytes: float
    sets: int = SETS

    @property
    def on_all_sets(self) -> bool:
        """Whether every set of the cache is used."""
        return self.sets >= SETS

    @property
    def crowded(self) -> bool:
        """Whether only some sets are used, and the lines are too many for those."""
        return not self.on_all_sets and self.lines_bytes > self.sets * WAYS * LINE_BYTES


@dataclass(frozen=True)
class Piece:
    """A part of the result, in which its own operands are walked over.

    Attributes:
      dimension: Along which the result is put together.
      start: Of the part there.
      size: Of it.
      whole: Of the result.
    """

    dimension: int
    start: int
    size: int
    whole: int


@dataclass(frozen=True)
class Walked:
    """How an operand is walked over.

    Attributes:
      stride: Bytes from one read to the next.
      piece: In which that is; None where all over the result.
    """

    stride: int
    piece: Piece | None = None


@dataclass(frozen=True)
class Steps:
    """What a loop fusion does that steps over rows.

    Attributes:
      reads: Of each operand that is read so.
      writes: Of the result, if it is written so.
    """

    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()


def steps_over_rows(i: Any, module: Module) -> Steps:
    """Reads and writes of a loop fusion that step over rows.

    Args:
      i: Any instruction; only fusions that compute something besides moving it count.
      module: Its module.
    """
    if i.opcode != "fusion" or i.fusion_kind != "kLoop":
        return Steps()
    inside = module.called(i)[0].instructions
    if not any(x.opcode in ("transpose", "copy") for x in inside):
        return Steps()
    if all(x.opcode in LAYOUT for x in inside):
        return Steps()
    if not any(x.opcode in NOT_TILED for x in inside):
        return Steps()
    root = module.called(i)[0].root
    while root.opcode in ("bitcast", "tuple", "dynamic-update-slice"):
        number = 1 if root.opcode == "dynamic-update-slice" else 0
        root = module.operands(root)[number]
    fastest = _fastest(root.shape)
    if fastest is None:
        return Steps()
    walked: dict[int, Walked] = {}
    _walk(root, fastest, module, walked, set())
    found = {k: one.stride for k, one in walked.items()}
    # The bitcast around the root may have joined dimensions that are walked as one.
    outside = i.shape if root.shape.element_type == i.shape.element_type else root.shape
    joined = _fastest(outside)
    length = root.shape.dimensions[fastest]
    if joined is not None:
        length = max(length, outside.dimensions[joined])
    elements = float(elements_of(root.shape))
    if _turns_around(i, module, found):
        first = module.instructions[next(iter(found))].shape
        along = _fastest(first)
        rows = first.dimensions[along] if along is not None else 1
        pitch = length * (size_of(root.shape) // elements_of(root.shape))
        return Steps(writes=(Access(elements, rows * LINE_BYTES, sets_of(pitch)),))
    further = _further_strides(root, length, module)
    reads: list[Access] = []
    for share, strides in _at_a_time(walked):
        reads += _reads(i, share * elements, length, strides, module, further)
    return Steps(reads=tuple(reads))


def _at_a_time(walked: Mapping[int, Walked]) -> Iterator[tuple[float, dict[int, int]]]:
    """Operands that are walked over together, and the share of the result made so."""
    left = 1.0
    for piece in dict.fromkeys(one.piece for one in walked.values()):
        if piece is not None:
            share = piece.size / piece.whole
            left -= share
            together = None, piece
            yield (
                share,
                {k: one.stride for k, one in walked.items() if one.piece in together},
            )
    if left > 0 and (rest := {k: w.stride for k, w in walked.items() if not w.piece}):
        yield left, rest


def _further_strides(root: Any, length: int, module: Module) -> dict[int, list[int]]:
    """Bytes from read to read in what the innermost loop is made of beside its fastest.

    Args:
      root: What is computed.
      length: Of the innermost loop.
      module: Its module.
    """
    further: dict[int, list[int]] = defaultdict(list)
    large = [
        d for d in root.shape.layout.minor_to_major if root.shape.dimensions[d] > 1
    ]
    walked = root.shape.dimensions[large[0]]
    for d in large[1:]:
        if walked >= length:
            break
        walked *= root.shape.dimensions[d]
        found: dict[int, Walked] = {}
        _walk(root, d, module, found, set())
        for k, one in found.items():
            further[k].append(one.stride)
    return further


def _turns_around(i: Any, module: Module, strides: dict[int, int]) -> bool:
    """Whether the loop runs along the operands' rows and over the result's instead."""
    arrays = [
        p.id
        for p in module.called(i)[0].parameters.values()
        if elements_of(p.shape) > 1 and "float" in dtype_of(p.shape)
    ]
    return len(strides) > 1 and set(arrays) == set(strides)


def sets_of(pitch: int) -> int:
    """On how many sets of the first-level cache lines fall that lie so far apart."""
    apart, uneven = divmod(pitch, LINE_BYTES)
    return SETS if uneven or not apart else SETS // min(apart & -apart, SETS)


def _reads(
    i: Any,
    elements: float,
    length: int,
    strides: dict[int, int],
    module: Module,
    further: Mapping[int, list[int]] = MappingProxyType({}),
) -> tuple[Access, ...]:
    """Those of each operand.

    Args:
      i: The fusion.
      elements: Read of each.
      length: Of its innermost loop.
      strides: Bytes from one read to the next, by the parameter inside the fusion.
      module: Its module.
      further: Of other dimensions that the innermost loop is made of.
    """
    outside = module.operands(i)
    groups: dict[int, Any] = {}
    lines_bytes: dict[Any, float] = defaultdict(float)
    for k, stride in strides.items():
        sets = max(map(sets_of, [stride, *further.get(k, ())]))
        number = module.instructions[k].parameter_number
        place = place_of(outside[number], module) if number < len(outside) else None
        # Operands whose lines fall on the same sets, as far as can be told.
        same = (place[0], place[1] // LINE_BYTES % (SETS // sets)) if place else k
        groups[k] = (sets, same)
        lines_bytes[groups[k]] += length * min(stride, LINE_BYTES)
    all_bytes = sum(lines_bytes.values())
    crowded = {g for g, b in lines_bytes.items() if Access(0, b, g[0]).crowded}
    shared = min(SETS, sum(sets for sets, _ in crowded))
    return tuple(
        Access(elements, all_bytes, shared if group in crowded else SETS)
        for group in groups.values()
    )


def _fastest(shape: Any) -> int | None:
    """The dimension of more than one element that lies densest."""
    for d in shape.layout.minor_to_major:
        if shape.dimensions[d] > 1:
            return d
    return None


def _stride(shape: Any, dimension: int) -> int:
    """Elements from one index of a dimension to the next."""
    step = 1
    for d in shape.layout.minor_to_major:
        if d == dimension:
            return step
        step *= shape.dimensions[d]
    return step


def _walk(
    i: Any,
    d: int,
    module: Module,
    found: dict[int, Walked],
    seen: set[tuple[int, int, Piece | None]],
    piece: Piece | None = None,
) -> None:
    """Follows dimension `d` of a value, in a piece of it, to the fusion's operands."""
    while True:
        if (i.id, d, piece) in seen:
            return
        seen.add((i.id, d, piece))
        operands = module.operands(i)
        match i.opcode:
            case "parameter":
                stride = _stride(i.shape, d)
                if stride > 1:
                    width = size_of(i.shape) // max(1, elements_of(i.shape))
                    if elements_of(i.shape) > i.shape.dimensions[d] > 1:
                        before = found.get(i.id)
                        is_elsewhere = before is not None and before.piece != piece
                        within = None if is_elsewhere else piece
                        found[i.id] = Walked(stride * width, within)
                return
            case "broadcast":
                if d not in i.dimensions:
                    return
                i, d = operands[0], list(i.dimensions).index(d)
            case "transpose":
                i, d = operands[0], i.dimensions[d]
            case "bitcast" | "reshape":
                inner = _same_stride(i.shape, d, operands[0].shape)
                if inner is None:
                    return
                i, d = operands[0], inner
            case "concatenate" if piece is None and list(i.dimensions) != [d]:
                for operand, one in zip(operands, _pieces(i, operands), strict=True):
                    _walk(operand, d, module, found, seen, one)
                return
            case _ if i.opcode in SAME_RANK or _elementwise(i, operands):
                rank = len(i.shape.dimensions)
                for operand in operands:
                    if len(operand.shape.dimensions) == rank:
                        _walk(operand, d, module, found, seen, piece)
                return
            case _:
                return


def _pieces(i: Any, operands: list[Any]) -> Iterator[Piece]:
    """Where a concatenation has each of its operands."""
    (along,) = i.dimensions
    start, whole = 0, i.shape.dimensions[along]
    for operand in operands:
        size = operand.shape.dimensions[along]
        yield Piece(along, start, size, whole)
        start += size


def _elementwise(i: Any, operands: list[Any]) -> bool:
    return bool(operands) and all(
        list(o.shape.dimensions) == list(i.shape.dimensions) for o in operands
    )


def _same_stride(shape: Any, d: int, other: Any) -> int | None:
    """The dimension of `other`, of the same elements in order, with `d`'s stride."""
    wanted = _stride(shape, d)
    for k in other.layout.minor_to_major:
        if other.dimensions[k] > 1 and _stride(other, k) == wanted:
            return k
    return None
