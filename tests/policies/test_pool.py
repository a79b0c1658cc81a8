"""Which of many candidates are worth a compile: a table of costs, no program."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from revremat import INVERT, RECOMPUTE, SAVE
from revremat.policies import Candidate, Cost
from revremat.policies._candidates import (
    _area,
    _below,
    _distinct,
    _spread,
    _undominated,
    _with_unique_names,
)
from revremat.policies._shortlist import bytes_in_question, shortlist


def named(names):
    """Candidates by letters, each an action of its own."""
    return [Candidate(name, RECOMPUTE(save=[name])) for name in names]


def cost_in(costs):
    return lambda candidate: Cost(*costs[candidate.name])


@pytest.mark.parametrize(
    ("costs", "left"),
    [
        ({"a": (100, 10), "b": (200, 20)}, "a"),
        ({"a": (100, 20), "b": (200, 10)}, "ab"),
        ({"a": (100, 10), "b": (100, 20)}, "a"),
        ({"a": (100, 10), "b": (200, 10)}, "a"),
        ({"a": (100, 10), "b": (100, 10)}, "ab"),  # neither beats the other
        # A percent more bytes is as much; not for the same time.
        ({"a": (101, 10), "b": (100, 11)}, "a"),
        ({"a": (102, 10), "b": (100, 11)}, "ab"),
        ({"a": (101, 10), "b": (100, 10)}, "b"),
        ({"a": (1, 9), "b": (2, 8), "c": (3, 9), "d": (4, 7)}, "abd"),
        ({}, ""),
    ],
)
def test_what_another_beats_goes(costs, left):
    found = _undominated(named(costs), cost_in(costs))
    assert "".join(c.name for c in found) == left


@pytest.mark.parametrize(
    ("a", "b", "c", "found"),
    [
        ((0, 10), (5, 4), (10, 0), True),  # the line from a to c is at 5 there
        ((0, 10), (5, 5), (10, 0), False),
        ((0, 10), (5, 6), (10, 0), False),
        ((0, 10), (2, 7), (10, 0), True),
        ((0, 10), (8, 3), (10, 0), False),
        ((4, 10), (6, 8), (10, 5), True),
    ],
)
def test_below_the_line_between_two_others(a, b, c, found):
    assert _below(Cost(*c), Cost(*a), Cost(*b)) == found


def test_of_one_there_is_nothing_to_add_up():
    assert _area([Cost(10, 7.0)], combines=True) == 0


def by_adding_up(points, *, combines):
    """Traffic at the best over the logarithm of bytes, in many small steps."""
    most = max(size for size, _ in points)
    floor = 1 + most / 1000

    def best(size):
        found = min(us for at, us in points if at <= size)
        if combines:
            for a, us_a in points:
                for b, us_b in points:
                    if a <= size < b:
                        found = min(found, us_a + (us_b - us_a) * (size - a) / (b - a))
        return found

    start = math.log(min(size for size, _ in points) + floor)
    steps, total = 4000, 0.0
    width = (math.log(most + floor) - start) / steps
    for k in range(steps):
        total += best(math.exp(start + (k + 0.5) * width) - floor) * width
    return total


@pytest.mark.parametrize("combines", [False, True])
@pytest.mark.parametrize(
    "points",
    [
        [(10, 7.0), (100, 3.0)],
        [(10, 7.0), (40, 6.5), (100, 3.0)],
        [(10, 7.0), (20, 4.0), (100, 3.0)],
        [(10, 7.0), (50, 9.0), (100, 3.0)],
        [(10, 7.0), (10, 5.0), (100, 3.0), (300, 3.0)],
        [(10, 9.0), (12, 8.5), (30, 4.0), (35, 4.0), (60, 3.9), (100, 1.0)],
    ],
)
def test_the_traffic_over_all_budgets(points, combines):
    found = _area([Cost(*p) for p in points[::-1]], combines=combines)
    assert found == pytest.approx(by_adding_up(points, combines=combines), rel=2e-3)


NONE, ALL = (1, 100), (100, 0.5)


@pytest.mark.parametrize(
    ("costs", "most", "combines", "left"),
    [
        ({"a": (10, 9), "b": (11, 8.9), "c": (50, 5), "d": (90, 1)}, 4, False, "abcd"),
        ({"a": (10, 9), "b": (11, 8.9), "c": (50, 5), "d": (90, 1)}, 3, False, "acd"),
        ({"a": (10, 9), "b": (40, 8), "c": (50, 3)}, 2, False, "ac"),
        # Between two others a mix is nearly as good.
        ({"a": (10, 9), "c": (50, 5.1), "d": (60, 3)}, 2, True, "ad"),
        ({"a": (10, 9), "b": (20, 5)}, 0, False, ""),
        # They come by bytes.
        ({"d": (90, 1), "a": (10, 9), "c": (50, 5)}, 3, False, "acd"),
    ],
)
def test_of_too_many_those_that_are_missed_least_go(costs, most, combines, left):
    costs = {"none": NONE, "all": ALL, **costs}
    least, largest, *found = named(costs)
    anchors = [least, largest]
    chosen = _spread(found, cost_in(costs), anchors, most, combines=combines)
    assert "".join(c.name for c in chosen) == left


class Unit:
    """A unit of which it is known what an action keeps and recomputes."""

    num_layers = 3
    name = "u"
    operations = ()

    def __init__(self, kept, most_flops=1000):
        self.of = {RECOMPUTE: (0, 0, most_flops)} | kept

    def kept(self, action):
        device, host, flops, *ahead = self.of[action]
        return SimpleNamespace(
            device_bytes=device,
            host_bytes=host,
            recompute_flops=flops,
            ahead=tuple(ahead),
            sent_bytes=0,
        )


A, B = RECOMPUTE(save=["a"]), RECOMPUTE(save=["b"])


@pytest.mark.parametrize(
    ("one", "other", "number"),
    [
        ((8, 0, 100), (8, 0, 100), 1),
        ((8, 0, 100), (9, 0, 100), 2),
        ((8, 0, 100), (8, 1, 100), 2),
        ((8, 0, 100), (8, 0, 104), 1),  # less than half a percent of all
        ((8, 0, 100), (8, 0, 110), 2),
        ((8, 0, 100), (8, 0, 100, "x"), 2),
    ],
)
def test_one_of_those_that_keep_and_recompute_as_much(one, other, number):
    unit: Any = Unit({A: one, B: other})
    found = _distinct(unit, [Candidate("a", A), Candidate("b", B)])
    assert [c.name for c in found] == ["a", "b"][:number]


def test_where_nothing_is_recomputed_they_are_told_apart_by_single_flops():
    unit: Any = Unit({A: (8, 0, 0), B: (8, 0, 1)}, most_flops=0)
    assert len(_distinct(unit, [Candidate("a", A), Candidate("b", B)])) == 2


@pytest.mark.parametrize(
    "action", [INVERT, RECOMPUTE(chunks=2), RECOMPUTE(segment_length=2)]
)
def test_what_does_something_else_is_another(action):
    unit: Any = Unit({A: (8, 0, 100), action: (8, 0, 100)})
    assert len(_distinct(unit, [Candidate("a", A), Candidate("b", action)])) == 2


def test_names_that_come_twice_have_their_size():
    third = RECOMPUTE(save=["c"])
    unit: Any = Unit({A: (8000, 0, 0), B: (9, 0, 0), third: (9, 0, 0)})
    twice = [Candidate("x", A), Candidate("x", B), Candidate("y", third)]
    names = lambda found: [c.name for c in _with_unique_names(unit, found)]
    assert names(twice) == ["x (8,000 bytes)", "x (9 bytes)", "y"]
    same = [Candidate("x", B), Candidate("x", third), Candidate("x (9 bytes)", A)]
    assert names(same) == ["x (9 bytes), 2", "x (9 bytes), 3", "x (9 bytes)"]
    presets = [Candidate("save all", SAVE), Candidate("save all", A)]
    assert names(presets) == ["save all", "save all (8,000 bytes)"]


# ---- Units ---------------------------------------------------------------------------


def options(*sizes):
    """Candidates that keep so many bytes, and units to which they belong."""
    return [Candidate(f"c{k}", RECOMPUTE(chunks=k + 2)) for k, _ in enumerate(sizes)]


class Sized:
    def __init__(self, name, sizes, num_layers=1):
        self.name, self.num_layers = name, num_layers
        self.sizes = {
            c.action: size for c, size in zip(options(*sizes), sizes, strict=True)
        }

    def kept(self, action):
        return SimpleNamespace(device_bytes=self.sizes[action])


def test_bytes_in_question_are_between_most_and_least_in_all_layers():
    unit: Any = Sized("u", (5, 2, 9), num_layers=4)
    assert bytes_in_question(unit, options(5, 2, 9)) == 4 * 7


@pytest.mark.parametrize(
    ("small", "left"), [(5, ["large", "small"]), (4, ["large"]), (0, ["large"])]
)
def test_units_of_less_than_half_a_percent_are_left_out(small, left):
    units: Any = [Sized("large", (1000 - small, 0)), Sized("small", (small, 0))]
    assert [*shortlist({u.name: options(1, 0) for u in units}, units)] == left


def test_units_with_one_way_are_left_out():
    units: Any = [Sized("one", (7,)), Sized("two", (7, 1)), Sized("none", (7, 1))]
    found = shortlist({"one": options(7), "two": options(7, 1)}, units)
    assert [*found] == ["two"]
    assert found["two"] == tuple(options(7, 1))
