"""Exact search on blocks of any shape, alignment and relation; for small problems.

Of two buffers that must not overlap one lies above the other. Each such choice bounds
one block's offset by another's; bounds run along the choices made (longest paths, with
rounding to alignments) from the ground up and from the capacity down. A pair for which
one side is no longer possible is decided at once; when no pair overlaps with every
block as low as it can be, that is a packing. That a block follows another bounds both
offsets by each other in the same way, from the beginning.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from revremat._numba import njit
from revremat.allocation._blocks import Blocks
from revremat.allocation._search import FAILED, LIMIT, SOLVED

_PAIRS = 20_000
_ROUNDS = 10_000
_DEPTH = 4096


@dataclass(frozen=True)
class Pairs:
    """Pairs of blocks that must be one above the other.

    `upper` lies above `lower` if its offset is at least `lower`'s plus `above`; the
    other way round if `lower`'s is at least `upper`'s plus `below`. The first `fixed`
    pairs are decided: `upper` lies above.
    """

    upper: Int[np.ndarray, " pairs"]
    lower: Int[np.ndarray, " pairs"]
    above: Int[np.ndarray, " pairs"]
    below: Int[np.ndarray, " pairs"]
    fixed: int

    @classmethod
    def of(cls, blocks: Blocks) -> "Pairs | None":
        """All pairs, one for each two members that conflict; None if too many."""
        begin, end = blocks.ranges.begin, blocks.ranges.end
        block = np.repeat(np.arange(blocks.count), np.diff(blocks.start))
        follows = blocks.follows
        if follows is None:
            follows = np.zeros(blocks.count, bool)
        chain = np.cumsum(~follows)[block]
        found = []
        total = 0
        for m in range(len(block)):
            clash = (begin < end[m]) & (begin[m] < end)
            if blocks.relation is not None:
                clash |= blocks.relation.row(m)
            clash &= (chain > chain[m]) & (blocks.size > 0) & (blocks.size[m] > 0)
            others = np.flatnonzero(clash)
            total += len(others)
            if total > _PAIRS:
                return None
            found.append((np.full(len(others), m), others))
        if not found:
            return None
        m, p = (np.concatenate(side) for side in zip(*found, strict=True))
        # Of the offsets in reach behind a block, one alone is aligned.
        after = np.flatnonzero(follows)
        before = after - 1
        nearest = blocks.height[before]
        farthest = nearest + blocks.alignment[after] - 1
        above = blocks.shift[p] + blocks.size[p] - blocks.shift[m]
        below = blocks.shift[m] + blocks.size[m] - blocks.shift[p]
        return cls(
            np.concatenate([after, before, block[m]]),
            np.concatenate([before, after, block[p]]),
            np.concatenate([nearest, -farthest, above]),
            np.concatenate([-nearest, farthest, below]),
            2 * len(after),
        )


def pack(
    pairs: Pairs,
    blocks: Blocks,
    capacity_bytes: int,
    nodes: int,
    out_of_time: Callable[[], bool],
):
    """Searches for offsets within a capacity.

    Returns:
      `(status, offsets of the blocks, nodes opened)`.
    """
    state = _State(pairs, blocks, capacity_bytes)
    opened = 0
    while opened < nodes and not out_of_time():
        status = int(branch(*state.arrays, 2000))
        opened = int(state.marks[1])
        if status != LIMIT:
            return status, state.low.copy(), opened
        if state.marks[2]:
            break
    return LIMIT, state.low, opened


class _State:
    """What a search needs to be taken up again: bounds, choices and their trail."""

    def __init__(self, pairs: Pairs, blocks: Blocks, capacity_bytes: int):
        count, choices = blocks.count, len(pairs.upper)
        self.low = np.zeros(count, np.int64)
        self.high = (capacity_bytes - blocks.height) // blocks.alignment
        self.high *= blocks.alignment
        depth = min(choices, _DEPTH) + 1
        # marks: depth, nodes opened, gave up, choices made, entered
        self.marks = np.zeros(5, np.int64)
        self.marks[3] = pairs.fixed
        decided, made = np.zeros(choices, np.int8), np.zeros(choices, np.int64)
        decided[: pairs.fixed], made[: pairs.fixed] = 1, np.arange(pairs.fixed)
        self.arrays = (
            pairs.upper,
            pairs.lower,
            pairs.above,
            pairs.below,
            blocks.alignment,
            self.low,
            self.high,
            decided,
            made,
            np.zeros((depth, 3), np.int64),
            np.zeros((depth, 2 * count), np.int64),
            self.marks,
        )


@njit
def _propagate(
    upper, lower, above, below, alignment, low, high, decided, made, marks
):  # fmt: skip
    """Tightens bounds and decides pairs until nothing changes; False on a conflict."""
    rounds = 0
    while True:
        changed = True
        while changed:
            changed = False
            rounds += 1
            if rounds > _ROUNDS:
                marks[2] = 1
                return True
            for x in range(marks[3]):
                k = made[x]
                if decided[k] == 1:
                    under, over, gap = lower[k], upper[k], above[k]
                else:
                    under, over, gap = upper[k], lower[k], below[k]
                least = -((-low[under] - gap) // alignment[over]) * alignment[over]
                if least > low[over]:
                    low[over] = least
                    changed = True
                    if least > high[over]:
                        return False
                most = (high[over] - gap) // alignment[under] * alignment[under]
                if most < high[under]:
                    high[under] = most
                    changed = True
                    if most < low[under]:
                        return False
        for k in range(upper.shape[0]):
            if decided[k] != 0:
                continue
            a, b = upper[k], lower[k]
            can_above = low[b] + above[k] <= high[a]
            can_below = low[a] + below[k] <= high[b]
            if can_above and can_below:
                continue
            if not can_above and not can_below:
                return False
            decided[k] = 1 if can_above else 2
            made[marks[3]] = k
            marks[3] += 1
            changed = True
        if not changed:
            return True


@njit
def branch(
    upper, lower, above, below, alignment, low, high, decided, made, frames, saved,
    marks, nodes,
):  # fmt: skip
    """Opens up to some nodes more; SOLVED, FAILED or LIMIT, which can be resumed.

    A frame is (the pair, the choice not yet tried or 0, how many choices were made).
    """
    count = low.shape[0]
    if marks[4] == 0:
        marks[4] = 1
        for i in range(count):
            if high[i] < 0:
                return FAILED
    stop = marks[1] + nodes
    while True:
        if marks[1] >= stop:
            return LIMIT
        marks[1] += 1
        alive = _propagate(
            upper, lower, above, below, alignment, low, high, decided, made, marks
        )
        if marks[2]:
            return LIMIT
        chosen = -1
        if alive:
            # Of the pairs that overlap, the one with the least room.
            least = np.int64(1 << 62)
            for k in range(upper.shape[0]):
                a, b = upper[k], lower[k]
                if decided[k] or low[a] >= low[b] + above[k]:
                    continue
                if low[b] >= low[a] + below[k]:
                    continue
                room = high[a] - low[b] - above[k]
                room += high[b] - low[a] - below[k]
                if room < least:
                    least, chosen = room, k
            if chosen < 0:
                return SOLVED
            depth = marks[0]
            if depth == frames.shape[0]:
                marks[2] = 1
                return LIMIT
            a, b = upper[chosen], lower[chosen]
            room_above = high[a] - low[b] - above[chosen]
            room_below = high[b] - low[a] - below[chosen]
            first = 1 if room_above >= room_below else 2
            frames[depth, 0] = chosen
            frames[depth, 1] = 3 - first
            frames[depth, 2] = marks[3]
            for i in range(count):
                saved[depth, i], saved[depth, count + i] = low[i], high[i]
            marks[0] += 1
        else:
            while marks[0] > 0 and frames[marks[0] - 1, 1] == 0:
                marks[0] -= 1
            if marks[0] == 0:
                return FAILED
            depth = marks[0] - 1
            chosen, first = frames[depth, 0], frames[depth, 1]
            frames[depth, 1] = 0
            while marks[3] > frames[depth, 2]:
                marks[3] -= 1
                decided[made[marks[3]]] = 0
            for i in range(count):
                low[i], high[i] = saved[depth, i], saved[depth, count + i]
        decided[chosen] = first
        made[marks[3]] = chosen
        marks[3] += 1
