"""No assignment is faster than the bound, whatever costs are off by."""

import pytest

from revremat._search._begin import bound_if_cut
from revremat._search.passes._bound import bound
from tests.search.world import Cost, World

FULL, SAVE = Cost(0.0, 10.0, base=50.0), Cost(10.0, 1.0, base=0.0)


def runs(saved):
    return tuple(
        run for run in (("recompute all", 10 - saved), ("save all", saved)) if run[1]
    )


def searched(budget, error, saved):
    """A state that knows one program, and how fast the fastest that fits is."""
    how = {"full": FULL, "none": SAVE, "layers": 10, "kind": "repeat"}
    world = World({}, lambda _: error, **how)
    state, ask = world.state(budget)
    state = world.tried(state, ask, *runs(saved))
    every = state
    for number in range(11):
        every = world.tried(every, ask, *runs(number))
    return bound(state, ask), every.best.time_us


@pytest.mark.parametrize("error", [-12.0, -3.0, 0.0, 3.0])
@pytest.mark.parametrize("budget", [63, 75, 90, 95])
@pytest.mark.parametrize("saved", [0, 1])
def test_nothing_that_fits_is_faster_than_the_bound(budget, error, saved):
    state, fastest_us = searched(budget, error, saved)
    assert state.bound_us <= fastest_us + 1e-3
    assert state.greedy_us is not None
    assert state.greedy_us >= state.bound_us


@pytest.mark.parametrize(
    ("changes", "is_known"),
    [
        ({}, True),  # a limit cut the search before
        ({"is_bounded": True}, False),  # a pass took it back
        ({"skipped": ()}, False),  # it ended by itself
        ({"is_profiled": False}, False),
    ],
    ids=str,
)
def test_a_search_that_was_cut_has_a_bound_unless_one_was_taken_back(changes, is_known):
    state, _ = searched(95, 0.0, 1)
    known = {"is_bounded": False, "is_profiled": True}
    cut = state.skip("peel", 1).but(bound_us=0.0, **{**known, **changes})
    assert bool(bound_if_cut(cut, lambda state, _: state).bound_us) == is_known


def test_what_takes_as_much_as_it_costs_has_a_close_bound():
    state, fastest_us = searched(95, 0.0, 1)
    assert state.bound_us == pytest.approx(fastest_us, abs=1e-2)


def test_where_nothing_fits_there_is_no_bound():
    world = World()
    state, ask = world.state(5)
    state = bound(world.tried(state, ask, ("recompute all", 8)), ask)
    assert (state.bound_us, state.greedy_us) == (0.0, None)
