"""Valley filling: a fast packing of rectangles, one pass, no backtracking.

The skyline of what is placed is kept as plateaus. The lowest one is taken; of the
buffers that fit into it the preferred one is laid there, or, where none fits, it is
lifted to its lower rim. If asked, buffers over the plateau's fullest section go first.
This is the best-fit skyline rule of strip packing (Burke et al., Operations Research
2004) with the horizontal places fixed by time.
"""

import heapq
from typing import Any

import numpy as np

from revremat._numba import njit

_FAR = np.int64(1 << 62)


@njit
def fill(begin, end, size, first, preference, fullest, ceiling, offsets):
    """Packs rectangles; writes `offsets` and returns the makespan.

    Args:
      begin, end: `int64[n]`, the sections of each buffer, sorted by `begin`.
      size: `int64[n]`, positive.
      first: `int64[sections + 1]`, the first buffer with `begin >= s`.
      preference: `float64[n]`; of the buffers that fit the largest is taken.
      fullest: Whether those over the section with most left to place go first.
      ceiling: Gives up, returning what it reached, once the makespan is this or more.
      offsets: `int64[n]`, written.
    """
    count, sections = begin.shape[0], first.shape[0] - 1
    # following[i]: the first buffer from i on that is not placed, by path halving.
    following = np.arange(count + 1)
    plateau_end = np.zeros(sections, np.int64)  # 0: no plateau begins here
    height = np.zeros(sections, np.int64)
    begin_of = np.zeros(sections + 1, np.int64)  # of the plateau that ends here
    plateau_end[0] = sections
    heap: Any = [(np.int64(0), np.int64(0), np.int64(sections))]
    rest = np.zeros(sections if fullest else 0, np.int64)  # bytes left to place
    if fullest:
        for b in range(count):
            for s in range(begin[b], end[b]):
                rest[s] += size[b]
    makespan = np.int64(0)
    remaining = count
    while remaining > 0:
        floor, left, right = heapq.heappop(heap)
        if plateau_end[left] != right or height[left] != floor:
            continue  # merged or split since it was pushed
        asked = left
        if fullest:
            for s in range(left, right):
                if rest[s] > rest[asked]:
                    asked = s
        best = np.int64(-1)
        best_is_over = False
        i = first[left]
        while True:
            while following[i] != i:
                following[i] = following[following[i]]
                i = following[i]
            if i >= first[right]:
                break
            if end[i] <= right:
                over = fullest and begin[i] <= asked and end[i] > asked
                if (
                    best < 0
                    or (over and not best_is_over)
                    or (over == best_is_over and preference[i] > preference[best])
                ):
                    best, best_is_over = i, over
            i += 1
        left_rim = height[begin_of[left]] if left > 0 else _FAR
        right_rim = height[right] if right < sections else _FAR
        plateau_end[left] = 0
        if best < 0:
            top = min(left_rim, right_rim)
            start, stop = left, right
        else:
            following[best] = best + 1
            offsets[best] = floor
            remaining -= 1
            top = floor + size[best]
            makespan = max(makespan, top)
            if makespan >= ceiling:
                return makespan
            start, stop = begin[best], end[best]
            if fullest:
                for s in range(start, stop):
                    rest[s] -= size[best]
            if left < start:
                plateau_end[left], height[left], begin_of[start] = start, floor, left
                heapq.heappush(heap, (floor, left, start))
            if stop < right:
                plateau_end[stop], height[stop], begin_of[right] = right, floor, stop
                heapq.heappush(heap, (floor, stop, right))
        if start == left and left_rim == top:
            start = begin_of[left]
        if stop == right and right_rim == top:
            stop = plateau_end[right]
            plateau_end[right] = 0
        plateau_end[start], height[start], begin_of[stop] = stop, top, start
        heapq.heappush(heap, (top, start, stop))
    return makespan
