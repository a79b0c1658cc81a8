"""Packing of buffers whose lifetimes alone decide: filling, then exact search."""

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int, Real

from revremat.allocation._blocks import Blocks
from revremat.allocation._fill import fill
from revremat.allocation._joining import join
from revremat.allocation._search import FAILED, LIMIT, SOLVED, search
from revremat.allocation._skyline import FEWEST, LOWEST, WEIGHTED

LANES = 2
"""Searches that run side by side. Fixed, so that answers do not depend on the machine;
the compiled kernels release the interpreter's lock."""

_SEARCHED_BLOCKS = 8192
"""Above this many, a node costs too much for the search to get anywhere."""

_RULES = (LOWEST, WEIGHTED, FEWEST)
_REMEMBERED = 1 << 20
_ATTEMPTS = 9

_JOIN_AFTER = 12
_JOIN_ABOVE = 0.97
_JOIN_STACKED = (2, 3, 4, 6)
_JOIN_SKIPPED = (0.0, 0.0, 0.1, 0.3, 0.5)
_JOIN_SEARCHES = 4


@dataclass
class _Lane:
    """What one search learns and keeps for the next."""

    failures: Real[np.ndarray, " n"]
    failed: np.ndarray
    capacity: int = -1


@dataclass
class Rectangles:
    """The arrays of a packing problem, in multiples of its unit.

    Attributes:
      begin, end: `int64[n]`, sections of each buffer, sorted by `begin`, longest first.
      size: `int64[n]`, in units.
      tail: `int64[n]`, bytes by which each buffer is shorter than its units.
      block: `int64[n]`, which block each is.
      unit: Bytes; every offset is a multiple of it.
      section_count: How many sections there are.
    """

    begin: Int[np.ndarray, " n"]
    end: Int[np.ndarray, " n"]
    size: Int[np.ndarray, " n"]
    tail: Int[np.ndarray, " n"]
    block: Int[np.ndarray, " n"]
    unit: int
    section_count: int
    lanes: list[_Lane] = field(default_factory=list)
    tried: int = 0
    nodes: int = 0

    @classmethod
    def of(cls, blocks: Blocks) -> "Rectangles | None":
        """From blocks of one member with one alignment; None for any others."""
        if not blocks.rectangles or not blocks.count:
            return None
        unit = int(blocks.alignment[0])
        if (blocks.alignment != unit).any():
            return None
        begin, end = blocks.ranges.begin, blocks.ranges.end
        # Ties go by the blocks' canonical order, so that the input's does not matter.
        order = np.lexsort((-blocks.size, -end, begin))
        size = -(-blocks.size // unit)
        if unit == 1:
            unit = math.gcd(*blocks.size.tolist())
            size = blocks.size // unit
        return cls(
            begin[order],
            end[order],
            size[order],
            (size * unit - blocks.size)[order],
            order,
            unit,
            blocks.ranges.count,
        )

    def __post_init__(self):
        sections = self.section_count
        self.first = np.searchsorted(self.begin, np.arange(sections + 1))
        peak = _range_maxima(self.loads(), self.begin, self.end)
        width = self.end - self.begin
        # Ranks, so that neither the unit of time nor that of memory matters.
        self.preferences = tuple(
            _ranks(key)
            for key in (
                (width, self.size),
                (width * self.size.astype(np.float64), width),
                (self.size, width),
                (peak, width),
                (peak, width * self.size.astype(np.float64)),
                (width, peak),
            )
        )

    def loads(self) -> Int[np.ndarray, " sections"]:
        """`int64[sections]`: the units that are live in each."""
        steps = np.zeros(self.section_count + 1, np.int64)
        np.add.at(steps, self.begin, self.size)
        np.subtract.at(steps, self.end, self.size)
        return np.cumsum(steps)[:-1]

    def makespan_bytes(self, offsets: Int[np.ndarray, " n"]) -> int:
        """The end of the buffer that reaches highest."""
        return int(((offsets + self.size) * self.unit - self.tail).max())

    def base(self, offsets: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Offsets in bytes, one a block, from offsets in units."""
        base = np.empty_like(offsets)
        base[self.block] = offsets * self.unit
        return base

    def preference(self, number: int, noise: float) -> Float[np.ndarray, " n"]:
        """The number-th preference, shaken by noise that its number fixes."""
        ranks = self.preferences[number % len(self.preferences)]
        if noise == 0:
            return ranks
        return ranks + noise * np.random.default_rng(number).random(len(ranks))

    def filled(
        self,
        target_bytes: int,
        tries: int,
        deadline: float,
        watch: Callable[[int], None] = lambda makespan: None,
    ) -> tuple[int, Int[np.ndarray, " n"]]:
        """The best of several fillings, `(makespan_bytes, offsets)`.

        Each preference is tried as it is. Then buffers that ended above the target are
        preferred more the next time (squeaky wheels: Joslin and Clements, JAIR 1999).
        Stops early at the target or when time is up, but tries at least once.
        """
        best, best_offsets = 1 << 62, np.empty(0, np.int64)
        offsets = np.empty(len(self.size), np.int64)
        kinds = len(self.preferences)
        learned = [ranks.copy() for ranks in self.preferences]
        rng = np.random.default_rng(0)
        for number in range(tries):
            fullest = number // kinds % 2 == 1
            preference = learned[number % kinds]
            fill(
                self.begin, self.end, self.size, self.first, preference, fullest,
                np.int64(1 << 62), offsets,
            )  # fmt: skip
            makespan = self.makespan_bytes(offsets)
            if makespan < best:
                best, best_offsets = makespan, offsets.copy()
                watch(best)
                if best <= target_bytes:
                    break
            if number >= 2 * kinds:
                high = (offsets + self.size) * self.unit - self.tail > target_bytes
                preference[high] += 0.05 + 0.1 * rng.random(int(high.sum()))
            if time.monotonic() > deadline:
                break
        return best, best_offsets

    @property
    def searchable(self) -> bool:
        """Whether the exact search can be expected to get anywhere."""
        return len(self.size) <= _SEARCHED_BLOCKS

    @property
    def step_bytes(self) -> int:
        """Makespans are multiples of this."""
        return 1 if self.tail.any() else self.unit

    def attempt(self, capacity_bytes: int, nodes: int):
        """One search in each lane: `(status, offsets in units or None)`.

        The lanes differ in rule and preference, and each attempt goes on to the next.
        """
        if not self.lanes:
            self.lanes = [
                _Lane(np.ones(self.section_count), np.zeros(_REMEMBERED, np.uint64))
                for _ in range(LANES)
            ]
        with ThreadPoolExecutor(LANES) as pool:
            results = list(
                pool.map(
                    lambda lane: self._search_in(lane, capacity_bytes, nodes),
                    range(LANES),
                )
            )
        self.tried += LANES
        self.nodes += sum(opened for _, _, opened in results)
        for status, offsets, _ in results:
            if status != LIMIT:
                return status, offsets
        return LIMIT, None

    def _search_in(self, index: int, capacity_bytes: int, nodes: int):
        lane = self.lanes[index]
        if lane.capacity < capacity_bytes:
            # What failed under less memory may do under more; not the other way.
            lane.failed[:] = 0
        lane.capacity = capacity_bytes
        capacity = capacity_bytes // self.unit
        if self.tail.any():
            # Only a buffer that is short enough may end in the last, partial unit.
            capacity = -(-capacity_bytes // self.unit)
        reach = (capacity_bytes + self.tail) // self.unit
        number = self.tried + index
        if index == LANES - 1 and number > _JOIN_AFTER and self.joinable(capacity):
            return self._search_joined(number, capacity, nodes)
        kinds = len(self.preferences)
        noise = 0.0 if number < kinds * len(_RULES) else 0.3
        offsets = np.full(len(self.size), -1, np.int64)
        status, opened = search(
            self.begin, self.end, self.size, reach, self.first, capacity,
            self.preference(number, noise), _RULES[number // kinds % len(_RULES)],
            nodes, lane.failures, lane.failed, offsets,
        )  # fmt: skip
        return status, offsets if status == SOLVED else None, opened

    def joinable(self, capacity_units: int) -> bool:
        """Whether so little may be wasted that what fits together belongs together."""
        used = float(np.dot(self.size.astype(np.float64), self.end - self.begin))
        full = float(capacity_units) * self.section_count
        return not self.tail.any() and used >= _JOIN_ABOVE * full

    def _search_joined(self, number: int, capacity_units: int, nodes: int):
        """A search on joined buffers: fewer and larger, but no proof if it fails."""
        try_number = number // LANES
        pieces = join(
            self.begin,
            self.end,
            self.size,
            _JOIN_STACKED[try_number % len(_JOIN_STACKED)],
            np.random.default_rng(number),
            _JOIN_SKIPPED[try_number // len(_JOIN_STACKED) % len(_JOIN_SKIPPED)],
        )
        pieces.sort(key=lambda p: (p.begin, -p.end, -p.size, p.members))
        size = np.array([p.size for p in pieces], np.int64)
        joined = Rectangles(
            np.array([p.begin for p in pieces], np.int64),
            np.array([p.end for p in pieces], np.int64),
            size,
            np.zeros_like(size),
            np.arange(len(pieces)),
            1,
            self.section_count,
        )
        lane = _Lane(np.ones(self.section_count), np.zeros(1 << 16, np.uint64))
        opened = 0
        for kind in range(_JOIN_SEARCHES):
            place = np.full(len(pieces), -1, np.int64)
            status, more = search(
                joined.begin, joined.end, size, np.full_like(size, capacity_units),
                joined.first, capacity_units, joined.preference(kind, 0.0),
                _RULES[kind % len(_RULES)], max(1, nodes // _JOIN_SEARCHES),
                lane.failures, lane.failed, place,
            )  # fmt: skip
            opened += more
            if status == SOLVED:
                offsets = np.empty_like(self.size)
                for piece, at in zip(pieces, place, strict=True):
                    for i, offset in piece.members:
                        offsets[i] = at + offset
                return SOLVED, offsets, opened
            if status == FAILED:
                break
        return LIMIT, None, opened


def pack(
    rectangles: Rectangles,
    capacity_bytes: int,
    deadline: float,
    watch: Callable[[], None],
):
    """Searches until there is a packing, a proof that there is none, or no time.

    Returns:
      `(status, offsets in units or None)`.
    """
    nodes = 2000.0
    while time.monotonic() < deadline:
        status, offsets = rectangles.attempt(capacity_bytes, int(nodes))
        if status != LIMIT:
            return status, offsets
        nodes *= 1.04
        watch()
    return LIMIT, None


def tighten(
    rectangles: Rectangles,
    least_bytes: int,
    best_bytes: int,
    deadline: float,
    watch: Callable[[Int[np.ndarray, " n"] | None, int], None],
    nodes: int = 2000,
    rounds: int | None = None,
    attempts: int = _ATTEMPTS,
) -> None:
    """Lowers a makespan towards the least possible, by bisection in growing efforts.

    Args:
      rectangles: What is packed.
      least_bytes: A lower bound.
      best_bytes: A makespan that is known to be possible.
      deadline: When to stop, on `time.monotonic`'s clock.
      watch: Called after each attempt with the offsets found or None, and with the
        lower bound proved so far.
      nodes: How many each attempt may open in the first round; twice as many in the
        next.
      rounds: How many rounds there are; None: until there is nothing left to gain.
      attempts: How many there are for one makespan in a round.
    """
    step = rectangles.step_bytes
    least, best = -(-least_bytes // step), best_bytes // step
    while least < best and time.monotonic() < deadline and rounds != 0:
        rounds = None if rounds is None else rounds - 1
        # `low` is what this round could not reach, proved or not.
        low, target = least - 1, least
        while target < best and time.monotonic() < deadline:
            status, offsets = LIMIT, None
            for _ in range(attempts):
                status, offsets = rectangles.attempt(target * step, nodes)
                if status != LIMIT or time.monotonic() > deadline:
                    break
                watch(None, least * step)
            if offsets is not None:
                best = rectangles.makespan_bytes(offsets) // step
            else:
                low = target
                if status == FAILED:
                    least = max(least, target + 1)
            watch(offsets, least * step)
            target = max(low + 1, low + (best - low) // 2)
        nodes *= 2


def _ranks(keys) -> Float[np.ndarray, " n"]:
    order = np.lexsort(tuple(reversed(keys)))
    ranks = np.empty(len(order))
    ranks[order] = np.arange(len(order)) / max(1, len(order))
    return ranks


def _range_maxima(values, begin, end):
    """Largest value of each half-open range, by a sparse table."""
    table = [values]
    span = 1
    while 2 * span <= len(values):
        table.append(np.maximum(table[-1][:-span], table[-1][span:]))
        span *= 2
    level = np.frexp((end - begin).astype(np.float64))[1] - 1
    result = np.empty(len(begin), np.int64)
    for k in np.unique(level):
        at = level == k
        row = table[k]
        result[at] = np.maximum(row[begin[at]], row[end[at] - (1 << k)])
    return result
