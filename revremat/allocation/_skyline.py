"""What a partial packing leaves free: floors, valleys and what remains over them.

Time is cut into sections. Each keeps a *floor*, below which nothing more is placed, and
the *rest*, the bytes still to be placed over it: `floor + rest <= capacity` is the
cross-section bound. A *valley* is a run of sections with one floor and higher
neighbours.
"""

import functools
from typing import Any, NamedTuple

import numpy as np

from revremat._numba import njit

LOWEST, FEWEST, WEIGHTED = 0, 1, 2
"""Which section is asked first: in the lowest valley; with the fewest answers; with the
fewest for its weight."""

TRAILED, PLACED = 0, 1
"""What `Skyline.used` counts: rows of the trail, and buffers that are placed."""

_FAR = np.int64(1 << 62)


class Buffers(NamedTuple):
    """What is to be packed, sorted by `begin`.

    Attributes:
      begin, end: `int64[n]`, the half-open range of sections of each buffer.
      size: `int64[n]`, positive.
      reach: `int64[n]`, how far up the end of each buffer may lie.
      first: `int64[sections + 1]`, the first buffer with `begin >= s`.
    """

    begin: Any
    end: Any
    size: Any
    reach: Any
    first: Any


class Skyline(NamedTuple):
    """What is placed so far; its arrays are changed in place.

    Attributes:
      offsets: `int64[n]`, -1 where a buffer is not placed yet.
      floor: `int64[sections]`.
      rest: `int64[sections]`.
      bridges: `int64[sections]`, remaining buffers over both `s` and `s + 1`.
      placed: `int64[n]`, buffers in the order in which they were placed.
      used: `int64[2]`, how much of the trail and of `placed` is in use. The trail,
        `int64[rows, 2]`, holds sections and the floors they had; it grows, so those who
        raise floors take it and return it.
    """

    offsets: Any
    floor: Any
    rest: Any
    bridges: Any
    placed: Any
    used: Any


class Scratch(NamedTuple):
    """Room for one survey, kept from node to node."""

    answers: Any
    smallest: Any
    least: Any
    valley_begin: Any
    valley_end: Any


@njit
def empty_skyline(buffers, offsets):
    """Nothing is placed; `offsets` is full of -1, and filled from now on."""
    count, sections = buffers.begin.shape[0], buffers.first.shape[0] - 1
    rest = np.zeros(sections, np.int64)
    bridges = np.zeros(sections, np.int64)
    for b in range(count):
        for s in range(buffers.begin[b], buffers.end[b]):
            rest[s] += buffers.size[b]
        for s in range(buffers.begin[b], buffers.end[b] - 1):
            bridges[s] += 1
    floor, used = np.zeros(sections, np.int64), np.zeros(2, np.int64)
    placed = np.empty(count, np.int64)
    return Skyline(offsets, floor, rest, bridges, placed, used)


@njit
def empty_scratch(sections):
    return Scratch(
        np.zeros(sections + 1, np.int64),
        np.empty(sections, np.int64),
        np.empty(sections, np.int64),
        np.empty(sections, np.int64),
        np.empty(sections, np.int64),
    )


@njit
def grown(array):
    larger = np.empty(2 * array.shape[0], array.dtype)
    for i in range(array.shape[0]):
        larger[i] = array[i]
    return larger


@njit
def grown_rows(array):
    larger = np.empty((2 * array.shape[0], array.shape[1]), array.dtype)
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            larger[i, j] = array[i, j]
    return larger


# Floors -----------------------------------------------------------------------------


@njit
def _room_for(more, sky, trail):
    """The trail, or a larger copy of it, with so many rows free."""
    while sky.used[TRAILED] + more > trail.shape[0]:
        trail = grown_rows(trail)
    return trail


@njit
def raise_floor(s, height, sky, trail):
    """Raises one floor; the trail remembers what it was."""
    trail = _room_for(1, sky, trail)
    x = sky.used[TRAILED]
    trail[x, 0], trail[x, 1] = s, sky.floor[s]
    sky.floor[s] = height
    sky.used[TRAILED] = x + 1
    return trail


@njit
def lift(left, right, buffers, sky, capacity, failures, least, trail):
    """Raises each floor of [left, right) to what has to lie above it anyway.

    A buffer lies no lower than the highest floor below it; a floor, no lower than the
    lowest place of the buffers that remain over it.

    Returns:
      1 if a floor was raised, 0 if none can be, -1 if one would be beyond hope; and the
      trail.
    """
    begin, end, first = buffers.begin, buffers.end, buffers.first
    floor, rest, offsets = sky.floor, sky.rest, sky.offsets
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
                return -1, trail
            lifted = 1
    if lifted:
        trail = _room_for(right - left, sky, trail)
        x = sky.used[TRAILED]
        for s in range(left, right):
            if least[s] > floor[s]:
                trail[x, 0], trail[x, 1] = s, floor[s]
                x += 1
                floor[s] = least[s]
        sky.used[TRAILED] = x
    return lifted, trail


@njit
def place(b, height, buffers, sky, trail):
    """Places a buffer with its lower edge at a height."""
    begin, end, size = buffers.begin[b], buffers.end[b], buffers.size[b]
    floor, rest, bridges = sky.floor, sky.rest, sky.bridges
    sky.offsets[b] = height
    sky.placed[sky.used[PLACED]] = b
    sky.used[PLACED] += 1
    trail = _room_for(end - begin, sky, trail)
    x = sky.used[TRAILED]
    for s in range(begin, end):
        trail[x, 0], trail[x, 1] = s, floor[s]
        x += 1
        floor[s] = height + size
        rest[s] -= size
    sky.used[TRAILED] = x
    for s in range(begin, end - 1):
        bridges[s] -= 1
    return trail


@njit
def undo(trailed, placed, buffers, sky, trail):
    """Takes back floors and placements down to two marks."""
    begin, end, size = buffers.begin, buffers.end, buffers.size
    floor, rest, bridges = sky.floor, sky.rest, sky.bridges
    for x in range(sky.used[PLACED] - 1, placed - 1, -1):
        b = sky.placed[x]
        sky.offsets[b] = -1
        for s in range(begin[b], end[b]):
            rest[s] += size[b]
        for s in range(begin[b], end[b] - 1):
            bridges[s] += 1
    for x in range(sky.used[TRAILED] - 1, trailed - 1, -1):
        floor[trail[x, 0]] = trail[x, 1]
    sky.used[TRAILED], sky.used[PLACED] = trailed, placed


# Valleys ----------------------------------------------------------------------------


@functools.partial(njit, inline="always")
def _rim(left, right, start, stop, floor):
    """The lower of the two floors beside a valley, within [left, right)."""
    rim = _FAR
    if start > left:
        rim = floor[start - 1]
    if stop < right and floor[stop] < rim:
        rim = floor[stop]
    return rim


@njit
def survey(left, right, buffers, sky, capacity, rule, failures, scratch):
    """Finds the valleys of [left, right) and the section to ask."""
    begin, end, size, first = buffers.begin, buffers.end, buffers.size, buffers.first
    floor, rest, offsets = sky.floor, sky.rest, sky.offsets
    answers, smallest = scratch.answers, scratch.smallest
    valley_begin, valley_end = scratch.valley_begin, scratch.valley_end
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


@njit
def gap(left, right, section, buffers, sky):
    """The least floor over a section on which no buffer rests directly."""
    begin, end, floor = buffers.begin, buffers.end, sky.floor
    height = floor[section]
    start, stop = section, section + 1
    while start > left and floor[start - 1] == height:
        start -= 1
    while stop < right and floor[stop] == height:
        stop += 1
    least = _rim(left, right, start, stop, floor)
    for b in range(buffers.first[start], buffers.first[stop]):
        if sky.offsets[b] < 0 and end[b] <= stop:
            beside = begin[b] > section or end[b] <= section
            if beside and height + buffers.size[b] < least:
                least = height + buffers.size[b]
    return least


# Names of states --------------------------------------------------------------------


@functools.partial(njit, inline="always")
def _mix(x):
    """SplitMix64's finaliser (Steele et al., OOPSLA 2014)."""
    x ^= x >> np.uint64(30)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@njit
def state_hash(left, right, buffers, sky):
    """Names a goal: its sections, their floors, and what remains over them."""
    first, floor, offsets = buffers.first, sky.floor, sky.offsets
    total = _mix(np.uint64(left) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(right))
    for s in range(left, right):
        total += _mix(
            _mix(np.uint64(floor[s])) + np.uint64(s) * np.uint64(0x9E3779B97F4A7C15)
        )
    for b in range(first[left], first[right]):
        if offsets[b] < 0:
            total += _mix(~(np.uint64(b) * np.uint64(0xD1342543DE82EF95)))
    return total | np.uint64(1)
