"""The core first: the fullest sections are packed alone, then what is beside them.

Few sections of a real trace come near the bound, and few buffers live over those. Such
a *core* is packed as a problem of its own, small enough for many fillings and for the
exact search. What lives beside it has room to spare and is placed around it afterwards,
each stretch of time between two sections of the core by itself.

A packing of the core takes no more than one of everything, so a core that does not fit
proves that nothing does.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from revremat.allocation._greedy import BEST_FIT, LOWEST, place_in_order
from revremat.allocation._rectangles import Rectangles, tighten
from revremat.allocation._sections import section_ranges

_SHARES = (0.995, 0.98, 0.95, 0.9, 0.8, 0.6)
"""Of the bound; sections above it are the core."""

_BUNDLES = (8, 64, 1, 0)
"""Buffers of one range are bundled up to the largest buffer's size divided by this; 0
leaves all of them single."""

_MOST = 0.8
"""A core of more than this share of the buffers is no simpler than the whole."""

_FILLINGS, _FILLED_PIECES = 24, 1 << 17
"""The fewest fillings of a core, and how many pieces are filled in at the first."""

_NODES, _ATTEMPTS = 1000, 2
_REORDERED = 8


@dataclass(frozen=True)
class Core:
    """The buffers over some sections, as a problem of their own.

    Attributes:
      rectangles: The pieces, each of one buffer or of several.
      inside: `bool[n]`, which buffers do.
      piece: `int64[inside]`, the piece that each of these is part of.
      shift: `int64[inside]`, and where in it, in units.
    """

    rectangles: Rectangles
    inside: Bool[np.ndarray, " n"]
    piece: Int[np.ndarray, " inside"]
    shift: Int[np.ndarray, " inside"]

    @classmethod
    def of(
        cls, whole: Rectangles, kept: Bool[np.ndarray, " sections"], bundle: int
    ) -> "Core":
        """What lives over the sections kept; a bundle is `bundle` units at most.

        What lies over the whole core is always one bundle: it may lie at the bottom of
        any packing, so nothing is lost by that.
        """
        position = np.concatenate([[0], np.cumsum(kept)])
        inside = position[whole.begin] < position[whole.end]
        # Whole lifetimes: two of the core may be live together only beside it.
        ranges = section_ranges(whole.begin[inside], whole.end[inside])
        begin, end = ranges.begin, ranges.end
        size, tail = whole.size[inside], whole.tail[inside]
        # Bundles are filled in the order of size; what is large stays alone.
        order = np.lexsort((size, -end, begin))
        piece, shift = np.empty_like(order), np.zeros_like(order)
        rows: list[list[int]] = []
        for i in order:
            a, b, c, d = int(begin[i]), int(end[i]), int(size[i]), int(tail[i])
            most = 1 << 62 if b - a == ranges.count else bundle
            if rows and rows[-1][:2] == [a, b] and rows[-1][2] + c <= most:
                shift[i] = rows[-1][2]
                rows[-1][2] += c
                rows[-1][3] = 0
            else:
                rows.append([a, b, c, d])
            piece[i] = len(rows) - 1
        table = np.array(rows, np.int64).reshape(-1, 4)
        by_begin = np.lexsort((-table[:, 2], -table[:, 1], table[:, 0]))
        place = np.empty_like(by_begin)
        place[by_begin] = np.arange(len(by_begin))
        lower, upper, height, short = table[by_begin].T.copy()
        rectangles = Rectangles(
            lower, upper, height, short, by_begin, whole.unit, ranges.count
        )
        return cls(rectangles, inside, place[piece], shift)

    def spread(self, placed: Int[np.ndarray, " pieces"]) -> Int[np.ndarray, " n"]:
        """Offsets of all buffers, -1 outside the core, from those of the pieces."""
        offsets = np.full(len(self.inside), -1, np.int64)
        offsets[self.inside] = placed[self.piece] + self.shift
        return offsets


def concentrate(
    whole: Rectangles,
    target_bytes: int,
    best_bytes: int,
    deadline: float,
    rounds: int,
    watch: Callable[[Int[np.ndarray, " n"] | None, int], bool],
) -> None:
    """Packs one core after another, with more effort each round.

    Args:
      whole: What is packed.
      target_bytes: Nothing below is of use.
      best_bytes: A makespan that is known to be possible.
      deadline: When to stop, on `time.monotonic`'s clock.
      rounds: How many times all cores are tried.
      watch: Called with offsets that are better than all before, or None, and with a
        lower bound that is proved, 0 for none; true ends it.
    """
    load, proved_bytes = whole.loads(), 0
    cores: dict[tuple[float, int], Core] = {}
    crowded: set[float] = set()  # what is beside these cores does not fit around them
    for number in range(rounds):
        for share, bundle in itertools.product(_SHARES, _BUNDLES):
            if time.monotonic() > deadline or best_bytes <= target_bytes:
                return
            if share in crowded:
                continue
            core = cores.get((share, bundle))
            if core is None:
                most = int(whole.size.max()) // bundle if bundle else 0
                core = cores[share, bundle] = Core.of(
                    whole, load >= share * load.max(), most
                )
            count = int(core.inside.sum())
            if count > _MOST * len(core.inside) and whole.searchable:
                continue
            before = core.rectangles.nodes
            offsets, least = _packed(core, target_bytes, best_bytes, deadline, number)
            whole.nodes += core.rectangles.nodes - before
            if bundle == 0 and least > target_bytes and not whole.tail.any():
                target_bytes = proved_bytes = least
            makespan = best_bytes
            if offsets is not None:
                offsets = complete(whole, core.spread(offsets), core.inside, best_bytes)
                makespan = whole.makespan_bytes(offsets)
            gained = makespan < best_bytes
            if offsets is not None and not gained:
                crowded.add(share)
            best_bytes = min(best_bytes, makespan)
            if watch(offsets if gained else None, proved_bytes):
                return


def _packed(core, target_bytes, best_bytes, deadline, number):
    """Offsets of the core below `best_bytes` or None, and a bound for the core."""
    pieces = core.rectangles
    tries = (_FILLED_PIECES << 2 * number) // len(pieces.size)
    tries = min(max(_FILLINGS, tries), _FILLINGS << (4 + number))
    reached, found = pieces.filled(target_bytes, tries, deadline)
    if reached >= best_bytes:
        found = None
    if reached <= target_bytes or not pieces.searchable or not number:
        return found, target_bytes
    result = [found, target_bytes]

    def keep(offsets, least_bytes):
        if offsets is not None:
            result[0] = offsets
        result[1] = max(result[1], least_bytes)

    tighten(
        pieces,
        target_bytes,
        min(reached, best_bytes),
        deadline,
        keep,
        nodes=_NODES << number,
        rounds=1,
        attempts=_ATTEMPTS,
    )
    return tuple(result)


def complete(
    whole: Rectangles,
    offsets: Int[np.ndarray, " n"],
    inside: Bool[np.ndarray, " n"],
    ceiling_bytes: int,
) -> Int[np.ndarray, " n"]:
    """Places what lies beside a core around it, stretch by stretch.

    Args:
      whole: All buffers.
      offsets: `int64[n]`, in units; those of the core count.
      inside: `bool[n]`, which these are.
      ceiling_bytes: Of no use unless lower than this.

    Returns:
      All offsets in units.
    """
    offsets = offsets.copy()
    core_units = int((offsets + whole.size)[inside].max(initial=0))
    outside = np.flatnonzero(~inside)
    # Stretches: outside buffers that overlap, directly or by way of others.
    reach = np.maximum.accumulate(whole.end[outside])
    cuts = np.flatnonzero(whole.begin[outside][1:] >= reach[:-1]) + 1
    for members in np.split(outside, cuts):
        if not len(members):
            continue
        left, right = whole.begin[members[0]], whole.end[members].max()
        fixed = np.flatnonzero(inside & (whole.begin < right) & (whole.end > left))
        top = _place_around(whole, offsets, fixed, members, core_units)
        if top * whole.unit >= ceiling_bytes + whole.unit:
            offsets[offsets < 0] = ceiling_bytes // whole.unit + 1
            return offsets
    return offsets


def _place_around(whole, offsets, fixed, members, wanted):
    """Best of some orders, then what ends too high earlier; returns its top."""
    rows = np.concatenate([fixed, members])
    count = len(rows)
    begin, end, size = whole.begin[rows], whole.end[rows], whole.size[rows]
    width = (end - begin)[len(fixed) :]
    height = size[len(fixed) :]
    starts = np.lexsort((-height, begin[len(fixed) :]))
    area = width * height.astype(np.float64)
    ranks = [
        np.lexsort((-width, -height)),
        np.lexsort((-height, -width)),
        np.lexsort((-height, -area)),
        starts,
    ]
    ones, none = np.ones(count, np.int64), np.zeros((0, 0), np.uint64)
    best, best_base = 1 << 62, np.zeros(0, np.int64)
    rng = np.random.default_rng(0)
    rank = np.empty(len(members))
    for number in range(2 * len(ranks) + _REORDERED):
        if number < 2 * len(ranks):
            order = ranks[number // 2]
        else:
            order = np.argsort(rank, kind="stable")
        base = np.full(count, -1, np.int64)
        base[: len(fixed)] = offsets[fixed]
        place_in_order(
            np.concatenate([np.arange(len(fixed)), len(fixed) + order]),
            np.arange(count + 1), begin, end, np.zeros(count, np.int64), size, ones,
            none, (BEST_FIT, LOWEST)[number % 2], np.int64(best), base,
            len(fixed),
        )  # fmt: skip
        tops = (base + size)[len(fixed) :]
        top = int(tops.max())
        if top < best:
            best, best_base = top, base
            rank[order] = np.arange(len(order))
        if best <= wanted:
            break
        if number >= 2 * len(ranks):
            high = tops > wanted
            rank[high] -= len(order) * (0.05 + 0.3 * rng.random(int(high.sum())))
    offsets[members] = best_base[len(fixed) :]
    return best
