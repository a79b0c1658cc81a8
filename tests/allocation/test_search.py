"""The exact search, run as Python: what it lists, what it proves, and how soon."""

from types import SimpleNamespace

import numpy as np
import pytest

from revremat.allocation import AllocationProblem, Buffer
from revremat.allocation._blocks import to_blocks
from revremat.allocation._rectangles import Rectangles
from revremat.allocation._search import (
    FAILED,
    LIMIT,
    SOLVED,
    _list_answers,
    _list_parts,
    search,
)
from revremat.allocation._skyline import FEWEST, LOWEST, WEIGHTED, Buffers

from .families import full_sections, guillotine, least_by_trying_all, small

FAR = 1 << 62


def searched(rectangles, capacity, rule, nodes=10_000, failed=None):
    """Status, offsets and how many nodes were opened."""
    count = len(rectangles.size)
    offsets = np.full(count, -1)
    status, opened = search(
        *(rectangles.begin, rectangles.end, rectangles.size),
        *(np.full(count, capacity), rectangles.first, capacity),
        *(rectangles.preference(0, 0.0), rule, nodes),
        np.ones(rectangles.section_count),
        np.zeros(1 << 12, np.uint64) if failed is None else failed,
        offsets,
    )
    return status, offsets, opened


def overlaps(rectangles, offsets, capacity):
    tops = offsets + rectangles.size
    a, b, c, d = (
        one[:, None] for one in (rectangles.begin, rectangles.end, offsets, tops)
    )
    clash = (a < b.T) & (b > a.T) & (c < d.T) & (d > c.T)
    return np.triu(clash, 1).any() or offsets.min() < 0 or tops.max() > capacity


@pytest.mark.parametrize("rule", [LOWEST, FEWEST, WEIGHTED])
def test_it_packs_where_there_is_a_packing_and_proves_where_not(rule, in_python):
    for seed in range(12):
        problem = small(seed, "")
        rectangles = Rectangles.of(to_blocks(problem))
        if rectangles is None:
            continue
        least = least_by_trying_all(problem) // rectangles.unit
        status, offsets, _ = searched(rectangles, least, rule)
        assert status == SOLVED
        assert not overlaps(rectangles, offsets, least)
        assert searched(rectangles, least - 1, rule)[0] == FAILED


@pytest.mark.parametrize("rule", [LOWEST, FEWEST, WEIGHTED])
def test_no_more_nodes_are_opened_than_were_allowed(rule, in_python):
    rectangles = Rectangles.of(to_blocks(full_sections(46, 10, 12)))
    status, _, needed = searched(rectangles, 12, rule)
    assert status == FAILED
    for nodes in (0, 1, needed - 1):
        assert searched(rectangles, 12, rule, nodes)[::2] == (LIMIT, nodes + 1)
    assert searched(rectangles, 12, rule, needed)[0] == FAILED


def test_what_failed_once_is_known_the_next_time(in_python):
    rectangles = Rectangles.of(to_blocks(full_sections(46, 10, 12)))
    failed = np.zeros(1 << 12, np.uint64)
    _, _, first = searched(rectangles, 12, FEWEST, failed=failed)
    assert np.count_nonzero(failed) > 1
    status, _, second = searched(rectangles, 12, FEWEST, failed=failed)
    assert (status, second) == (FAILED, 1)
    assert first > 2


def test_a_section_above_the_capacity_opens_no_node(in_python):
    rectangles = Rectangles.of(to_blocks(full_sections(3, 5, 9)))
    assert searched(rectangles, 8, FEWEST)[::2] == (FAILED, 0)


def apart(one, other):
    """Two problems, one after the other."""
    shift = 1 + max(b.upper for b in one.buffers)
    moved = [
        Buffer(f"m{b.id}", b.lower + shift, b.upper + shift, b.size_bytes)
        for b in other.buffers
    ]
    return AllocationProblem((*one.buffers, *moved))


@pytest.mark.parametrize("rule", [FEWEST, WEIGHTED])
def test_parts_that_nothing_connects_are_searched_one_by_one(rule, in_python):
    one, other = full_sections(46, 10, 12), full_sections(5, 8, 12)
    nodes = []
    for problem in (one, other, apart(one, other), apart(other, one)):
        rectangles = Rectangles.of(to_blocks(problem))
        nodes.append(searched(rectangles, 12, rule)[2])
    assert nodes[2] <= nodes[0] + nodes[1] + 2
    assert nodes[3] <= nodes[0] + nodes[1] + 2


@pytest.mark.parametrize("rule", [LOWEST, FEWEST, WEIGHTED])
def test_little_is_tried_in_vain(rule, in_python):
    nodes = 0
    for seed in range(60):
        rectangles = Rectangles.of(to_blocks(full_sections(seed, 10, 14)))
        nodes += searched(rectangles, 14 // rectangles.unit, rule)[2]
    assert nodes <= 2250  # 37 a problem of some 20 buffers
    nodes = 0
    for seed in range(10):
        problem = guillotine(30, seed, capacity=64, span=64, unit=1)
        rectangles = Rectangles.of(to_blocks(problem))
        status, _, opened = searched(rectangles, 64 // rectangles.unit, rule)
        assert status == SOLVED
        nodes += opened
    assert nodes <= 310  # of 30 buffers each, hardly one is placed twice


# ---- What is listed at a node --------------------------------------------------------


def test_parts_of_time_come_with_the_fewest_buffers_first(in_python):
    begin = np.array([0, 0, 0, 3, 5, 5])
    end = np.array([1, 2, 2, 4, 6, 6])
    buffers = Buffers(
        begin, end, np.ones(6), np.full(6, FAR), np.searchsorted(begin, range(7))
    )
    sky = SimpleNamespace(
        offsets=np.full(6, -1),
        rest=np.array([3, 2, 0, 1, 0, 2]),
        bridges=np.array([2, 0, 0, 0, 0, 0]),
    )
    for size, start in ((1, 0), (12, 2)):
        pool, pooled = _list_parts(0, 6, buffers, sky, np.zeros(size, int), start)
        assert pool[start:pooled].tolist() == [3, 4, 1, 5, 6, 2, 0, 2, 3]
    pool, pooled = _list_parts(1, 4, buffers, sky, np.zeros(9, int), 0)
    assert pool[:pooled].tolist() == [1, 2, 0, 3, 4, 1]
    sky.offsets[[4, 5]] = 0
    sky.rest[5] = 0
    pool, pooled = _list_parts(0, 6, buffers, sky, np.zeros(9, int), 0)
    assert pool[:pooled].tolist() == [3, 4, 1, 0, 2, 3]


def answers(rows, section, stop, height=0, placed=(), reach=FAR, preference=None):
    """Of buffers by begin, end and size, those listed: in a valley from 1 to `stop`."""
    rows = sorted(rows)
    begin, end, size = np.array(rows).T
    preference = np.arange(len(rows)) if preference is None else np.array(preference)
    first = np.searchsorted(begin, range(int(end.max()) + 2))
    sky = SimpleNamespace(
        offsets=np.array([0 if k in placed else -1 for k in range(len(rows))]),
        floor=np.full(9, height),
    )
    scratch = SimpleNamespace(valley_begin=[1] * 9, valley_end=[stop] * 9)
    buffers = Buffers(begin, end, size, np.full(len(rows), reach), first)
    pool, pooled = _list_answers(
        section, buffers, sky, scratch, preference, np.full(3, 77), 2
    )
    assert pool[:2].tolist() == [77, 77]
    return [rows[k] for k in pool[2:pooled]]


def test_answers_lie_over_the_section_and_within_its_valley(in_python):
    rows = [(0, 3, 1), (1, 2, 1), (1, 3, 1), (2, 3, 1), (2, 5, 1), (2, 4, 1), (3, 4, 1)]
    assert answers(rows, 2, 4) == [(2, 4, 1), (2, 3, 1), (1, 3, 1)]
    assert answers(rows, 1, 4) == [(1, 3, 1), (1, 2, 1)]
    assert answers(rows, 2, 5)[0] == (2, 5, 1)
    assert answers(rows, 2, 4, placed=[2, 4]) == [(2, 3, 1)]


def test_answers_end_below_their_reach(in_python):
    rows = [(1, 2, 3), (1, 2, 4), (1, 2, 5)]
    assert answers(rows, 1, 2, height=2, reach=6) == [(1, 2, 4), (1, 2, 3)]
    assert answers(rows, 1, 2, height=3, reach=6) == [(1, 2, 3)]


def test_preferred_answers_come_first_and_of_those_alike_one(in_python):
    rows = [(1, 2, 3), (1, 2, 4), (1, 3, 3), (1, 3, 4)]
    assert answers(rows, 1, 3, preference=[2, 4, 1, 3]) == [
        rows[k] for k in (1, 3, 0, 2)
    ]
    # The first of those equally preferred.
    assert answers(rows, 1, 3, preference=[1, 2, 1, 2]) == [
        rows[k] for k in (1, 3, 0, 2)
    ]
    twice = [*rows, *rows]
    assert len(answers(twice, 1, 3)) == len(rows)
