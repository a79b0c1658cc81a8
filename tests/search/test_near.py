"""What is near a plan: what misses say of others, peeled layers, what may still fit."""

from typing import Any

import pytest

from revremat import RECOMPUTE, SAVE
from revremat._search._keys import Request
from revremat._search._peeled import peeled_cut
from revremat._search.passes._local_search import (
    _corrected,
    _layers,
    _Miss,
    _more_each,
    _one_more,
    _options,
    _over,
    is_local_optimum,
    split,
)
from revremat._search.passes._peel import _near_misses, _trim, _with_peeled, peel_from
from revremat.policies import Assignment, LayerCost, UnitOptions
from tests.search.world import Cost, World, measured, small


def cost(name, kept, time_us=1.0):
    return LayerCost(name, kept, 100.0, 0.0, time_us)


OPTIONS = (
    UnitOptions("u", 4, (cost("a", 1.0), cost("b", 10.0), cost("c", 20.0))),
    UnitOptions("v", 2, (cost("a", 2.0), cost("b", 30.0))),
)
PLAN: Any = {"u": (("a", 4),), "v": (("a", 2),)}
"""Keeps eight bytes beside a hundred."""


def miss(u, v, size, newcomer=None):
    counts: Any = {"u": tuple(u.items()), "v": tuple(v.items())}
    return _Miss(newcomer, Assignment.of(OPTIONS, counts), size)


# ---- What misses say -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("newcomer", "other", "few", "tells"),
    [
        (None, None, OPTIONS, True),
        (None, ("u", "b"), OPTIONS, False),
        (("u", "b"), None, OPTIONS, True),
        (("u", "b"), ("v", "b"), OPTIONS, True),
        (("u", "b"), ("u", "c"), [OPTIONS[0].only("ac"), OPTIONS[1]], False),
        (("v", "c"), ("u", "b"), OPTIONS, False),
        (("v", "b"), None, OPTIONS[:1], False),
    ],
)
def test_a_miss_tells_of_assignments_that_its_newcomer_may_be_in(
    newcomer, other, few, tells
):
    assert miss({"a": 4}, {"a": 2}, 110, newcomer).came_with(other, few) == tells


def test_layers_are_counted_by_unit_and_candidate():
    runs: Any = {"u": (("a", 2), ("b", 1), ("a", 1)), "v": (("a", 2),)}
    assert _layers(runs) == {("u", "a"): 3, ("u", "b"): 1, ("v", "a"): 2}


@pytest.mark.parametrize(
    ("u", "size", "over"),
    [
        ({"a": 3, "b": 1}, 117, 0),  # nine more than the plan, as costs say
        ({"a": 3, "b": 1}, 120, 3),
        ({"a": 3, "b": 1}, 110, -7),
        ({"b": 4}, 150, 6),
    ],
)
def test_over_is_what_it_took_beyond_the_difference_of_costs(u, size, over):
    assert _over(OPTIONS, PLAN, 108, miss(u, {"a": 2}, size)) == over


@pytest.mark.parametrize(
    ("misses", "more"),
    [
        ([], {}),
        ([({"a": 3, "b": 1}, {"a": 2}, 121)], {("u", "b"): 4}),
        ([({"a": 2, "b": 2}, {"a": 2}, 130)], {("u", "b"): 2}),
        ([({"a": 4}, {"a": 2}, 120)], {}),  # the plan's own layers
        (
            [
                ({"a": 3, "b": 1}, {"a": 2}, 121),
                ({"a": 3, "b": 1}, {"a": 1, "b": 1}, 155),
            ],
            {("u", "b"): 4, ("v", "b"): 6},
        ),
        # Over in both, so laid to what both have.
        (
            [
                ({"a": 3, "b": 1}, {"a": 2}, 121),
                ({"a": 2, "b": 2}, {"a": 2}, 134),
            ],
            {("u", "b"): 4},
        ),
    ],
)
def test_what_is_over_is_laid_to_layers_that_there_are_more_of(misses, more):
    found = _more_each(OPTIONS, PLAN, 108, [miss(*one) for one in misses])
    assert found == pytest.approx(more)


def test_costs_are_corrected_by_unit_and_candidate():
    first, second = _corrected(OPTIONS, {("u", "b"): 4.0, ("v", "a"): -1.0})
    assert [c.kept_bytes for c in first.costs] == [1, 14, 20]
    assert [c.kept_bytes for c in second.costs] == [1, 30]
    assert (first.unit, first.num_layers) == ("u", 4)


def test_one_kind_of_layers_more_comes_in_at_a_time():
    used = {"u": {"a"}, "v": {"a", "b"}}
    found = [
        (newcomer, ["".join(c.name for c in one.costs) for one in few])
        for newcomer, few in _one_more(OPTIONS, used)
    ]
    assert found == [
        (None, ["a", "ab"]),
        (("u", "b"), ["ab", "ab"]),
        (("u", "c"), ["ac", "ab"]),
    ]


def test_costs_that_are_far_off_count_where_they_are_used_already():
    costs = {"out": (SAVE(unroll=True), Cost(8.0, 20.0))}
    state, ask = World(costs, lambda runs: 90.0 * bool(runs.get("out"))).state(60)
    names = lambda used: {c.name for c in _options(state, {"u": used})[0].costs}
    assert "out" in names({"save all"})
    state = ask(state, [state.assignment_request({"u": (("out", 8),)}, 74.0)])
    assert "out" not in names({"save all"})
    assert "out" in names({"save all", "out"})


# ---- What leaves next to nothing -----------------------------------------------------


@pytest.mark.parametrize(
    ("size", "budget", "is_one"),
    [(1000, 1000, True), (998, 1000, True), (997, 1000, False), (1001, 1000, False)],
)
def test_a_plan_that_leaves_next_to_nothing_is_a_local_optimum(size, budget, is_one):
    state, _ = World().state(budget)
    request = state.assignment_request({"u": (("save all", 8),)})
    row = state.with_measured(request, measured(size, 1.0)).row(request.key)
    assert is_local_optimum(state, row) == is_one
    full = state.but(exhausted=frozenset({(request.key, budget)}))
    assert is_local_optimum(full, row) == (size <= budget)


def test_peeled_layers_are_told_apart_where_they_have_a_cost():
    state, ask = World(peeled={False: (1.0, -5.0)}, layers=9).state(1000)
    runs = (("save all", 1), ("recompute all", 7), ("save all", 1))
    request = state.assignment_request({"u": runs})
    state = ask(state, [request])
    row = state.row(request.key)
    assert split(state, row) == ({"u": runs}, {})
    cut = peeled_cut(SAVE, RECOMPUTE, False)
    state = ask(state, [Request(state.probe_key(state.units[0], cut), "")])
    assert split(state, row) == ({"u": runs[1:]}, {"u": (runs[:1], ())})


# ---- Peeled layers -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runs", "first", "last", "found"),
    [
        ("a4", "", "", "a4"),
        ("a4", "b", "", "b1 a3"),
        ("a4", "", "b", "a3 b1"),
        ("a4", "b", "c", "b1 a2 c1"),
        ("a1 c3", "b", "", "b1 c3"),
        ("c3 a1", "", "b", "c3 b1"),
        ("a2", "b", "c", "b1 c1"),
    ],
)
def test_peeled_layers_take_the_place_of_the_first_and_the_last(
    runs, first, last, found
):
    read = lambda text: tuple((run[0], int(run[1:])) for run in text.split())
    of = lambda name: cost(name, 0.0) if name else None
    assert _with_peeled(read(runs), of(first), of(last)) == read(found)


def with_rows(world, budget, *sizes) -> Any:
    """A state that knows programs that save so many layers."""
    state, ask = world.state(budget)
    for saved, size, time_us in sizes:
        runs = (("save all", saved), ("recompute all", 9 - saved))
        request = state.assignment_request({"u": tuple(r for r in runs if r[1])})
        state = state.with_measured(request, measured(size, time_us))
    return state, ask


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ([(9, 90, 5.0)], []),  # fits
        ([(9, 101, 5.0)], [101]),
        ([(9, 125, 5.0)], [125]),
        ([(9, 126, 5.0)], []),  # more than a quarter too large
        ([(9, 120, 5.0), (0, 110, 6.0)], [110]),  # the smallest alone
        ([(9, 110, 9.0), (0, 90, 9.0)], []),  # no faster than what fits
        ([(9, 110, 9.0), (0, 100, 9.0)], []),  # which may take all of the budget
        ([(9, 110, 9.0), (0, 101, 9.5)], [101]),
        ([(9, 110, 8.99), (0, 90, 9.0)], [110]),
        ([(9, 110, 8.992), (0, 90, 9.0)], []),  # by less than a thousandth
    ],
)
def test_a_little_too_large_is_the_smallest_that_is_faster(sizes, found):
    state, _ = with_rows(World(layers=9), 100, *sizes)
    rows = {k: r for k, r in state.rows.items() if r.plan is not None}
    state = state.but(trials={k: state.trials[k] for k in rows})
    assert [row.bytes for row in _near_misses(state)] == found


@pytest.mark.parametrize(
    ("sizes", "num_asked", "best"),
    [
        # Of four two at a time, until one fits; the fastest of those.
        ([90, 91, 92, 93], 2, 91),
        ([101, 91, 92, 93], 2, 91),
        ([101, 102, 92, 93], 4, 93),
        ([101, 102, 103, 104], 4, 80),
        ([101, 102, 100], 3, 100),
    ],
)
def test_peeled_plans_are_measured_two_at_a_time_until_one_fits(sizes, num_asked, best):
    world = World(layers=9)
    state, ask = with_rows(world, 100, (9, 80, 99.0))
    row = next(r for r in state.rows.values() if r.bytes == 80)
    asked = []

    def measure(request):
        asked.append(request)
        return measured(sizes[len(asked) - 1], 50.0 - len(asked))

    world._measured = measure
    few = [
        ({"u": (("save all", n), ("recompute all", 9 - n))}, float(n))
        for n in range(1, len(sizes) + 1)
    ]
    state, found = _trim(state, ask, row, few)
    assert len(asked) == num_asked
    assert found.bytes == best
    assert [r.predicted_bytes for r in asked] == [80.0 + n for _, n in few][:num_asked]


@pytest.mark.parametrize(
    ("extra", "budget", "is_tried"),
    [
        ((8.0, -60.0), 27, True),  # 19 bytes and eight more
        ((8.0, -60.0), 26, False),
        ((8.0, 0.0), 100, False),  # gains nothing
        ((-8.0, 60.0), 100, False),
    ],
)
def test_peeled_layers_are_tried_where_they_fit_and_gain(extra, budget, is_tried):
    world = World(peeled={False: extra, True: extra}, layers=9)
    state, ask = world.state(budget)
    state = world.tried(state, ask, ("recompute all", 9))
    request = state.assignment_request({"u": (("recompute all", 9),)})
    _, gain_us = peel_from(state, ask, state.row(request.key))
    assert bool(world.asked) == is_tried
    assert gain_us == 2 * min(0.0, extra[1])


@pytest.mark.parametrize("action", [RECOMPUTE(unroll=True), small(segment_length=3)])
def test_beside_unrolled_layers_and_segments_nothing_is_peeled(action):
    costs = {"other": (action, Cost(1.0, 90.0))}
    world = World(costs, peeled={True: (8.0, -60.0)}, layers=9)
    state, ask = world.state(1000)
    state = world.tried(state, ask, ("other", 9))
    request = state.assignment_request({"u": (("other", 9),)})
    assert peel_from(state, ask, state.row(request.key))[1] == 0.0
    assert world.probed == world.asked == []
