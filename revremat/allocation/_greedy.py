"""Greedy placement in a fixed order, for any blocks: what XLA and SOMAS do."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int

from revremat._numba import njit
from revremat.allocation._blocks import Blocks

BEST_FIT, LOWEST = 0, 1
"""Which gap a block goes into: the one it leaves least of, or the lowest."""

_STALE = 30


@njit
def _sort(keys, values, count):
    """Shell's sort of two arrays by the first; compiles in a third of NumPy's time."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            key, value = keys[i], values[i]
            j = i
            while j >= gap and keys[j - gap] > key:
                keys[j], values[j] = keys[j - gap], values[j - gap]
                j -= gap
            keys[j], values[j] = key, value
        gap //= 3


@njit
def place_in_order(
    order, start, begin, end, shift, size, alignment, words, fit, ceiling, base,
    fixed,
):  # fmt: skip
    """Places block after block; writes `base` and returns the makespan.

    Args:
      order: `int64[blocks]`, the order of placement.
      start: `int64[blocks + 1]`, the first member of each block.
      begin, end, shift, size: `int64[members]`, sections, offset within the block and
        bytes of each member.
      alignment: `int64[blocks]`.
      words: `uint64[members, k]`, the relation's bits, or `[0, 0]` for none.
      fit: BEST_FIT or LOWEST.
      ceiling: Gives up, returning what it reached, once the makespan is this or more.
      base: `int64[blocks]`, written.
      fixed: The first so many of the order lie where `base` says.
    """
    members = begin.shape[0]
    related = words.shape[0] > 0
    # Members that are placed, sorted by offset.
    placed = np.empty(members, np.int64)
    offset = np.empty(members, np.int64)
    placed_count = 0
    # Where the block's offset must not lie: open intervals.
    forbidden_begin = np.empty(members, np.int64)
    forbidden_end = np.empty(members, np.int64)
    makespan = np.int64(0)
    for number in range(order.shape[0]):
        block = order[number]
        first, last = start[block], start[block + 1]
        if last - first > 1 and placed_count * (last - first) > len(forbidden_begin):
            forbidden_begin = np.empty(placed_count * (last - first), np.int64)
            forbidden_end = np.empty(placed_count * (last - first), np.int64)
        clashes = 0
        height = np.int64(0)
        for m in range(first, last):
            height = max(height, shift[m] + size[m])
            for x in range(placed_count if number >= fixed else 0):
                p = placed[x]
                apart = begin[m] >= end[p] or begin[p] >= end[m]
                if apart and related:
                    word = words[m, p >> 6] >> np.uint64(p & 63)
                    apart = word & np.uint64(1) == 0
                if not apart and size[m] > 0:
                    forbidden_begin[clashes] = offset[x] - size[m] - shift[m]
                    forbidden_end[clashes] = offset[x] + size[p] - shift[m]
                    clashes += 1
        if last - first > 1:
            _sort(forbidden_begin, forbidden_end, clashes)
        # `lowest`: no offset below it is free that has not been looked at.
        lowest = np.int64(0)
        chosen, leftover = np.int64(-1), np.int64(1 << 62)
        for x in range(clashes):
            if forbidden_begin[x] >= lowest:
                spare = forbidden_begin[x] - lowest
                if spare < leftover:
                    chosen, leftover = lowest, spare
                    if fit == LOWEST or spare == 0:
                        break
            if forbidden_end[x] > lowest:
                align = alignment[block]
                lowest = (forbidden_end[x] + align - 1) // align * align
        if chosen < 0:
            chosen = lowest
        if number < fixed:
            chosen = base[block]
        base[block] = chosen
        makespan = max(makespan, chosen + height)
        if makespan >= ceiling:
            return makespan
        for m in range(first, last):
            if size[m] == 0:
                continue
            at = placed_count
            while at > 0 and offset[at - 1] > chosen + shift[m]:
                placed[at], offset[at] = placed[at - 1], offset[at - 1]
                at -= 1
            placed[at], offset[at] = m, chosen + shift[m]
            placed_count += 1
    return makespan


def portfolio(blocks: Blocks, target_bytes: int) -> Iterator[tuple]:
    """Runs all orders and gaps; yields `(makespan_bytes, base, name, order)` of each
    that is better than those before.

    The orders are XLA's (size, lifetime, size x lifetime), each with both gaps, and
    those by start, by end and by the fullest section a block lies in.
    """
    ranges, start = blocks.ranges, blocks.start[:-1]
    width = np.add.reduceat(ranges.end - ranges.begin, start)
    begin = np.minimum.reduceat(ranges.begin, start)
    end = np.maximum.reduceat(ranges.end, start)
    load = ranges.loads(blocks.size)
    peak = np.array(
        [load[a:b].max() for a, b in zip(ranges.begin, ranges.end, strict=True)]
    )
    peak = np.maximum.reduceat(peak, start)
    size = blocks.height
    orders = {
        "size": np.lexsort((-width, -size)),
        "lifetime": np.lexsort((-size, -width)),
        "size x lifetime": np.lexsort((-size, -(size.astype(np.float64) * width))),
        "start": np.lexsort((-size, -width, begin)),
        "end": np.lexsort((-size, -width, -end)),
        "fullest section": np.lexsort((-size, -width, -peak)),
    }
    words = np.zeros((0, 0), np.uint64)
    if blocks.relation is not None:
        words = blocks.relation.words
    ceiling = np.int64(1 << 62)
    for name, order in orders.items():
        for fit, gap in ((BEST_FIT, "best fit"), (LOWEST, "lowest offset")):
            base = np.empty(blocks.count, np.int64)
            makespan = place_in_order(
                order, blocks.start, ranges.begin, ranges.end, blocks.shift,
                blocks.size, blocks.alignment, words, fit, ceiling, base, 0,
            )  # fmt: skip
            if makespan < ceiling:
                ceiling = np.int64(makespan)
                yield int(makespan), base, f"{name}, {gap}", order
                if makespan <= target_bytes:
                    return


def reorder(
    blocks: Blocks,
    order: Int[np.ndarray, " blocks"],
    makespan_bytes: int,
    target_bytes: int,
) -> Iterator[tuple[int, Int[np.ndarray, " blocks"]] | None]:
    """Places again and again, what ended above the target earlier each time.

    Squeaky wheels (Joslin and Clements, JAIR 1999), from the best order again after a
    while without gain. Never ends by itself above the target; yields
    `(makespan_bytes, base)` where that is a gain and None where not.
    """
    words = np.zeros((0, 0), np.uint64)
    if blocks.relation is not None:
        words = blocks.relation.words
    ranges, count = blocks.ranges, blocks.count
    rng = np.random.default_rng(0)
    best_rank = np.empty(count)
    best_rank[order] = np.arange(count)
    rank, best, stale, tried = best_rank.copy(), makespan_bytes, 0, 0
    while best > target_bytes:
        base = np.empty(count, np.int64)
        makespan = place_in_order(
            np.argsort(rank, kind="stable"), blocks.start, ranges.begin, ranges.end,
            blocks.shift, blocks.size, blocks.alignment, words, tried % 2,
            np.int64(1 << 62), base, 0,
        )  # fmt: skip
        tried += 1
        stale += 1
        if makespan < best:
            best, best_rank, stale = int(makespan), rank.copy(), 0
            yield best, base
        else:
            yield None
        if stale > _STALE:
            rank = best_rank + 0.05 * count * rng.standard_normal(count)
            stale = 0
        high = base + blocks.height > target_bytes
        rank[high] -= count * (0.05 + 0.2 * rng.random(int(high.sum())))
