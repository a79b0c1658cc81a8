"""Judges an allocation by the definition alone; shares no code with the solvers."""

import bisect
import itertools
from collections.abc import Sequence

import numpy as np

from revremat._errors import UserError
from revremat.allocation._problem import AllocationProblem


class InvalidAllocation(UserError):
    """Offsets that break a rule; the message names the buffers and their places.

    Args:
      message: Which rule, and where.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, InvalidAllocation
      >>> from revremat.allocation import validate
      >>> problem = AllocationProblem((Buffer("a", 0, 2, 4), Buffer("b", 1, 3, 8)))
      >>> try:
      ...     validate(problem, [0, 0])
      ... except InvalidAllocation:
      ...     print("they overlap")
      they overlap
    """


def validate(
    problem: AllocationProblem,
    offsets_bytes: Sequence[int],
    capacity_bytes: int | None = None,
) -> int:
    """Checks every rule and returns the makespan in bytes.

    No two buffers that are live together, or that the relation keeps apart, overlap in
    memory; offsets are aligned and not negative; groups lie back to back in order; in
    place means one offset; all of it lies within the capacity, if one is given.

    Args:
      problem: The buffers.
      offsets_bytes: One for each, in the order of the problem.
      capacity_bytes: What all of it has to stay within.

    Raises:
      InvalidAllocation: The first rule found broken, and where.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, validate
      >>> problem = AllocationProblem((Buffer("a", 0, 2, 4), Buffer("b", 1, 3, 8)))
      >>> validate(problem, [0, 4])
      12
    """
    buffers = problem.buffers
    if len(offsets_bytes) != len(buffers):
        raise InvalidAllocation(
            f"{len(offsets_bytes)} offsets are given for {len(buffers)} buffers"
        )
    offsets = [int(offset) for offset in offsets_bytes]
    makespan = 0
    for buffer, offset in zip(buffers, offsets, strict=True):
        if offset < 0:
            raise InvalidAllocation(f"buffer {buffer.id!r} is placed at {offset}")
        if offset % buffer.alignment_bytes:
            raise InvalidAllocation(
                f"buffer {buffer.id!r} is placed at {offset}, which is no multiple of "
                f"its alignment of {buffer.alignment_bytes} bytes"
            )
        makespan = max(makespan, offset + buffer.size_bytes)
    if capacity_bytes is not None and makespan > capacity_bytes:
        raise InvalidAllocation(
            f"the allocation takes {makespan} bytes but the capacity is "
            f"{capacity_bytes} bytes"
        )
    for name, members in problem.groups.items():
        for i, j in itertools.pairwise(members):
            align = buffers[j].alignment_bytes
            expected = -(-(offsets[i] + buffers[i].size_bytes) // align) * align
            if offsets[j] != expected:
                raise InvalidAllocation(
                    f"buffer {buffers[j].id!r} of group {name!r} is placed at "
                    f"{offsets[j]} but must follow {buffers[i].id!r} at {expected}"
                )
    place_of: dict[int, int] = {}
    for number, ids in enumerate(problem.in_place):
        members = [problem.index[id] for id in ids]
        places = {offsets[i] for i in members}
        if len(places) > 1:
            raise InvalidAllocation(f"{ids!r} must have one offset, not {places!r}")
        place_of.update(dict.fromkeys(members, number))
    _check_live_pairs(problem, offsets, place_of)
    if problem.relation is not None:
        _check_related_pairs(problem, offsets, place_of)
    return makespan


def _check_live_pairs(problem, offsets, place_of):
    """Sweeps through time; what is live lies in `live`, sorted by place."""
    buffers = problem.buffers
    events = sorted(
        [(b.upper, 0, i) for i, b in enumerate(buffers) if b.size_bytes]
        + [(b.lower, 1, i) for i, b in enumerate(buffers) if b.size_bytes]
    )
    live: list[tuple[int, int, int]] = []
    for _, starts, i in events:
        entry = (offsets[i], offsets[i] + buffers[i].size_bytes, i)
        at = bisect.bisect_left(live, entry)
        if not starts:
            del live[at]
            continue
        mine = place_of.get(i, -1)
        before, after = at - 1, at
        while before >= 0 and mine >= 0 and place_of.get(live[before][2]) == mine:
            before -= 1
        while after < len(live) and mine >= 0 and place_of.get(live[after][2]) == mine:
            after += 1
        if before >= 0 and live[before][1] > entry[0]:
            _raise_overlap(problem, offsets, live[before][2], i, "both are live")
        if after < len(live) and live[after][0] < entry[1]:
            _raise_overlap(problem, offsets, live[after][2], i, "both are live")
        live.insert(at, entry)


def _check_related_pairs(problem, offsets, place_of):
    start = np.array(offsets, np.int64)
    stop = start + problem.sizes_bytes
    for i in range(len(offsets)):
        clash = problem.relation.row(i) & (start < stop[i]) & (start[i] < stop)
        clash &= problem.sizes_bytes > 0
        for j in np.flatnonzero(clash):
            same_place = i in place_of and place_of[i] == place_of.get(int(j))
            if problem.sizes_bytes[i] > 0 and not same_place:
                _raise_overlap(problem, offsets, j, i, "the relation keeps them apart")


def _raise_overlap(problem, offsets, i, j, why):
    a, b = problem.buffers[i], problem.buffers[j]
    raise InvalidAllocation(
        f"buffers {a.id!r} at {offsets[i]} and {b.id!r} at {offsets[j]} overlap in "
        f"memory although {why}"
    )
