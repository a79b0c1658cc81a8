"""Packing rectangles: what is preferred, tried and given up, without a search."""

import itertools
from typing import Any

import numpy as np
import pytest

from revremat.allocation import AllocationProblem, Buffer, _rectangles
from revremat.allocation._blocks import covering_rectangles, to_blocks
from revremat.allocation._core import Core, complete
from revremat.allocation._rectangles import (
    Rectangles,
    _range_maxima,
    _ranks,
    pack,
    tighten,
)
from revremat.allocation._search import FAILED, LIMIT, SOLVED

NEVER = float("inf")


def rectangles(*rows):
    """From rows of begin, end, bytes and alignment."""
    buffers = [
        Buffer(f"b{k}", a, b, size, *align)
        for k, (a, b, size, *align) in enumerate(rows)
    ]
    return Rectangles.of(to_blocks(AllocationProblem(tuple(buffers))))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9])
def test_the_largest_of_each_range(length):
    values = np.random.default_rng(length).integers(0, 99, length)
    ranges = [*itertools.combinations(range(length + 1), 2)]
    begin, end = np.array(ranges).T
    expected = [max(values[a:b]) for a, b in ranges]
    assert _range_maxima(values, begin, end).tolist() == expected


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        (([3, 1, 2],), [1, 2, 0]),
        (([1, 1, 0], [5, 4, 9]), [2, 1, 0]),
        (([0, 0, 0], [1, 1, 1]), [0, 1, 2]),
        (([7],), [0]),
        (([],), []),
    ],
)
def test_ranks_are_by_the_first_key_and_then_the_others(keys, order):
    ranks = _ranks([np.array(key) for key in keys])
    assert np.argsort(ranks).tolist() == order
    assert sorted(ranks) == [k / max(1, len(order)) for k in range(len(order))]


def test_sizes_are_in_units_and_what_is_lost_of_the_last_is_known():
    found = rectangles((0, 2, 10, 4), (2, 4, 8, 4), (0, 4, 4, 4))
    assert found.unit == 4
    # By begin, the longest first.
    assert found.begin.tolist() == [0, 0, 1]
    assert found.size.tolist() == [1, 3, 2]
    assert found.tail.tolist() == [0, 2, 0]
    offsets = np.array([0, 1, 4])
    assert found.makespan_bytes(offsets) == (4 + 2) * 4
    assert found.makespan_bytes(np.array([0, 3, 0])) == (3 + 3) * 4 - 2
    assert found.loads().tolist() == [4, 3]
    assert found.step_bytes == 1  # a makespan may end within a unit
    base = found.base(offsets)
    assert base[found.block].tolist() == [0, 4, 16]


def test_without_alignments_the_unit_is_what_all_sizes_share():
    found = rectangles((0, 2, 12), (2, 4, 18))
    assert (found.unit, found.size.tolist(), found.step_bytes) == (6, [2, 3], 6)
    assert rectangles((0, 2, 12), (2, 4, 18, 2)) is None  # two alignments
    assert rectangles() is None


@pytest.mark.parametrize(("size", "joins"), [(95, True), (94, True), (93, False)])
def test_what_fits_together_is_joined_where_hardly_anything_is_lost(size, joins):
    found = rectangles((0, 1, size), (1, 2, 1), (1, 2, 99))
    assert found.joinable(100) == joins  # 97 of a hundred are used, in all
    assert not rectangles((0, 1, 99, 2)).joinable(50)  # a part of a unit is lost


def test_a_preference_is_shaken_by_its_number():
    found = rectangles((0, 2, 3), (1, 3, 5), (0, 3, 7))
    kinds = len(found.preferences)
    for number in (0, 1, kinds - 1):
        assert (found.preference(number, 0.0) == found.preferences[number]).all()
        assert (
            found.preference(number + kinds, 0.0) == found.preferences[number]
        ).all()
    shaken = found.preference(1, 0.3) - found.preferences[1]
    assert shaken.min() >= 0
    assert shaken.max() < 0.3
    assert (found.preference(1, 0.3) == found.preference(1, 0.3)).all()
    assert (found.preference(1, 0.3) != found.preference(1 + kinds, 0.3)).any()


def filled(found, target, tries, deadline=NEVER):
    seen: list[int] = []
    best, offsets = found.filled(target, tries, deadline, seen.append)
    assert found.makespan_bytes(offsets) == best == seen[-1]
    assert seen == sorted({*seen}, reverse=True)
    return best, seen


def test_fillings_end_at_the_target_or_when_time_is_up(in_python, monkeypatch):
    found = rectangles((0, 1, 5), (0, 2, 3), (1, 3, 4), (2, 3, 6), (0, 3, 2))
    least = 12  # all that is there at the end
    assert filled(found, least, 24)[0] == least
    calls = itertools.count()
    fill = _rectangles.fill

    def counting(*args):
        next(calls)
        return fill(*args)

    monkeypatch.setattr(_rectangles, "fill", counting)
    filled(found, 10**6, 24)
    assert next(calls) == 1
    filled(found, 0, 24, deadline=0.0)
    assert next(calls) == 1 + 1 + 1
    filled(found, 0, 7)
    assert next(calls) == 3 + 7 + 1


# ---- Which capacities are asked for --------------------------------------------------


class Oracle:
    """In place of rectangles: a packing there is from some capacity on."""

    step_bytes = 2

    def __init__(self, least, proves=True, needs=0):
        self.least, self.proves, self.needs = least, proves, needs
        self.asked: list[tuple[int, int]] = []

    def attempt(self, capacity, nodes):
        self.asked.append((capacity, nodes))
        if nodes < self.needs:
            return LIMIT, None
        if capacity >= self.least:
            return SOLVED, np.array([capacity])
        return (FAILED if self.proves else LIMIT), None

    def makespan_bytes(self, offsets):
        return int(offsets[0])


def tightened(oracle, least, best, **more):
    told: list[Any] = []
    watch = lambda offsets, bound: told.append((offsets is not None, bound))
    tighten(oracle, least, best, NEVER, watch, **more)
    return [capacity for capacity, _ in oracle.asked], told


def test_the_bound_is_asked_first_then_halves():
    asked, told = tightened(Oracle(least=20), 10, 40)
    assert asked == [10, 24, 16, 20, 18]
    assert told[0] == (False, 12)
    assert told[1] == (True, 12)
    assert told[-1] == (False, 20)  # proved: there is nothing left to gain


def test_nothing_is_asked_where_nothing_is_to_be_gained():
    assert tightened(Oracle(least=20), 20, 20) == ([], [])
    assert tightened(Oracle(least=20), 10, 40, rounds=0) == ([], [])
    late: Any = Oracle(least=20)
    tighten(late, 10, 40, 0.0, lambda *_: None)
    assert late.asked == []


def test_what_the_bound_is_not_known_for_is_tried_so_often_and_twice_as_long():
    oracle = Oracle(least=12, proves=False)
    asked, _ = tightened(oracle, 10, 12, rounds=3, attempts=4, nodes=50)
    assert asked == [10] * 12
    assert [nodes for _, nodes in oracle.asked] == [50] * 4 + [100] * 4 + [200] * 4


def test_a_packing_found_later_is_found():
    oracle = Oracle(least=16, needs=200)
    asked, told = tightened(oracle, 16, 40, attempts=1, nodes=100)
    assert asked[-1] == 16
    assert oracle.asked[-1][1] == 200
    assert told[-1] == (True, 16)


@pytest.mark.parametrize(("least", "status"), [(20, SOLVED), (21, FAILED)])
def test_a_capacity_is_tried_with_ever_more_effort(least, status):
    oracle: Any = Oracle(least, needs=2100)
    watched = itertools.count()
    found, offsets = pack(oracle, 20, NEVER, lambda: next(watched))
    assert found == status
    assert (offsets is not None) == (status == SOLVED)
    assert [nodes for _, nodes in oracle.asked] == [2000, 2080, 2163]
    assert next(watched) == 2
    assert pack(oracle, 20, 0.0, lambda: None) == (LIMIT, None)


# ---- Blocks and cores ----------------------------------------------------------------


def test_rectangles_cover_blocks_of_other_shapes():
    buffers = (
        Buffer("a", 0, 2, 5, 1, "g"),
        Buffer("b", 1, 4, 3, 4, "g"),
        Buffer("c", 2, 3, 8),
    )
    found = covering_rectangles(to_blocks(AllocationProblem(buffers)))
    assert found.height.tolist() == [11, 8]  # with the padding between a and b
    assert found.alignment.tolist() == [4, 4]
    assert found.ranges.begin.tolist() == [0, 1]
    assert (found.ranges.end - found.ranges.begin).tolist()[0] >= 2
    assert found.rectangles
    assert covering_rectangles(to_blocks(AllocationProblem(()))) is None
    odd = tuple(Buffer(f"b{k}", 0, 1, 3, align) for k, align in enumerate((3, 5, 7)))
    assert covering_rectangles(to_blocks(AllocationProblem(odd))) is None


@pytest.mark.parametrize("bundle", [0, 4, 5])
def test_a_core_has_the_buffers_over_its_sections(bundle):
    whole = rectangles((0, 1, 3), (1, 2, 4), (1, 2, 5), (2, 3, 2), (0, 3, 1))
    core = Core.of(whole, np.array([False, True, False]), bundle)
    assert sorted(whole.size[core.inside].tolist()) == [1, 4, 5]
    # All lie over the whole core: they are one bundle.
    assert len(core.rectangles.size) == 1
    placed = np.zeros(len(core.rectangles.size), np.int64)
    offsets = core.spread(placed)
    assert (offsets < 0).tolist() == (~core.inside).tolist()
    inside = sorted(
        (offsets[k], offsets[k] + whole.size[k]) for k in np.flatnonzero(core.inside)
    )
    assert [a for a, _ in inside] == [0, *(b for _, b in inside[:-1])]


def test_small_buffers_of_one_range_are_bundled():
    rows = [(0, 2, 1), (0, 2, 2), (0, 2, 3), (0, 1, 4), (1, 2, 4), (2, 3, 9)]
    whole = rectangles(*rows)
    kept = np.array([True] * whole.section_count)
    count = lambda bundle: len(Core.of(whole, kept, bundle).rectangles.size)
    # 1, 2 and 3 of one range: all alone, two and one, all three.
    assert [count(bundle) for bundle in (0, 2, 3, 5, 6)] == [6, 6, 5, 5, 4]


def test_what_lies_beside_a_core_is_placed_around_it(in_python):
    whole = rectangles((0, 1, 3), (1, 2, 4), (1, 2, 5), (2, 3, 2), (0, 3, 1))
    core = Core.of(whole, np.array([False, True, False]), 0)
    offsets = core.spread(np.zeros(len(core.rectangles.size), np.int64))
    found = complete(whole, offsets, core.inside, 1000)
    assert (found >= 0).all()
    assert (found[core.inside] == offsets[core.inside]).all()
    tops = found + whole.size
    assert tops[~core.inside].max() <= tops[core.inside].max()
    beyond = complete(whole, offsets, core.inside, 0)
    assert (beyond[~core.inside] >= 1).any()
