"""Valley filling, step by step: the same as by its rule on plain lists."""

import random

import numpy as np
import pytest

from revremat.allocation._fill import fill

FAR = 1 << 62


def by_the_rule(begin, end, size, preference, fullest):
    """Offsets: the lowest run of equal height takes the preferred buffer within it."""
    count, sections = len(size), int(max(end))
    height, offsets, left = [0] * sections, [-1] * count, set(range(count))
    while left:
        low = min(height)
        start = height.index(low)
        stop = start
        while stop < sections and height[stop] == low:
            stop += 1
        within = [i for i in sorted(left) if start <= begin[i] and end[i] <= stop]
        rest = [0] * sections
        for i in left:
            for s in range(begin[i], end[i]):
                rest[s] += size[i]
        asked = max(range(start, stop), key=rest.__getitem__)
        if not within:
            rims = [height[s] for s in (start - 1, stop) if 0 <= s < sections]
            height[start:stop] = [min(rims)] * (stop - start)
            continue
        over = {i: fullest and begin[i] <= asked < end[i] for i in within}
        best = max((over[i], preference[i], -i, i) for i in within)[-1]
        left.remove(best)
        offsets[best] = low
        top = low + size[best]
        height[begin[best] : end[best]] = [top] * (end[best] - begin[best])
    return offsets


def drawn(seed):
    """Buffers in order of their begin, over sections that all have some; with ties."""
    draw = random.Random(seed)
    sections = draw.randint(1, 9)
    rows = [(s, s + 1, draw.randint(1, 5)) for s in range(sections)]
    for _ in range(draw.randint(0, 12)):
        lower = draw.randrange(sections)
        rows.append((lower, draw.randint(lower + 1, sections), draw.randint(1, 5)))
    begin, end, size = np.array(sorted(rows)).T
    first = np.searchsorted(begin, range(sections + 1))
    preference = np.array([draw.randrange(4) for _ in size], float)
    return begin, end, size, first, preference


@pytest.mark.parametrize("fullest", [False, True])
def test_the_lowest_valley_takes_the_preferred_buffer(fullest, in_python):
    for seed in range(60):
        begin, end, size, first, preference = drawn(seed)
        offsets = np.full(len(size), -1)
        makespan = fill(begin, end, size, first, preference, fullest, FAR, offsets)
        assert offsets.tolist() == by_the_rule(begin, end, size, preference, fullest)
        assert makespan == (offsets + size).max()


def test_it_gives_up_where_it_reaches_the_ceiling(in_python):
    begin, end, size, first = (
        np.array([0, 0]),
        np.array([1, 1]),
        np.array([4, 3]),
        [0, 2],
    )
    reached = lambda ceiling: fill(
        begin, end, size, np.array(first), np.array([2.0, 1.0]), False, ceiling, offsets
    )
    for ceiling, makespan, second in ((8, 7, 4), (7, 7, 4), (5, 7, 4), (4, 4, -1)):
        offsets = np.full(2, -1)
        assert (reached(ceiling), offsets[1]) == (makespan, second)
