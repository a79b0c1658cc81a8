"""Loops inside are decided before all else where a few layers to an iteration gain."""

import dataclasses
from typing import Any

import pytest

import revremat as rr
from revremat import RECOMPUTE, SAVE
from revremat._search import Heuristics
from revremat._search._state import OutOfCompiles
from revremat._search.passes._nested import (
    nested,
    nested_first,
    recompute_around,
)
from tests.search.world import Cost, World, measured, unit_of

FEW = rr.SAVE(unroll=4)
BASELINE_US = 2 * 16 * 50.0


def around(few_us, layers=16, **fixed):
    """Layers with loops inside, of which nothing is known; 4 to an iteration take less.

    Args:
      few_us: What a layer of the loop then takes.
      layers: Of the loop.
      **fixed: Other attributes of the space.
    """
    name = "save all (unrolled by 4)"
    world = World(
        {name: (FEW, Cost(10.0, few_us))}, layers=layers, unit_names=("layers", "loops")
    )
    both, ask = world.state(1000, **{"unroll": True, **fixed})
    outer = unit_of("layers", layers)
    loops = unit_of("loops", layers, enclosing="layers")
    graph = dataclasses.replace(both.space.graph, units=(outer, loops))
    space = dataclasses.replace(both.space, graph=graph, units=(outer,))
    inside = dataclasses.replace(space, units=(loops,), nesting=1)
    offered = tuple(c for c in both.candidates["loops"] if c.name != name)
    inner = both.but(space=inside, units=(loops,), candidates={"loops": offered})
    state = both.but(space=space, units=(outer,), nested={False: inner, True: None})
    return state, ask, world


def searched(calls, changed=lambda state: state):
    def search(state, ask):
        calls.append([unit.name for unit in state.units])
        return changed(state)

    return search


@pytest.mark.parametrize(
    ("few_us", "layers", "fixed", "programs", "is_decided"),
    [
        (90.0, 16, {}, 2, True),  # 1440 us, a tenth less
        (96.0, 16, {}, 1, False),  # 4 % less
        (20.0, 15, {}, 0, False),  # too few for a loop of 4 to an iteration
        (20.0, 16, {"unroll": False}, 0, False),
        (20.0, 16, {"heuristics": Heuristics(short_layer_us=99.0)}, 0, False),
        (20.0, 16, {"heuristics": Heuristics(short_layer_us=100.0)}, 2, True),
    ],
    ids=["gains", "hardly", "few layers", "no unrolling", "long layers", "short"],
)
def test_only_where_short_layers_gain_by_it(
    few_us, layers, fixed, programs, is_decided
):
    state, ask, _ = around(few_us, layers, **fixed)
    calls: list[list[str]] = []
    found = nested_first(searched(calls))(state, ask)
    assert found.num_compiles - state.num_compiles == programs
    assert calls == [["loops"]] * is_decided


def test_what_recomputes_everything_around_is_known_before():
    """So that something fits, if compiles run out inside."""
    state, ask, world = around(20.0)
    names = []
    nested_first(searched([], lambda s: names.extend(world.asked) or s))(state, ask)
    assert names == [(("save all (unrolled by 4)", 16),), (("recompute all", 16),)]


def test_what_is_found_inside_counts_outside_and_is_not_searched_for_again():
    state, ask, _ = around(20.0)
    calls: list[list[str]] = []
    chosen: Any = "an assignment"
    search = searched(calls, lambda s: s.but(leading=chosen, bound_us=7.0))
    found = nested_first(search)(state, ask)
    assert found.best.time_us == 16 * 20.0
    again = nested(search)(found, ask)
    assert calls == [["loops"]]
    assert again.bound_us <= 7.0
    nested(search)(found.within(900), ask)  # another budget is another answer
    assert calls == [["loops"]] * 2


def test_where_compiles_end_what_is_known_inside_counts():
    state, ask, _ = around(20.0)
    few = dataclasses.replace(state.space, most_compiles=state.num_compiles)
    inner = state.nested[False]
    assert inner is not None
    inside = dataclasses.replace(inner.space, most_compiles=state.num_compiles)
    cut = state.but(space=few, nested={False: inner.but(space=inside), True: None})
    with pytest.raises(OutOfCompiles) as out:
        nested_first(searched([]))(cut, ask)
    assert out.value.state.units == state.units


@pytest.mark.parametrize(
    ("fixed", "inside"), [({}, SAVE(unroll=True)), ({"unroll": False}, SAVE)], ids=str
)
def test_soon_what_is_around_recomputes_and_loops_inside_keep_all(fixed, inside):
    state, _, _ = around(20.0, **fixed)
    inner = state.nested[False]
    assert inner is not None
    recomputing = dataclasses.replace(inner.space, enclosing=state.units)
    nested = {False: None, True: inner.but(space=recomputing)}
    asked = []

    def ask(state, requests):
        asked.extend(requests)
        for request in requests:
            state = state.with_measured(request, measured(9, 1.0))
        return state

    found = recompute_around(state.but(nested=nested), ask)
    (request,) = asked
    assert dict(request.key.actions) == {
        "layers": (RECOMPUTE,) * 16,
        "loops": (inside,) * 16,
    }
    assert found.best.time_us == 1.0
    assert found.units == state.units
    asked.clear()
    assert recompute_around(recomputing_state(found), ask).num_compiles
    assert not asked


def recomputing_state(state):
    """As inside of a loop that recomputes."""
    return state.but(space=dataclasses.replace(state.space, enclosing=state.units))


def test_where_no_loop_has_others_inside_nothing_is_asked():
    world = World()
    state, ask = world.state(1000)
    assert recompute_around(state, ask) is state
    assert not world.asked
