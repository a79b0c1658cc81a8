"""Where unrolling gains, the first choice is one of unrolled layers."""

import dataclasses
from typing import Any

import pytest

import revremat as rr
from revremat._search import BASELINE, Asking, Heuristics, Request, State, decide
from revremat._search.passes._plain_unroll import plain_unroll
from revremat._search.passes._unrolled_sets import (
    _gains,
    best_unrolled_set,
    unrolled_sets,
)
from tests.search.programs import CASES
from tests.search.tape import Model, Tape, state_of
from tests.search.world import SAVE, Cost, World, unit_of

MEASURED = Heuristics().for_measured_times()


class Unrolling(World):
    """Layers that are unrolled and keep all take so long."""

    def __init__(self, time_us: float, **how: Any):
        super().__init__(**how)
        self.all["unrolled"] = (rr.SAVE(unroll=True), Cost(SAVE.kept, time_us))
        self.names[rr.SAVE(unroll=True)] = "unrolled"


@pytest.mark.parametrize(
    ("time_us", "fixed", "gains"),
    [
        (SAVE.time_us - 1, {}, True),
        (SAVE.time_us, {}, False),  # not faster than the loop
        (SAVE.time_us - 1, {"unroll": False}, False),
        (SAVE.time_us - 1, {"enclosing": (unit_of("around"),)}, False),
        (SAVE.time_us - 1, {"heuristics": MEASURED}, False),
    ],
)
def test_they_come_only_where_estimates_hold_and_unrolling_gains(time_us, fixed, gains):
    state, ask = Unrolling(time_us).state(60, **{"unroll": True, **fixed})
    state = plain_unroll(state, ask)
    assert _gains(state) == gains
    if not gains:
        assert best_unrolled_set(state, ask) is state
        assert unrolled_sets(state, ask) is state


def test_loops_with_others_inside_are_left_to_other_passes():
    state, ask = Unrolling(1.0).state(60, unroll=True)
    state = plain_unroll(state, ask)
    inner = unit_of("u/inner", enclosing="u")
    graph = dataclasses.replace(
        state.space.graph, units=(*state.space.graph.units, inner)
    )
    state = state.but(space=dataclasses.replace(state.space, graph=graph))
    assert best_unrolled_set(state, ask) is state


def searched(name: str, share: float, most: int | None = None) -> State:
    """A search of made-up measurements, each off by a little."""
    tape = Tape.load(name)
    model = Model(tape.graph, on_host=True)
    (plain,) = model.measure([Request(BASELINE, "")])
    state = state_of(CASES[name], tape, most)
    return decide(state.within(int(share * plain.memory.total_bytes)), Asking(model))


PROGRAMS = [
    (name, share)
    for name in ("gpt-h100", "reversible-h100", "wide-h100")
    for share in (0.7, 0.5)
]


@pytest.mark.parametrize(("name", "share"), PROGRAMS)
def test_the_first_choice_has_no_loops_and_fits(name, share):
    """Before it come the baseline, what recomputes all, and plain unrolled loops."""
    state = searched(name, share, most=13)
    first = [*state.rows.values()][3]
    assert first.plan is not None
    assert first.bytes <= state.budget_bytes
    assert all(
        action.unroll is True for few in first.plan.actions.values() for action in few
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), PROGRAMS)
def test_a_search_of_thirteen_programs_is_near_one_without_a_limit(name, share):
    few, all_of_them = searched(name, share, most=13), searched(name, share)
    assert few.best.time_us <= 1.17 * all_of_them.best.time_us
