"""Exact search for a packing within a capacity, as one compiled kernel.

Time is cut into sections. Each keeps a *floor*, below which nothing more is placed, and
the *rest*, the bytes still to be placed over it: `floor + rest <= capacity` is the
cross-section bound. Packings are canonical: every buffer rests on the ground or on
another one (Moffitt, "MiniMalloc", ASPLOS 2023), so in a *valley*, a run of sections
with one floor and higher neighbours, the lowest buffer over a section either rests
exactly on the floor, and then lies wholly within the valley, or leaves a gap that is at
least as high as the valley's lower rim or the smallest buffer that fits beside it.
That gap is charged to the section at once.

The search asks the section with the fewest such answers first (relative to how often it
has failed: dom/wdeg, Boussemart et al., ECAI 2004), solves parts of time that no
remaining buffer connects one by one, and remembers what failed under a 64-bit hash.
"""

from typing import Any

import numba
import numpy as np

SOLVED, FAILED, LIMIT = 1, 0, 2

LOWEST, FEWEST, WEIGHTED = 0, 1, 2
"""Which section is asked first: in the lowest valley; with the fewest answers; with the
fewest for its weight."""

_FAR = np.int64(1 << 62)

# Columns of a frame, and the two kinds of it.
(_KIND, _PARENT, _BEGIN, _END, _TRAIL, _LIFTED, _PLACED, _POOL, _NEXT, _LAST,
 _SECTION) = range(11)  # fmt: skip
_COLUMNS = 11
_PARTS, _ANSWERS = 0, 1


@numba.njit(cache=True, nogil=True, inline="always")
def _mix(x):
    """SplitMix64's finaliser (Steele et al., OOPSLA 2014)."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@numba.njit(cache=True, nogil=True)
def _grown(array):
    larger = np.empty(2 * array.shape[0], array.dtype)
    for i in range(array.shape[0]):
        larger[i] = array[i]
    return larger


@numba.njit(cache=True, nogil=True)
def _grown_rows(array):
    larger = np.empty((2 * array.shape[0], array.shape[1]), array.dtype)
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            larger[i, j] = array[i, j]
    return larger


@numba.njit(cache=True, nogil=True)
def _lift(
    left, right, begin, end, first, capacity, offsets, floor, rest, failures, least
):
    """Writes to `least` what each floor can be lifted to.

    A buffer lies no lower than the highest floor below it; a floor, no lower than the
    lowest place of the buffers that remain over it.

    Returns:
      1 if a floor can be lifted, 0 if none can, -1 if one is lifted beyond hope.
    """
    for s in range(left, right):
        least[s] = _FAR
    for b in range(first[left], first[right]):
        if offsets[b] >= 0:
            continue
        place = floor[begin[b]]
        for s in range(begin[b] + 1, end[b]):
            if floor[s] > place:
                place = floor[s]
        for s in range(begin[b], end[b]):
            if place < least[s]:
                least[s] = place
    lifted = 0
    for s in range(left, right):
        if least[s] > floor[s]:
            if least[s] + rest[s] > capacity:
                failures[s] += 1.0
                return -1
            lifted = 1
    return lifted


@numba.njit(cache=True, nogil=True)
def _survey(
    left, right, begin, end, size, first, capacity, rule, offsets, floor, rest,
    failures, answers, smallest, valley_begin, valley_end,
):  # fmt: skip
    """Finds the valleys of [left, right) and the section to ask."""
    s = left
    while s < right:
        stop = s + 1
        height = floor[s]
        while stop < right and floor[stop] == height:
            stop += 1
        low = (s == left or floor[s - 1] > height) and (
            stop == right or floor[stop] > height
        )
        for x in range(s, stop):
            valley_begin[x] = s
            valley_end[x] = stop if low else -1
        smallest[s] = _FAR
        s = stop
    for s in range(left, right + 1):
        answers[s] = 0
    for b in range(first[left], first[right]):
        if offsets[b] < 0 and end[b] <= valley_end[begin[b]]:
            answers[begin[b]] += 1
            answers[end[b]] -= 1
            v = valley_begin[begin[b]]
            if size[b] < smallest[v]:
                smallest[v] = size[b]
    running = 0
    best_key = 1e300
    best = left
    for s in range(left, right):
        running += answers[s]
        stop = valley_end[s]
        if stop < 0:
            continue
        start = valley_begin[s]
        rim = _rim(left, right, start, stop, floor)
        choices = running
        if min(rim, floor[s] + smallest[start]) + rest[s] <= capacity:
            choices += 1
        if rule == LOWEST:
            key = floor[s] * 4096.0 + choices
        elif rule == FEWEST:
            key = choices + floor[s] / capacity
        else:
            key = choices / failures[s]
        if key < best_key:
            best_key = key
            best = s
    return best


@numba.njit(cache=True, nogil=True, inline="always")
def _rim(left, right, start, stop, floor):
    """The lower of the two floors beside a valley, within [left, right)."""
    rim = _FAR
    if start > left:
        rim = floor[start - 1]
    if stop < right and floor[stop] < rim:
        rim = floor[stop]
    return rim


@numba.njit(cache=True, nogil=True)
def _state_hash(left, right, first, floor, offsets):
    """Names a goal: its sections, their floors, and what remains over them."""
    total = _mix(np.uint64(left) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(right))
    for s in range(left, right):
        total += _mix(
            _mix(np.uint64(floor[s])) + np.uint64(s) * np.uint64(0x9E3779B97F4A7C15)
        )
    for b in range(first[left], first[right]):
        if offsets[b] < 0:
            total += _mix(~(np.uint64(b) * np.uint64(0xD1342543DE82EF95)))
    return total | np.uint64(1)


@numba.njit(cache=True, nogil=True)
def _gap(left, right, section, begin, end, size, first, offsets, floor):
    """The least floor over a section on which no buffer rests directly."""
    height = floor[section]
    start, stop = section, section + 1
    while start > left and floor[start - 1] == height:
        start -= 1
    while stop < right and floor[stop] == height:
        stop += 1
    gap = _rim(left, right, start, stop, floor)
    for b in range(first[start], first[stop]):
        if offsets[b] < 0 and end[b] <= stop:
            beside = begin[b] > section or end[b] <= section
            if beside and height + size[b] < gap:
                gap = height + size[b]
    return gap


@numba.njit(cache=True, nogil=True)
def _undo(
    to_placed, placements, to_trail, trailed, begin, end, size, offsets, floor, rest,
    bridges, trail, placed,
):  # fmt: skip
    """Takes back placements and floors down to two marks."""
    for x in range(placements - 1, to_placed - 1, -1):
        b = placed[x]
        offsets[b] = -1
        for s in range(begin[b], end[b]):
            rest[s] += size[b]
        for s in range(begin[b], end[b] - 1):
            bridges[s] += 1
    for x in range(trailed - 1, to_trail - 1, -1):
        floor[trail[x, 0]] = trail[x, 1]


@numba.njit(cache=True, nogil=True)
def search(
    begin, end, size, reach, first, capacity, preference, rule, nodes, failures,
    failed, offsets,
):  # fmt: skip
    """Looks for a packing; writes it to `offsets` when there is one.

    Args:
      begin, end: `int64[n]`, the half-open range of sections of each buffer, sorted by
        `begin`.
      size: `int64[n]`, positive.
      reach: `int64[n]`, how far up the end of each buffer may lie.
      first: `int64[sections + 1]`, the first buffer with `begin >= s`.
      capacity: The ceiling.
      preference: `float64[n]`; of two answers the one with the larger is tried first.
      rule: LOWEST, FEWEST or WEIGHTED.
      nodes: How many nodes may be opened.
      failures: `float64[sections]`, how often each failed, from 1 on; updated.
      failed: `uint64[2 ** k]`, hashes of states known to have no packing; updated. They
        hold for one capacity only.
      offsets: `int64[n]`, filled with -1.

    Returns:
      `(status, nodes opened)`; FAILED is a proof that there is no packing.
    """
    count = begin.shape[0]
    sections = first.shape[0] - 1
    floor = np.zeros(sections, np.int64)
    rest = np.zeros(sections, np.int64)
    bridges = np.zeros(sections, np.int64)  # remaining buffers over s and s + 1
    for b in range(count):
        for s in range(begin[b], end[b]):
            rest[s] += size[b]
        for s in range(begin[b], end[b] - 1):
            bridges[s] += 1
    for s in range(sections):
        if rest[s] > capacity:
            return FAILED, 0

    answers = np.zeros(sections + 1, np.int64)
    smallest = np.empty(sections, np.int64)
    least = np.empty(sections, np.int64)
    valley_begin = np.empty(sections, np.int64)
    valley_end = np.empty(sections, np.int64)
    mask = np.uint64(failed.shape[0] - 1)

    trail: Any = np.empty((1 << 12, 2), np.int64)  # (section, floor it had)
    trailed = 0
    placed = np.empty(count, np.int64)
    placements = 0
    pool: Any = np.empty(1 << 12, np.int64)  # parts of time, or answers, of each frame
    pooled = 0
    frames: Any = np.empty((1 << 8, _COLUMNS), np.int64)
    hashes: Any = np.empty(1 << 8, np.uint64)
    depth = 0

    opened = 0
    parent = np.int64(-1)
    left: Any = np.int64(0)
    right: Any = np.int64(sections)
    status = LIMIT  # LIMIT while a goal is entered, else what the goal came to
    while True:
        if status == LIMIT:
            # The goal: place all that remains over [left, right).
            while left < right and rest[left] == 0:
                left += 1
            if left == right:
                status = SOLVED
                continue
            if depth == frames.shape[0]:
                frames = _grown_rows(frames)
                hashes = _grown(hashes)
            frame = frames[depth]
            frame[_PARENT] = parent
            frame[_TRAIL] = trailed
            frame[_PLACED] = placements
            frame[_POOL] = pooled
            frame[_NEXT] = pooled
            start = left
            while start < right:
                if rest[start] == 0:
                    start += 1
                    continue
                stop = start + 1
                while stop < right and bridges[stop - 1] > 0:
                    stop += 1
                here = 0
                for b in range(first[start], first[stop]):
                    if offsets[b] < 0:
                        here += 1
                while pooled + 3 > pool.shape[0]:
                    pool = _grown(pool)
                # The part with the fewest buffers first: what fails, fails early.
                at = pooled
                while at > frame[_POOL] and pool[at - 1] > here:
                    for x in range(at, at + 3):
                        pool[x] = pool[x - 3]
                    at -= 3
                pool[at], pool[at + 1], pool[at + 2] = start, stop, here
                pooled += 3
                start = stop
            if pooled - frame[_POOL] > 3:
                frame[_KIND] = _PARTS
                frame[_LAST] = pooled
                parent = np.int64(depth)
                depth += 1
                left, right = pool[frame[_POOL]], pool[frame[_POOL] + 1]
                frame[_NEXT] += 3
                continue

            frame[_KIND] = _ANSWERS
            left, right = pool[frame[_POOL]], pool[frame[_POOL] + 1]
            pooled -= 3
            frame[_BEGIN], frame[_END] = left, right
            while True:
                opened += 1
                if opened > nodes:
                    return LIMIT, opened
                lifted = _lift(
                    left, right, begin, end, first, capacity, offsets, floor, rest,
                    failures, least,
                )  # fmt: skip
                if lifted <= 0:
                    break
                while trailed + right - left > trail.shape[0]:
                    trail = _grown_rows(trail)
                for s in range(left, right):
                    if least[s] > floor[s]:
                        trail[trailed, 0], trail[trailed, 1] = s, floor[s]
                        trailed += 1
                        floor[s] = least[s]
            section = np.int64(-1)
            if lifted == 0:
                section = _survey(
                    left, right, begin, end, size, first, capacity, rule, offsets,
                    floor, rest, failures, answers, smallest, valley_begin, valley_end,
                )  # fmt: skip
            if section >= 0:
                name = _state_hash(left, right, first, floor, offsets)
                if failed[name & mask] == name:
                    section = np.int64(-1)
                hashes[depth] = name
            if section < 0:
                _undo(
                    frame[_PLACED], placements, frame[_TRAIL], trailed, begin, end,
                    size, offsets, floor, rest, bridges, trail, placed,
                )  # fmt: skip
                trailed, placements = frame[_TRAIL], frame[_PLACED]
                status = FAILED
                continue
            frame[_SECTION] = section
            frame[_LIFTED] = trailed
            frame[_NEXT] = pooled
            start, stop = valley_begin[section], valley_end[section]
            for b in range(first[start], first[section + 1]):
                if offsets[b] >= 0 or end[b] <= section or end[b] > stop:
                    continue
                if floor[section] + size[b] > reach[b]:
                    continue
                at = pooled
                twin = False
                while at > frame[_NEXT] and preference[pool[at - 1]] < preference[b]:
                    at -= 1
                for x in range(frame[_NEXT], pooled):
                    c = pool[x]
                    same_span = begin[c] == begin[b] and end[c] == end[b]
                    if same_span and size[c] == size[b] and reach[c] == reach[b]:
                        twin = True
                        break
                if twin:
                    continue
                if pooled + 2 > pool.shape[0]:
                    pool = _grown(pool)
                for x in range(pooled, at, -1):
                    pool[x] = pool[x - 1]
                pool[at] = b
                pooled += 1
            frame[_LAST] = pooled
            parent = np.int64(depth)
            depth += 1
            status = FAILED  # no answer has been tried: go on with the first
            continue

        if parent < 0:
            return status, opened
        frame = frames[parent]
        depth = parent + 1
        pooled = frame[_LAST]
        if frame[_KIND] == _PARTS:
            if status == SOLVED and frame[_NEXT] < frame[_LAST]:
                left, right = pool[frame[_NEXT]], pool[frame[_NEXT] + 1]
                frame[_NEXT] += 3
                status = LIMIT
                continue
        elif status == FAILED:
            _undo(
                frame[_PLACED], placements, frame[_LIFTED], trailed, begin, end, size,
                offsets, floor, rest, bridges, trail, placed,
            )  # fmt: skip
            placements, trailed = frame[_PLACED], frame[_LIFTED]
            left, right, section = frame[_BEGIN], frame[_END], frame[_SECTION]
            if frame[_NEXT] < frame[_LAST]:
                b = pool[frame[_NEXT]]
                frame[_NEXT] += 1
                while trailed + end[b] - begin[b] > trail.shape[0]:
                    trail = _grown_rows(trail)
                height = floor[section]
                offsets[b] = height
                placed[placements] = b
                placements += 1
                for s in range(begin[b], end[b]):
                    trail[trailed, 0], trail[trailed, 1] = s, height
                    trailed += 1
                    floor[s] = height + size[b]
                    rest[s] -= size[b]
                for s in range(begin[b], end[b] - 1):
                    bridges[s] -= 1
                status = LIMIT
                continue
            if frame[_NEXT] == frame[_LAST]:
                frame[_NEXT] += 1
                gap = _gap(
                    left, right, section, begin, end, size, first, offsets, floor
                )
                if gap + rest[section] <= capacity:
                    if trailed == trail.shape[0]:
                        trail = _grown_rows(trail)
                    trail[trailed, 0], trail[trailed, 1] = section, floor[section]
                    trailed += 1
                    floor[section] = gap
                    status = LIMIT
                    continue
            failed[hashes[parent] & mask] = hashes[parent]
        if status == FAILED:
            _undo(
                frame[_PLACED], placements, frame[_TRAIL], trailed, begin, end, size,
                offsets, floor, rest, bridges, trail, placed,
            )  # fmt: skip
            placements, trailed = frame[_PLACED], frame[_TRAIL]
        depth, pooled, parent = parent, frame[_POOL], frame[_PARENT]
