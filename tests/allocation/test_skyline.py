"""What a partial packing leaves free: by the definitions, and back as it was."""

import random

import numpy as np
import pytest

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
    undo,
)

FAR = 1 << 62


def buffers_of(rows):
    begin, end, size = np.array(sorted(rows)).T
    first = np.searchsorted(begin, range(int(end.max()) + 1))
    return Buffers(begin, end, size, np.full(len(size), FAR), first)


def drawn(seed, most=8):
    """Buffers over sections that all have some."""
    draw = random.Random(seed)
    sections = draw.randint(2, 7)
    rows = [(s, s + 1, draw.randint(1, 5)) for s in range(sections)]
    for _ in range(draw.randint(1, most)):
        lower = draw.randrange(sections)
        rows.append((lower, draw.randint(lower + 1, sections), draw.randint(1, 5)))
    return buffers_of(rows)


def nothing_placed(buffers):
    return empty_skyline(buffers, np.full(len(buffers.size), -1))


def state(sky):
    return [part.tolist() for part in (sky.offsets, sky.floor, sky.rest, sky.bridges)]


def over(buffers, sky, s):
    """Buffers over a section that are not placed yet."""
    return [
        b
        for b in range(len(buffers.size))
        if sky.offsets[b] < 0 and buffers.begin[b] <= s < buffers.end[b]
    ]


def check(buffers, sky, floor):
    """What is left over each section, and each two, by the definition."""
    sections = range(len(sky.floor))
    assert sky.floor.tolist() == floor
    assert sky.rest.tolist() == [
        sum(buffers.size[b] for b in over(buffers, sky, s)) for s in sections
    ]
    both = [{*over(buffers, sky, s)} & {*over(buffers, sky, s + 1)} for s in sections]
    assert sky.bridges.tolist() == [len(shared) for shared in both]


@pytest.mark.parametrize("seed", range(12))
def test_what_was_placed_and_raised_is_taken_back_to_any_mark(seed, in_python):
    buffers, draw = drawn(seed), random.Random(seed)
    sky, trail = nothing_placed(buffers), np.empty((1, 2), np.int64)
    count, floor = len(buffers.size), [0] * (len(buffers.first) - 1)
    check(buffers, sky, floor)
    marks, order = [], list(range(count))
    draw.shuffle(order)
    for b in order:
        marks.append((*sky.used, state(sky), [*floor]))
        if draw.random() < 0.4:
            s = draw.randrange(len(floor))
            floor[s] += draw.randint(1, 4)
            trail = raise_floor(s, floor[s], sky, trail)
        span = slice(buffers.begin[b], buffers.end[b])
        height = max(floor[span])
        trail = place(b, height, buffers, sky, trail)
        floor[span] = [height + int(buffers.size[b])] * len(floor[span])
        assert sky.offsets[b] == height
        check(buffers, sky, floor)
    assert sky.placed.tolist() == order
    assert sky.used[PLACED] == count
    while marks:
        at = draw.randrange(len(marks))
        *used, before, floor = marks[at]
        undo(used[TRAILED], used[PLACED], buffers, sky, trail)
        assert state(sky) == before
        assert sky.used.tolist() == used
        check(buffers, sky, floor)
        del marks[at:]


def lifted(buffers, sky):
    """Each floor at the lowest place of what remains over it, by the definition."""
    lowest = lambda b: max(sky.floor[buffers.begin[b] : buffers.end[b]])
    return [
        max([h, min([lowest(b) for b in over(buffers, sky, s)], default=FAR)])
        for s, h in enumerate(sky.floor.tolist())
    ]


@pytest.mark.parametrize("seed", range(20))
def test_floors_rise_to_where_something_has_to_lie(seed, in_python):
    buffers, draw = drawn(seed), random.Random(seed)
    sections = len(buffers.first) - 1
    sky, trail = nothing_placed(buffers), np.empty((1, 2), np.int64)
    for s in range(sections):
        trail = raise_floor(s, draw.choice([0, 0, 2, 5, 9]), sky, trail)
    wanted, before, used = lifted(buffers, sky), sky.floor.tolist(), sky.used.tolist()
    need = max([h + r for h, r in zip(wanted, sky.rest.tolist(), strict=True)])
    failures, least = np.ones(sections), np.empty(sections, np.int64)
    run = lambda capacity: lift(
        0, sections, buffers, sky, capacity, failures, least, trail
    )
    if wanted != before:
        # No floor is raised where one of them would leave too little above it.
        beyond = [
            s
            for s in range(sections)
            if wanted[s] > before[s] and wanted[s] + sky.rest[s] == need
        ]
        if beyond:
            assert run(need - 1)[0] == -1
            assert sky.floor.tolist() == before
            assert failures.tolist() == [
                1.0 + (s == beyond[0]) for s in range(sections)
            ]
    result, trail = run(need)
    assert result == (wanted != before)
    assert sky.floor.tolist() == wanted
    undo(*used, buffers, sky, trail)
    assert sky.floor.tolist() == before


@pytest.mark.parametrize(
    ("floor", "rows", "section", "least"),
    [
        # Nothing may rest there: up to the lower rim, or a buffer beside it.
        ((5, 0, 7), [(1, 2, 1)], 1, 5),
        ((7, 0, 5), [(1, 2, 1)], 1, 5),
        ((0, 3, 7), [(0, 1, 1)], 0, 3),
        ((7, 3, 0), [(2, 3, 1)], 2, 3),
        ((9, 1, 1, 9), [(1, 2, 3), (2, 3, 4)], 2, 4),
        ((9, 1, 1, 9), [(1, 2, 3), (2, 3, 4)], 1, 5),
        ((9, 1, 1, 1, 9), [(1, 2, 5), (3, 4, 2), (2, 3, 1)], 2, 3),
        (
            (9, 1, 1, 1, 9),
            [(1, 3, 2), (2, 4, 3), (3, 4, 6)],
            2,
            7,
        ),  # over it: not beside
        ((4, 1, 1, 9), [(1, 2, 3), (2, 3, 8)], 2, 4),  # as high as the rim
        ((4, 1, 1, 9), [(2, 4, 1), (0, 2, 1), (1, 2, 9)], 2, 4),  # reaches beyond
        ((1, 1), [(0, 1, 2), (1, 2, 7)], 1, 3),
    ],
)
def test_the_gap_below_which_nothing_rests(floor, rows, section, least, in_python):
    count = len(floor)
    buffers = buffers_of([*rows, (0, count, 50)])
    sky = nothing_placed(buffers)
    sky.floor[:] = floor
    assert gap(0, count, section, buffers, sky) == least


def test_what_lies_already_or_beyond_a_part_makes_no_gap(in_python):
    buffers = buffers_of([(0, 1, 2), (1, 2, 7), (1, 2, 4), (0, 3, 50)])
    sky = nothing_placed(buffers)
    sky.floor[:] = (1, 1, 3)
    assert gap(0, 3, 1, buffers, sky) == 3
    assert gap(0, 3, 0, buffers, sky) == 3  # the rim, before 1 + 4
    assert gap(0, 2, 0, buffers, sky) == 1 + 4
    sky.offsets[buffers.size.tolist().index(2)] = 0
    assert gap(0, 2, 1, buffers, sky) == FAR


def test_a_goal_has_one_name_however_it_was_reached(in_python):
    buffers = buffers_of([(0, 1, 2), (0, 1, 3), (1, 2, 4), (0, 2, 1)])
    trail = np.empty((16, 2), np.int64)

    def name(*order, left=0, right=2, raised=()):
        sky = nothing_placed(buffers)
        for b in order:
            at = max(sky.floor[buffers.begin[b] : buffers.end[b]])
            place(b, at, buffers, sky, trail)
        for s in raised:
            raise_floor(s, 40, sky, trail)
        found = state_hash(left, right, buffers, sky)
        assert found % 2 == 1  # 0 stands for none
        return found

    both = sorted(range(4), key=lambda b: (buffers.end[b] - buffers.begin[b], b))[:2]
    assert name(*both) == name(*reversed(both))
    others = [name(), *(name(b) for b in range(4)), name(*both), name(raised=[0])]
    others += [name(raised=[1]), name(raised=[0, 1]), name(left=1), name(right=1)]
    assert len({*others}) == len(others)
    # What lies outside of the sections says nothing.
    assert name(raised=[1], right=1) == name(right=1)
    assert name(raised=[0], left=1) == name(left=1)


def test_room_that_has_grown_holds_what_it_held(in_python):
    rows = np.arange(6).reshape(3, 2)
    assert grown(rows[:, 0])[:3].tolist() == [0, 2, 4]
    assert grown(rows[:, 0]).shape == (6,)
    assert grown_rows(rows)[:3].tolist() == rows.tolist()
    assert grown_rows(rows).shape == (6, 2)
    assert [len(part) for part in empty_scratch(3)] == [4, 3, 3, 3, 3]
    assert empty_scratch(3).answers.tolist() == [0] * 4
