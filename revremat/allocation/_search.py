"""Exact search for a packing within a capacity, as one compiled kernel.

Packings are canonical: every buffer rests on the ground or on another one (Moffitt,
"MiniMalloc", ASPLOS 2023), so in a valley of the skyline the lowest buffer over a
section either rests exactly on the floor, and then lies wholly within the valley, or
leaves a gap that is at least as high as the valley's lower rim or the smallest buffer
that fits beside it. That gap is charged to the section at once.

The search asks the section with the fewest such answers first (relative to how often it
has failed: dom/wdeg, Boussemart et al., ECAI 2004), solves parts of time that no
remaining buffer connects one by one, and remembers what failed under a 64-bit hash.
"""

from typing import Any

import numpy as np

from revremat._numba import njit
from revremat.allocation._skyline import (
    PLACED,
    TRAILED,
    Buffers,
    empty_scratch,
    empty_skyline,
    gap,
    grown,
    grown_rows,
    lift,
    place,
    raise_floor,
    state_hash,
    survey,
    undo,
)

SOLVED, FAILED, LIMIT = 1, 0, 2

# Columns of a frame, and the two kinds of it.
(_KIND, _PARENT, _BEGIN, _END, _TRAIL, _LIFTED, _PLACED, _POOL, _NEXT, _LAST,
 _SECTION) = range(11)  # fmt: skip
_COLUMNS = 11
_PARTS, _ANSWERS = 0, 1


@njit
def _list_parts(left, right, buffers, sky, pool, pooled):
    """Writes to the pool the parts of [left, right) that no remaining buffer connects.

    Three numbers each, its sections and how many buffers remain over them: the part
    with the fewest first, as what fails should fail early.

    Returns:
      The pool, and how much of it is in use.
    """
    first, offsets = buffers.first, sky.offsets
    rest, bridges = sky.rest, sky.bridges
    bottom, start = pooled, left
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
            pool = grown(pool)
        at = pooled
        while at > bottom and pool[at - 1] > here:
            for x in range(at, at + 3):
                pool[x] = pool[x - 3]
            at -= 3
        pool[at], pool[at + 1], pool[at + 2] = start, stop, here
        pooled += 3
        start = stop
    return pool, pooled


@njit
def _list_answers(section, buffers, sky, scratch, preference, pool, pooled):
    """Writes to the pool the buffers that can rest on a section's floor.

    Preferred ones come first; of buffers that are exactly alike there is one.

    Returns:
      The pool, and how much of it is in use.
    """
    begin, end, size, reach = buffers.begin, buffers.end, buffers.size, buffers.reach
    start, stop = scratch.valley_begin[section], scratch.valley_end[section]
    offsets, height = sky.offsets, sky.floor[section]
    bottom = pooled
    for b in range(buffers.first[start], buffers.first[section + 1]):
        if offsets[b] >= 0 or end[b] <= section or end[b] > stop:
            continue
        if height + size[b] > reach[b]:
            continue
        at = pooled
        is_alike = False
        while at > bottom and preference[pool[at - 1]] < preference[b]:
            at -= 1
        for x in range(bottom, pooled):
            c = pool[x]
            same_span = begin[c] == begin[b] and end[c] == end[b]
            if same_span and size[c] == size[b] and reach[c] == reach[b]:
                is_alike = True
                break
        if is_alike:
            continue
        if pooled + 2 > pool.shape[0]:
            pool = grown(pool)
        for x in range(pooled, at, -1):
            pool[x] = pool[x - 1]
        pool[at] = b
        pooled += 1
    return pool, pooled


@njit
def _next_answer(frame, buffers, sky, capacity, pool, trail):
    """Gives the next answer to a frame's section: a buffer, and a gap as the last.

    Returns:
      Whether there was one left, and the trail.
    """
    section = frame[_SECTION]
    if frame[_NEXT] < frame[_LAST]:
        b = pool[frame[_NEXT]]
        frame[_NEXT] += 1
        return True, place(b, sky.floor[section], buffers, sky, trail)
    if frame[_NEXT] == frame[_LAST]:
        frame[_NEXT] += 1
        height = gap(frame[_BEGIN], frame[_END], section, buffers, sky)
        if height + sky.rest[section] <= capacity:
            return True, raise_floor(section, height, sky, trail)
    return False, trail


@njit
def search(
    begin, end, size, reach, first, capacity, preference, rule, nodes, failures,
    failed, offsets,
):  # fmt: skip
    """Looks for a packing; writes it to `offsets` when there is one.

    Args:
      begin, end, size, reach, first: The buffers, as `Buffers` has them.
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
    buffers = Buffers(begin, end, size, reach, first)
    sky = empty_skyline(buffers, offsets)
    sections = sky.floor.shape[0]
    for s in range(sections):
        if sky.rest[s] > capacity:
            return FAILED, 0
    scratch = empty_scratch(sections)
    mask = np.uint64(failed.shape[0] - 1)

    trail: Any = np.empty((1 << 12, 2), np.int64)
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
            while left < right and sky.rest[left] == 0:
                left += 1
            if left == right:
                status = SOLVED
                continue
            if depth == frames.shape[0]:
                frames = grown_rows(frames)
                hashes = grown(hashes)
            frame = frames[depth]
            frame[_PARENT] = parent
            frame[_TRAIL], frame[_PLACED] = sky.used[TRAILED], sky.used[PLACED]
            frame[_POOL] = frame[_NEXT] = pooled
            pool, pooled = _list_parts(left, right, buffers, sky, pool, pooled)
            left, right = pool[frame[_POOL]], pool[frame[_POOL] + 1]
            if pooled - frame[_POOL] > 3:
                frame[_KIND] = _PARTS
                frame[_LAST] = pooled
                frame[_NEXT] += 3
                parent = np.int64(depth)
                depth += 1
                continue

            frame[_KIND] = _ANSWERS
            pooled -= 3
            frame[_BEGIN], frame[_END] = left, right
            lifted = 1
            while lifted > 0:
                opened += 1
                if opened > nodes:
                    return LIMIT, opened
                lifted, trail = lift(
                    left, right, buffers, sky, capacity, failures, scratch.least, trail
                )
            section = np.int64(-1)
            if lifted == 0:
                section = survey(
                    left, right, buffers, sky, capacity, rule, failures, scratch
                )
                name = state_hash(left, right, buffers, sky)
                if failed[name & mask] == name:
                    section = np.int64(-1)
                hashes[depth] = name
            if section < 0:
                undo(frame[_TRAIL], frame[_PLACED], buffers, sky, trail)
                status = FAILED
                continue
            frame[_SECTION] = section
            frame[_LIFTED] = sky.used[TRAILED]
            frame[_NEXT] = pooled
            pool, pooled = _list_answers(
                section, buffers, sky, scratch, preference, pool, pooled
            )
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
            undo(frame[_LIFTED], frame[_PLACED], buffers, sky, trail)
            left, right = frame[_BEGIN], frame[_END]
            answered, trail = _next_answer(frame, buffers, sky, capacity, pool, trail)
            if answered:
                status = LIMIT
                continue
            failed[hashes[parent] & mask] = hashes[parent]
        if status == FAILED:
            undo(frame[_TRAIL], frame[_PLACED], buffers, sky, trail)
        depth, pooled, parent = parent, frame[_POOL], frame[_PARENT]
