"""The one form that every solver takes: blocks of buffers with fixed inner offsets."""

import math
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Int

from revremat._errors import UserError
from revremat.allocation._problem import LARGEST_BYTES, AllocationProblem
from revremat.allocation._relation import Relation
from revremat.allocation._sections import SectionRanges, section_ranges


@dataclass(frozen=True)
class Blocks:
    """Buffers in a canonical order, tied together into blocks.

    A buffer alone is a block of one; a group is a block whose members lie behind one
    another; what is in place is a block whose members lie over one another. Empty
    buffers are left out. The order depends on the buffers, not on how they were listed.

    Attributes:
      start: `int64[blocks + 1]`, the first member of each block.
      buffer: `int64[members]`, the position of each member in the problem.
      shift: `int64[members]`, its offset within the block, in bytes.
      size: `int64[members]`, in bytes.
      alignment: `int64[blocks]`, the block's offset is a multiple of it.
      height: `int64[blocks]`, from the block's offset to the end of its last member.
      ranges: Each member's lifetime as sections.
      relation: Among the members, or None.
      follows: `bool[blocks]`, whether the block lies behind the one before it with only
        the padding between them that its alignment asks for. None: no block does.
    """

    start: Int[np.ndarray, " starts"]
    buffer: Int[np.ndarray, " members"]
    shift: Int[np.ndarray, " members"]
    size: Int[np.ndarray, " members"]
    alignment: Int[np.ndarray, " blocks"]
    height: Int[np.ndarray, " blocks"]
    ranges: SectionRanges
    relation: Relation | None
    follows: Bool[np.ndarray, " blocks"] | None = None

    @property
    def count(self) -> int:
        """How many blocks there are."""
        return len(self.alignment)

    @property
    def rectangles(self) -> bool:
        """Whether every block is one buffer whose lifetime alone decides."""
        return len(self.buffer) == self.count and self.relation is None

    def offsets(
        self, problem: AllocationProblem, base: Int[np.ndarray, " blocks"]
    ) -> tuple[int, ...]:
        """Offsets of all buffers from those of the blocks; empty buffers lie at 0."""
        offsets = [0] * len(problem.buffers)
        block = np.repeat(np.arange(self.count), np.diff(self.start))
        for i, offset in zip(self.buffer, base[block] + self.shift, strict=True):
            offsets[i] = int(offset)
        return tuple(offsets)

    def makespan(self, base: Int[np.ndarray, " blocks"]) -> int:
        """The end of the block that reaches highest."""
        return int((base + self.height).max(initial=0))


def to_blocks(problem: AllocationProblem) -> Blocks:
    """Ties the buffers of a problem into blocks.

    Raises:
      UserError: A group whose alignments have no common multiple below 2**62.
    """
    buffers = problem.buffers
    loose = np.ones(len(buffers), bool)
    blocks: list[tuple[list[int], list[int]]] = []
    for name, members in problem.groups.items():
        loose[list(members)] = False
        shifts, at = [], 0
        for i in members:
            align = buffers[i].alignment_bytes
            shifts.append(-(-at // align) * align)
            at = shifts[-1] + buffers[i].size_bytes
        if math.lcm(*(buffers[i].alignment_bytes for i in members)) >= LARGEST_BYTES:
            raise UserError(
                f"the alignments of group {name!r} have no common multiple below "
                "2**62; give its buffers alignments that are powers of two"
            )
        blocks.append((list(members), shifts))
    for ids in problem.in_place:
        members = [problem.index[id] for id in ids]
        loose[members] = False
        blocks.append((members, [0] * len(members)))
    blocks.extend(([int(i)], [0]) for i in np.flatnonzero(loose))

    def key(block):
        return [
            (b.lower, b.upper, b.size_bytes, b.alignment_bytes, b.id)
            for b in (buffers[i] for i in block[0])
        ]

    def has_empty_only(block):
        # An empty member of others still has to lie where its neighbours put it.
        return not any(buffers[i].size_bytes for i in block[0])

    blocks = sorted((b for b in blocks if not has_empty_only(b)), key=key)
    buffer = np.array([i for members, _ in blocks for i in members], np.int64)
    shift = np.array([s for _, shifts in blocks for s in shifts], np.int64)
    size = problem.sizes_bytes[buffer]
    counts = [len(members) for members, _ in blocks]
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    alignment = np.array(
        [math.lcm(*(buffers[i].alignment_bytes for i in m)) for m, _ in blocks],
        np.int64,
    )
    if len(blocks):
        height = np.maximum.reduceat(shift + size, start[:-1])
        ranges = section_ranges(problem.lower[buffer], problem.upper[buffer])
    else:
        none = np.zeros(0, np.int64)
        height, ranges = none, SectionRanges(none, none, none)
    relation = problem.relation.take(buffer) if problem.relation is not None else None
    return Blocks(start, buffer, shift, size, alignment, height, ranges, relation)


def taken_apart(problem: AllocationProblem, blocks: Blocks) -> Blocks:
    """The same buffers in blocks of which every legal packing is one.

    Where a later member asks for more alignment than the first, the padding between
    them depends on where the group lies. Each member of such a group becomes a block
    that `follows` the one before; without such groups, `blocks` is returned as it is.
    """
    first = blocks.start[:-1]
    alignment = problem.alignments_bytes[blocks.buffer]
    grouped = np.array([problem.buffers[i].group != "" for i in blocks.buffer[first]])
    apart = grouped & (alignment[first] != blocks.alignment)
    if not apart.any():
        return blocks
    block = np.repeat(np.arange(blocks.count), np.diff(blocks.start))
    loose = apart[block]
    leads = np.zeros(len(block), bool)
    leads[first] = True
    kept = leads | loose
    return replace(
        blocks,
        start=np.append(np.flatnonzero(kept), len(block)),
        shift=np.where(loose, 0, blocks.shift),
        alignment=np.where(loose, alignment, blocks.alignment[block])[kept],
        height=np.where(loose, blocks.size, blocks.height[block])[kept],
        follows=~leads[kept],
    )


def covering_rectangles(blocks: Blocks) -> Blocks | None:
    """Rectangles that cover the blocks: a packing of them is one of the blocks.

    A block becomes one buffer, as high as all of it and live as long as any of it, and
    is kept alive until the last one begins that the relation keeps it apart from. All
    take the alignments' common multiple; None if there is no sensible one.
    """
    if not blocks.count:
        return None
    unit = math.lcm(*{int(a) for a in blocks.alignment})
    if unit > max(int(blocks.alignment.max()), int(np.median(blocks.height))):
        return None
    first = blocks.start[:-1]
    begin, end = blocks.ranges.begin, blocks.ranges.end
    if blocks.relation is not None:
        end = end.copy()
        for m in range(len(begin)):
            later = blocks.relation.row(m) & (begin >= end[m])
            if later.any():
                end[m] = begin[later].max() + 1
    rows = np.arange(blocks.count)
    return Blocks(
        np.arange(blocks.count + 1),
        rows,
        np.zeros_like(rows),
        blocks.height,
        np.full(blocks.count, unit, np.int64),
        blocks.height,
        SectionRanges(
            np.minimum.reduceat(begin, first),
            np.maximum.reduceat(end, first),
            blocks.ranges.times,
        ),
        None,
    )
