"""What the best plan leaves of a budget is used, and compiles have the last word."""

import dataclasses
from typing import Any

import pytest

import revremat as rr
from revremat._search import Request
from revremat._search._peeled import peeled_cut
from revremat._search.passes._local_search import (
    is_local_optimum,
    local_search,
    local_search_from,
)
from tests.search.world import SAVE, Cost, World, small

SMALL = {"small": (small(), Cost(4.0, 80.0))}
CLOSE = {"close": (small("b"), Cost(10.0, 51.0))}


def filled(world, budget, *runs, is_full=True, **fixed) -> Any:
    """The best after a local search from some runs, and whether it is that."""
    state, ask = world.state(budget, **fixed)
    state = world.tried(state, ask, *runs)
    request = state.assignment_request({"u": runs})
    start = state.row(request.key)
    after, best, full = local_search_from(state, ask, start)
    assert full == is_full
    return dict(after.counts_of(best)["u"]), best


def asked(world):
    return [dict(runs) for runs in world.asked]


FOUR = ("recompute all", 4), ("save all", 4)


def test_what_costs_took_for_used_is_used():
    world = World(error=lambda runs: -6.0)
    found, best = filled(world, 60, *FOUR)  # 48 of 60; one more takes 9
    assert found == {"recompute all": 3, "save all": 5}
    assert best.bytes == 57


def test_one_more_kind_of_layers_may_come_in():
    found, best = filled(World(SMALL, lambda runs: -3.0), 60, *FOUR)  # 51 of 60
    assert found == {"recompute all": 1, "small": 3, "save all": 4}
    assert best.bytes == 60


@pytest.mark.parametrize("budget", [54, 60, 62])
def test_nothing_is_compiled_where_nothing_can_be_faster(budget):
    world = World()
    found, _ = filled(world, budget, *FOUR)  # 54, and one more takes 63
    assert found == dict(FOUR)
    assert world.asked == []


def test_what_comes_out_too_large_is_left_alone():
    world = World(error=lambda runs: 20.0 if runs.get("save all", 0) > 4 else -6.0)
    found, _ = filled(world, 60, *FOUR)
    assert found == dict(FOUR)
    assert asked(world) == [{"recompute all": 3, "save all": 5}]


def test_what_came_out_too_large_does_not_come_again_and_other_kinds_do():
    """Layers that there were more of are taken to be as much larger."""
    world = World(CLOSE, lambda runs: 3.0 if runs.get("save all", 0) > 4 else 0.0)
    _, best = filled(world, 63, *FOUR)  # 54, and 63 are expected
    assert asked(world) == [
        {
            "recompute all": 3,
            "save all": 5,
        },  # 66 are taken, so a layer of it seems to take 13
        {"recompute all": 2, "close": 5, "save all": 1},  # 72
        {"recompute all": 3, "close": 3, "save all": 2},
    ]
    assert (best.bytes, best.time_us) == (63, 553)


def test_what_is_over_in_all_is_laid_to_what_they_have_in_common():
    """Not to the kinds that come in, another one in each of them."""
    sets = [small(a + b) for a in "abcd" for b in "ef"] + [small(n) for n in "abcd"]
    others = {
        f"{k}": (action, Cost(1.0, 99.0 + k / 20)) for k, action in enumerate(sets)
    }
    world = World(others, lambda runs: 6.0 * max(0, runs.get("save all", 0) - 4))
    _, best = filled(world, 79, *FOUR)  # 54 of 79
    assert asked(world) == [
        {"0": 2, "save all": 6},  # 84 are taken, and 72 are expected
        {"1": 2, "save all": 6},
        {"0": 3, "save all": 5},
    ]
    assert best.bytes == 69


def test_what_takes_more_than_it_costs_comes_in_where_it_fits_all_the_same():
    """How much more is told by the first assignment that has it."""
    world = World(SMALL, lambda runs: 25.0 if runs.get("small") else 0.0)
    world.costs = SMALL
    world.none = Cost(1000.0, 99.0)
    world.__post_init__()
    _, best = filled(world, 60, ("recompute all", 8))  # 18 of 60
    assert asked(world) == [
        {"small": 8},  # 42 are expected, and 67 are taken
        {"recompute all": 2, "small": 6},
        {"recompute all": 3, "small": 5},
    ]
    assert best.bytes == 58


def test_of_what_costs_the_same_one_comes_in():
    close = Cost(9.0, 50.0)
    costs = {"close": (small("b"), close), "same": (small("c"), close)}
    error = lambda runs: 60.0 if runs.keys() & {"close", "same"} else 0.0
    world = World(costs, error)
    found, _ = filled(world, 62, *FOUR)  # 54 of 62
    assert found == dict(FOUR)
    assert asked(world) == [{"recompute all": 3, "close": 5}]


def test_what_may_be_faster_still_after_some_compiles_is_not_called_full():
    more = {
        f"save {k}": (small("abcdef"[: k + 1]), Cost(10.0, 41.0 + k)) for k in range(6)
    }
    more |= {f"other {k}": (small("bdf"[k]), Cost(10.0, 47.0 + k)) for k in range(3)}
    error = lambda runs: 0.0 if runs.get("recompute all") == 8 else 550.0
    world = World(more, error)
    found, _ = filled(world, 560, ("recompute all", 8), is_full=False)
    assert found == {"recompute all": 8}
    assert len(world.asked) == 8


def test_what_comes_out_slower_does_not_come_again_and_other_kinds_do():
    slower_us = lambda runs: 500.0 if runs.get("save all", 0) > 4 else 0.0
    world = World(CLOSE, slower_us=slower_us)
    _, best = filled(world, 64, *FOUR)
    assert asked(world)[0] == {"recompute all": 3, "save all": 5}
    assert (best.bytes, best.time_us) == (63, 551)


@pytest.mark.parametrize("said", [None, 0.0, 1e9])
def test_what_was_once_expected_of_a_program_does_not_count(said):
    """Costs may have been refined since."""
    world = World()
    state, ask = world.state(63)
    state = ask(state, [state.assignment_request({"u": FOUR}, said)])
    world.asked.clear()
    (row,) = [row for row in state.rows.values() if row.plan]
    local_search_from(state, ask, row)
    assert asked(world) == [{"recompute all": 3, "save all": 5}]


@pytest.mark.parametrize(("budget", "is_asked"), [(63, True), (54, False)])
def test_what_was_seen_to_be_full_is_not_searched_again(budget, is_asked):
    world = World()
    state, ask = world.state(budget)
    state = local_search(world.tried(state, ask, *FOUR), ask)
    assert bool(world.asked) == is_asked
    world.asked.clear()
    assert is_local_optimum(state, state.best)
    local_search(state, ask)
    assert world.asked == []


def test_no_plan_over_its_budget_is_searched():
    world = World()
    state, ask = world.state(63)
    state = local_search(world.tried(state, ask, *FOUR), ask)
    assert not is_local_optimum(state.within(40), state.within(40).best)


def test_what_is_known_to_be_far_off_does_not_come_in():
    """Unrolled layers, once a program that has any took much more than expected."""
    costs = {
        "out": (rr.SAVE(unroll=True), SAVE),
        "sure": (small("b"), Cost(10.0, 60.0)),
    }
    world = World(costs, none=Cost(500.0, 50.0))
    state, ask = world.state(63)
    request = state.assignment_request({"u": (("out", 8),)}, 1.0)
    state = ask(state, [dataclasses.replace(request, predicted_bytes=1.0)])
    assert state.far_off == ("unroll",)
    state = world.tried(state, ask, ("recompute all", 4), ("sure", 4))
    state = local_search(state, ask)
    assert [dict(runs) for runs in world.asked] == [{"recompute all": 3, "sure": 5}]


@pytest.mark.parametrize("ends", [(False,), (True,), (False, True)])
def test_peeled_layers_stay(ends):
    """They have costs of their own, so what is left of the budget goes to the loop."""
    end = {"end": (small(), Cost(10.0, 120.0))}
    world = World(end, peeled={last: (-1.0, -20.0) for last in ends}, layers=12)
    state, ask = world.state(60)
    runs: list[tuple[str, int]] = [("recompute all", 12 - len(ends))]
    for last in ends:
        runs = [*runs, ("end", 1)] if last else [("end", 1), *runs]
        cut = peeled_cut(small(), rr.RECOMPUTE, last)
        key = state.probe_key(state.units[0], cut)
        state = ask(state, [Request(key, "peeled")])
    state = world.tried(state, ask, *runs)
    after = local_search(state, ask)
    assert world.asked
    for tried in world.asked:
        assert (tried[0] == ("end", 1)) == (False in ends)
        assert (tried[-1] == ("end", 1)) == (True in ends)
    assert 50 < after.best.bytes <= 60
