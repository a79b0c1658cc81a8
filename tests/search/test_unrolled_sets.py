"""Where unrolling gains, the first choices are of unrolled layers."""

import dataclasses
from typing import Any

import pytest

import revremat as rr
from revremat._search import BASELINE, Asking, Heuristics, Request, Row, State, decide
from revremat._search.passes._on_paper import (
    better_in_loops,
    plain_and_on_paper,
)
from revremat._search.passes._plain_unroll import plain_key
from revremat._search.passes._unrolled_sets import (
    _gains,
    best_unrolled_set,
    leave_loops,
    unrolled_sets,
)
from revremat.policies import Candidate
from tests.search.programs import CASES
from tests.search.tape import Model, Tape, state_of
from tests.search.world import SAVE, Cost, World, small, unit_of

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
    state = plain_and_on_paper(state, ask)
    assert _gains(state) == gains
    if not gains:
        assert best_unrolled_set(state, ask) is state
        assert unrolled_sets(state, ask) is state


def test_where_a_choice_in_loops_is_the_best_that_fits_they_wait():
    """Plain unrolled loops do not fit: they are faster by what does not count."""
    world = Unrolling(SAVE.time_us - 1)
    state, ask = world.state(60, unroll=True)
    state = plain_and_on_paper(state, ask)
    assert _gains(state)
    state = world.tried(state, ask, ("recompute all", 5), ("save all", 3))
    assert state.is_chosen
    assert not _gains(state)


def test_loops_with_others_inside_are_left_to_other_passes():
    state, ask = Unrolling(1.0).state(60, unroll=True)
    state = plain_and_on_paper(state, ask)
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


def has_no_loops(row: Row) -> bool:
    """Whether all layers of a plan are unrolled."""
    assert row.plan is not None
    return all(a.unroll is True for few in row.plan.actions.values() for a in few)


PROGRAMS = [
    (name, share)
    for name in ("gpt-h100", "reversible-h100", "wide-h100")
    for share in (0.7, 0.5)
]


def first_choice(state: State) -> Row:
    """The first program with unrolled layers that recompute."""
    recomputes = lambda row: any(
        action.kind == "recompute" and action.unroll is True
        for few in row.plan.actions.values()
        for action in few
    )
    return next(row for row in state.rows.values() if row.plan and recomputes(row))


@pytest.mark.parametrize(("name", "share"), PROGRAMS)
def test_the_first_choice_is_the_best_on_paper_and_has_no_loops(name, share):
    """It takes about what it does there; the next one fits if it does not."""
    state = searched(name, share, most=13)
    row = first_choice(state)
    assert has_no_loops(row)
    assert abs(row.bytes / state.budget_bytes - 1) < 0.2
    assert state.fits
    assert has_no_loops(state.best)


@pytest.mark.parametrize(
    ("name", "share", "is_before"),
    [
        ("gpt-h100", 0.7, True),
        ("gpt-h100", 0.5, False),
        ("reversible-h100", 0.5, True),
        ("wide-h100", 0.5, False),
    ],
)
def test_plain_unrolled_loops_that_cannot_fit_wait(name, share, is_before):
    """They keep more than the largest sets do."""
    state = searched(name, share, most=13)
    keys = [*state.trials]
    plain = keys.index(plain_key(state))
    assert (plain < keys.index(state.key_of_row(first_choice(state)))) == is_before


@pytest.mark.slow
@pytest.mark.parametrize(("name", "share"), PROGRAMS)
def test_a_search_of_thirteen_programs_is_near_one_without_a_limit(name, share):
    few, all_of_them = searched(name, share, most=13), searched(name, share)
    assert few.best.time_us <= 1.17 * all_of_them.best.time_us


@pytest.mark.parametrize(
    ("chosen", "most"),
    [
        ({}, 14),
        ({"a": 8}, 9),  # 42 of 60
        ({"a": 6, "save all": 2}, 8),  # 54
        ({"recompute all": 5, "save all": 3}, 10),
    ],
)
def test_a_quick_search_ends_where_unrolled_layers_fit_that_recompute(chosen, most):
    """After one more program where they leave more than a tenth of the budget."""
    costs = {"a": (rr.RECOMPUTE(save=["a"], unroll=True), Cost(4.0, 40.0))}
    state, ask = World(costs).state(60)
    limits = dict(most_compiles=10, most_to_choose=14, most_on_paper=8)
    state = state.but(space=dataclasses.replace(state.space, **limits))
    if chosen:
        counts = {"u": tuple(chosen.items())}
        state = ask(state, [state.assignment_request(counts)])
    assert state.most_compiles == most


@pytest.mark.parametrize("ends", [True, False])
def test_a_search_with_a_limit_leaves_what_stays_in_loops(ends):
    """And says how many programs it left out, at least."""
    costs = {"a": (rr.RECOMPUTE(save=["a"], unroll=True), Cost(4.0, 40.0))}
    world = Unrolling(SAVE.time_us - 1, costs=costs)
    state, ask = world.state(60, unroll=True, ends_unrolled=ends)
    state = plain_and_on_paper(state, ask)
    state = ask(state, [state.assignment_request({"u": (("a", 8),)})])
    left = Candidate("b", rr.RECOMPUTE(save=["b"]))
    proposed = {"u": (*state.space.proposed["u"], left)}
    state = state.but(space=dataclasses.replace(state.space, proposed=proposed))
    after = leave_loops(state, ask)
    assert after.is_settled == ends
    told = [(one.what, one.num_compiles) for one in after.skipped]
    assert told == ([("what stays in loops", 1)] if ends else [])


@pytest.mark.parametrize(
    ("loop_us", "slower_us", "asked", "chosen"),
    [
        (39.0, 0.0, True, "in a loop"),
        (39.0, 20.0, True, "a"),  # the whole takes longer than its layers say
        (39.9, 0.0, False, "a"),  # gains less than half a percent
        (45.0, 0.0, False, "a"),
    ],
)
def test_what_costs_call_better_in_loops_is_measured(loop_us, slower_us, asked, chosen):
    """Once, and a quick search has one program more for it."""
    costs = {
        "a": (rr.RECOMPUTE(save=["a"], unroll=True), Cost(4.0, 40.0)),
        "in a loop": (small("b"), Cost(4.0, loop_us)),
    }
    slower = lambda runs: slower_us if "in a loop" in runs else 0.0
    world = World(costs, slower_us=slower)
    state, ask = world.state(45)
    state = world.tried(state, ask, ("recompute all", 8))
    state = world.tried(state, ask, ("a", 8))
    limits = dict(most_compiles=state.num_compiles, most_on_paper=8)
    state = state.but(space=dataclasses.replace(state.space, **limits))
    assert state.room == asked
    state = better_in_loops(state, ask)
    assert world.asked == ([(("in a loop", 8),)] if asked else [])
    assert dict(state.counts_of(state.best)["u"]) == {chosen: 8}
    assert better_in_loops(state, ask) is state
