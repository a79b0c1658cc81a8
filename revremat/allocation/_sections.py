"""Lifetimes as ranges of sections, and the bound that each section proves."""

import itertools
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int

from revremat.allocation._problem import AllocationProblem


@dataclass(frozen=True)
class Section:
    """Buffers that are all live at one time: their bytes cannot be shared.

    This is the certificate of a lower bound, and anyone can check it: every buffer
    named is live at `time`, no two of them are placed over one another, and their sizes
    (rounded up to the common alignment for all but one) add up to `size_bytes`.

    Attributes:
      time: A time step at which all of them are live; None where some are not, but the
        relation keeps those apart from each other buffer named.
      ids: The buffers; of those that share one place only the largest.
      size_bytes: What they take together.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, lower_bound
      >>> problem = AllocationProblem((Buffer("a", 0, 2, 4), Buffer("b", 1, 3, 8)))
      >>> section = lower_bound(problem)
      >>> section.time, section.ids
      (1, ('a', 'b'))
    """

    time: int | None
    ids: tuple[str, ...]
    size_bytes: int

    def __str__(self) -> str:
        shown = ", ".join(self.ids[:4]) + (", ..." if len(self.ids) > 4 else "")
        when = (
            "must all be kept apart"
            if self.time is None
            else f"are live at time {self.time}"
        )
        return (
            f"{len(self.ids)} buffers ({shown}) {when} and take {self.size_bytes} bytes"
        )


@dataclass(frozen=True)
class SectionRanges:
    """Each lifetime as a half-open range of sections.

    Only sections whose set of live buffers is not contained in a neighbour's are kept;
    two lifetimes overlap exactly if their ranges do.

    Attributes:
      begin: `int64[n]`, first section of each buffer.
      end: `int64[n]`, first section after each buffer.
      times: `int64[sections]`, a time step inside each section.
    """

    begin: Int[np.ndarray, " n"]
    end: Int[np.ndarray, " n"]
    times: Int[np.ndarray, " sections"]

    @property
    def count(self) -> int:
        """How many sections there are."""
        return len(self.times)

    def loads(self, sizes: Int[np.ndarray, " n"]) -> Int[np.ndarray, " sections"]:
        """`int64[sections]`: the sum of the sizes that are live in each."""
        steps = np.zeros(self.count + 1, np.int64)
        np.add.at(steps, self.begin, sizes)
        np.subtract.at(steps, self.end, sizes)
        return np.cumsum(steps)[:-1]


def section_ranges(
    lower: Int[np.ndarray, " n"], upper: Int[np.ndarray, " n"]
) -> SectionRanges:
    """Cuts half-open lifetimes, `int64[n]` each, into maximal sections."""
    starts, ends = np.unique(lower), np.unique(upper)
    # A section is maximal where the event after a start is an end: of the starts that
    # have one next end, the last.
    next_end = np.searchsorted(ends, starts, side="right")
    last = np.ones(len(starts), bool)
    last[:-1] = next_end[1:] != next_end[:-1]
    times = starts[last]
    begin = np.searchsorted(times, lower, side="left")
    end = np.searchsorted(times, upper, side="left")
    return SectionRanges(begin.astype(np.int64), end.astype(np.int64), times)


_PADDINGS_TRIED = 64
_CLIQUES_TRIED = 16


def lower_bound(problem: AllocationProblem) -> Section:
    """The most bytes that are live at one time, and the section that proves it.

    Where every offset is a multiple of some number, all but one of a section's sizes
    count rounded up to it. Where there is a relation, buffers that it keeps apart from
    all of a section are counted with it.

    Args:
      problem: The buffers, with their relation where they have one.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, lower_bound
      >>> problem = AllocationProblem((Buffer("a", 0, 2, 4), Buffer("b", 1, 3, 8)))
      >>> lower_bound(problem).size_bytes
      12
    """
    if not problem.buffers:
        return Section(0, (), 0)
    lower, upper, sizes, owner = _pieces(problem)
    unit = int(np.gcd.reduce(problem.alignments_bytes))
    padded = -(-sizes // unit) * unit
    padding = padded - sizes
    ranges = section_ranges(lower, upper)
    loads = ranges.loads(padded)
    best, best_bytes = 0, -1
    for s in np.argsort(-loads, kind="stable")[:_PADDINGS_TRIED]:
        if loads[s] <= best_bytes:
            break
        live = (ranges.begin <= s) & (s < ranges.end)
        # The topmost buffer needs no padding after it.
        size = int(loads[s] - padding[live].max(initial=0))
        if size > best_bytes:
            best, best_bytes = int(s), size
    live = np.flatnonzero((ranges.begin <= best) & (best < ranges.end) & (sizes > 0))
    ids = tuple(problem.buffers[owner[i]].id for i in live)
    section = Section(int(ranges.times[best]), ids, best_bytes)
    if problem.relation is None or problem.in_place:
        return section
    clique = _largest_clique(problem, ranges, loads, padded, padding)
    return max(section, clique, key=lambda s: s.size_bytes)


def _largest_clique(problem, ranges, loads, padded, padding) -> Section:
    """The best of several sets of buffers that all conflict, each grown by size.

    It starts from the fullest sections and, where nothing fits beside a whole section,
    from its largest buffers.
    """
    relation = problem.relation
    best, best_bytes = np.zeros(0, np.int64), -1
    for s in np.argsort(-loads, kind="stable")[:_CLIQUES_TRIED]:
        inside = np.flatnonzero((ranges.begin <= s) & (s < ranges.end) & (padded > 0))
        by_size = inside[np.argsort(-padded[inside], kind="stable")]
        for kept in {
            len(by_size),
            (3 * len(by_size) + 3) // 4,
            (len(by_size) + 1) // 2,
        }:
            members = list(by_size[:kept])
            common = padded > 0
            for i in members:
                common &= _conflicts_of(i, ranges, relation)
            while common.any():
                rest = np.flatnonzero(common)
                chosen = int(rest[np.argmax(padded[rest])])
                members.append(chosen)
                common &= _conflicts_of(chosen, ranges, relation)
            size = int(padded[members].sum() - padding[members].max(initial=0))
            if size > best_bytes:
                best, best_bytes = np.sort(np.array(members, np.int64)), size
    return Section(None, tuple(problem.buffers[i].id for i in best), best_bytes)


def _conflicts_of(i, ranges: SectionRanges, relation) -> Bool[np.ndarray, " n"]:
    live = (ranges.begin < ranges.end[i]) & (ranges.begin[i] < ranges.end)
    live |= relation.row(i)
    live[i] = False
    return live


def _pieces(problem: AllocationProblem):
    """Lifetimes, sizes and owners; of buffers in place the largest live counts."""
    lower, upper, sizes = problem.lower, problem.upper, problem.sizes_bytes
    owner = np.arange(len(sizes))
    if not problem.in_place:
        return lower, upper, sizes, owner
    keep = np.ones(len(sizes), bool)
    pieces: list[tuple[int, int, int, int]] = []
    for ids in problem.in_place:
        members = [problem.index[id] for id in ids]
        keep[members] = False
        events = sorted({t for i in members for t in (int(lower[i]), int(upper[i]))})
        for a, b in itertools.pairwise(events):
            live = [i for i in members if lower[i] <= a and b <= upper[i]]
            if live:
                largest = max(live, key=lambda i: sizes[i])
                pieces.append((a, b, int(sizes[largest]), largest))
    extra = np.array(pieces, np.int64).reshape(-1, 4).T
    return tuple(
        np.concatenate([old[keep], new])
        for old, new in zip((lower, upper, sizes, owner), extra, strict=True)
    )
