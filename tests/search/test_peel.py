"""First and last layers stand outside of their loop where that gains something."""

import pytest

from revremat._search._peeled import neighbour
from revremat._search.passes._peel import peel, peel_from
from tests.search.world import Cost, World

PEELED = {False: (8.0, -60.0), True: (8.0, -60.0)}


def row_of(state, *runs):
    return state.row(state.assignment_request(dict.fromkeys(state.costs, runs)).key)


@pytest.mark.parametrize(
    ("runs", "asked"),
    [
        (
            [("recompute all", 9)],
            [("recompute all", "first"), ("recompute all", "last")],
        ),
        ([("save all", 1), ("recompute all", 8)], [("recompute all", "last")]),
        ([("save all", 1), ("recompute all", 7), ("save all", 1)], []),
    ],
)
def test_layers_that_stand_alone_are_tried_once(runs, asked):
    world = World(peeled=PEELED, layers=9)
    state, ask = world.state(200)
    state = world.tried(state, ask, *runs)
    peel_from(state, ask, row_of(state, *runs))
    found = [
        ("recompute all", "last" if key.actions[0] == key.actions[1] else "first")
        for key in world.probed
    ]
    assert found == asked


def test_what_both_ends_gain_is_what_a_bound_gives_way_by():
    world = World(peeled=PEELED, layers=9)
    state, ask = world.state(200)
    state = world.tried(state, ask, ("recompute all", 9)).but(bound_us=700.0)
    assert peel_from(state, ask, row_of(state, ("recompute all", 9)))[1] == -120.0
    assert peel(state, ask).bound_us == 580.0


def test_ends_of_several_loops_share_the_compiles_of_one():
    world = World(layers=9, unit_names=("a", "b", "c"), host_bytes=1e9)
    state, ask = world.state(1e6, most_compiles=None)
    state = world.tried(state, ask, ("recompute all", 9))
    peel_from(state, ask, row_of(state, ("recompute all", 9)))
    few = state.space.heuristics.num_peeled // 3
    for unit in "abc":
        assert sum(key.unit == unit for key in world.probed) <= 2 * few


@pytest.mark.parametrize(
    ("budget", "is_tried"),
    [(60, True), (66, True), (52, False), (30, False)],
    ids=["a little", "fits", "more than a quarter", "far too large"],
)
def test_what_is_a_little_too_large_may_fit_with_peeled_layers(budget, is_tried):
    """The last layer gives back nine bytes; the best plan so far is a slow one."""
    world = World(
        {},
        peeled={True: (-9.0, -60.0)},
        layers=9,
        full=Cost(6.0, 100.0),
        none=Cost(1, 300),
    )
    state, ask = world.state(budget)
    state = world.tried(state, ask, ("save all", 9))
    state = world.tried(state, ask, ("recompute all", 9))
    assert row_of(state, ("recompute all", 9)).bytes == 64
    peel(state, ask)
    tried = [runs for runs in world.asked if ("recompute all", 8) in runs]
    assert bool(tried) == is_tried


@pytest.mark.parametrize(("best_bytes", "is_tried"), [(56, False), (57, True)])
def test_peeled_layers_that_are_slower_are_tried_where_nothing_fits(
    best_bytes, is_tried
):
    error = lambda runs: best_bytes - 19.0 if runs.get("recompute all") == 9 else 0.0
    more_us = {True: (-9.0, 60.0)}
    world = World(error=error, peeled=more_us, layers=9, none=Cost(50.0, 2000.0))
    state, ask = world.state(56)
    state = world.tried(state, ask, ("recompute all", 9))
    start = row_of(state, ("recompute all", 9))
    assert start.bytes == best_bytes
    _, gain_us = peel_from(state.within(56), ask, start)
    assert gain_us == 0.0
    assert bool(world.asked) == is_tried


def test_what_stands_beside_a_layer_is_told_by_the_runs():
    assert neighbour([("save all", 1), ("recompute all", 3)], last=False) == (
        "recompute all",
        True,
    )
    assert neighbour([("save all", 2), ("recompute all", 3)], last=False) == (
        "save all",
        False,
    )
    assert neighbour([("recompute all", 3), ("save all", 1)], last=True) == (
        "recompute all",
        True,
    )
