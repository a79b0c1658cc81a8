"""The assignment that costs like best is measured until one fits."""

import dataclasses

import pytest

import revremat as rr
from revremat._measure import Failure
from revremat._search.passes._hedge import hedge
from revremat._search.passes._solve import solve, tighten
from tests.search.world import Cost, World

OFFLOAD = {"offload": (rr.OFFLOAD, Cost(0.0, 12.0, host=10.0, base=100.0))}


def tightened(budget, error):
    """Of ten layers, five may go to the host: no smallest mix is alike in all."""
    world = World(
        OFFLOAD,
        lambda runs: error,
        full=Cost(1.0, 10.0, base=100.0),
        none=Cost(500.0, 1.0),
        layers=10,
        host_bytes=50.0,
    )
    state, ask = world.state(1)
    tighten(dataclasses.replace(state, budget_bytes=budget), ask)
    return [dict(runs).get("offload") for runs in world.asked]


@pytest.mark.parametrize(
    ("error", "offloaded"), [(0, [3]), (0.5, [3, 4]), (1.5, [3, 5])]
)
def test_what_is_too_large_is_followed_by_one_that_is_smaller_by_as_much(
    error, offloaded
):
    assert tightened(107.2, error) == offloaded


def test_where_none_is_smaller_by_as_much_smaller_ones_are_tried():
    assert tightened(107.2, 4.0) == [3, 5]


def test_what_does_not_compile_is_followed_by_another():
    world = World()
    measure = world._measured

    def failing(request):
        found = measure(request)
        is_first = request.label == "3 x recompute all + 5 x save all"
        return Failure(RuntimeError("no")) if is_first else found

    world._measured = failing
    state, ask = world.state(63)
    state = solve(state, ask)
    assert world.asked[0] == (("recompute all", 3), ("save all", 5))
    assert len(world.asked) > 1
    assert state.fits
    assert "3 x recompute all + 5 x save all" not in [
        row.name for row in state.rows.values()
    ]


def test_where_the_host_turns_out_slow_the_best_without_it_is_tried():
    host = {"host": (rr.OFFLOAD, Cost(1.0, 40.0, host=9.0))}
    world = World(host, slower_us=lambda runs: 900.0 if runs.get("host") else 0.0)
    state, ask = world.state(60)
    state = solve(state, ask)
    assert all(name == "host" for runs in world.asked for name, _ in runs)
    state = hedge("on_host")(state, ask)
    assert not state.best.takes("on_host")
    assert state.best.bytes <= 60
    assert len(dict(state.counts_of(state.best)["u"])) == 2


@pytest.mark.parametrize("is_larger", [True, False])
def test_unrolled_layers_are_doubtful_where_they_take_much_more_than_expected(
    is_larger,
):
    out = {"out": (rr.SAVE(unroll=True), Cost(8.0, 20.0))}
    world = World(out, lambda runs: 60.0 if is_larger and runs.get("out") else 0.0)
    state, ask = world.state(60)
    state = solve(state, ask)
    before = len(world.asked)
    after = hedge("unroll")(state, ask)
    assert (len(world.asked) > before) == is_larger
    assert after.best.takes("unroll") != is_larger
