"""Whether what is inside of units may beat what was found, by a few programs of it."""

import dataclasses
import math
from typing import Any

import pytest

from revremat import RECOMPUTE, SAVE
from revremat._search import BASELINE, ProgramKey, Request
from revremat._search._result import Row
from revremat._search.passes._nested import (
    _all_alike,
    _both,
    _inner,
    _instead,
    _may_gain,
    _merged,
    _promised_us,
    nested,
)
from revremat.policies import Candidate
from tests.search.world import World, measured, unit_of


def rows(*sizes):
    return [Row("", None, measured(size, time_us)) for size, time_us in sizes]


@pytest.mark.parametrize(
    ("sizes", "budget", "time_us"),
    [
        ([], 100, math.inf),
        ([(101, 5.0)], 100, math.inf),
        ([(100, 5.0)], 100, 5.0),
        ([(90, 9.0), (190, 4.0)], 100, 8.5),  # a tenth of the way to the larger
        ([(90, 9.0), (190, 4.0)], 140, 6.5),
        ([(90, 9.0), (190, 4.0)], 190, 4.0),
        ([(100, 9.0), (190, 4.0)], 100, 9.0),
        ([(90, 9.0), (190, 14.0)], 140, 9.0),  # the larger is slower
        ([(80, 9.0), (90, 8.0), (190, 4.0), (110, 7.0)], 100, 6.0 + 1.5),
    ],
)
def test_two_programs_promise_what_lies_between_them(sizes, budget, time_us):
    assert _promised_us(rows(*sizes), budget) == pytest.approx(time_us)


def levels(budget, **how) -> Any:
    """A state outside and one inside of layers that recompute everything."""
    world = World(unit_names=("layers", "loops"))
    both, ask = world.state(budget)
    outer, inner = unit_of("layers"), unit_of("loops", enclosing="layers")
    graph = dataclasses.replace(both.space.graph, units=(outer, inner))
    space = dataclasses.replace(both.space, graph=graph, units=(outer,))
    fixed = {"units": (inner,), "enclosing": (outer,), "nesting": 1, **how}
    inside = both.but(space=dataclasses.replace(space, **fixed), units=(inner,))
    return both.but(space=space, units=(outer,)), inside, ask, world


def known(state, size, time_us, **actions):
    """The same, and a program."""
    key = ProgramKey.of({u: (a,) * 8 for u, a in actions.items()}, False)
    state = state.with_measured(Request(key, "known"), measured(size, time_us))
    return state, state.row(key)


@pytest.mark.parametrize(
    ("tried", "outside", "gains"),
    [
        ([], None, True),  # nothing is known
        ([(90, 9.0)], None, True),
        ([(90, 10.0)], None, False),  # as fast as the best
        ([(90, 10.3), (150, 8.0)], None, True),
        ([(150, 8.0)], None, False),
        ([(150, 8.0)], (90, 10.3), True),  # between one outside and one inside
        ([(150, 8.0)], (90, 14.0), False),
    ],
)
def test_inside_may_be_better_where_programs_promise_it(tried, outside, gains):
    _, inside, _, _ = levels(100)
    inside, _ = known(inside, 100, 10.0, loops=SAVE)
    few = rows(*tried)
    assert _may_gain(inside, few, rows(outside)[0] if outside else None) == gains


@pytest.mark.parametrize(
    ("budget", "actions", "gains"),
    [
        (99, {"loops": SAVE}, True),  # the best does not fit
        (100, {"layers": RECOMPUTE}, True),  # is one of those inside
        (100, {"layers": RECOMPUTE, "loops": SAVE}, True),
        (100, {"loops": SAVE}, False),
    ],
)
def test_inside_may_be_better_where_nothing_fits_or_the_best_is_inside(
    budget, actions, gains
):
    _, inside, _, _ = levels(budget)
    inside, _ = known(inside, 100, 10.0, **actions)
    assert _may_gain(inside, rows((200, 20.0)), None) == gains


@pytest.mark.parametrize(
    ("most", "labels"),
    [
        (1, ["recompute all"]),
        (3, ["recompute all", "dots", "dots_no_batch"]),
        (9, ["recompute all", "dots", "dots_no_batch", "recompute all, in segments"]),
    ],
)
@pytest.mark.parametrize("encloses", [True, False])
def test_a_few_programs_treat_all_inner_layers_alike(most, labels, encloses):
    how = {} if encloses else {"enclosing": ()}
    outside, inside, _, _ = levels(1000, **how)
    pairs = RECOMPUTE(segment_length=2)
    more = (*inside.candidates["loops"], Candidate("pairs", pairs))
    inside = inside.but(candidates={**inside.candidates, "loops": more})
    asked: list[Any] = []

    def ask(state, requests):
        asked.extend(requests)
        return state

    _all_alike(outside, inside.but(gradient_barrier=True), ask, most)
    around = "recompute all, " if encloses else ""
    assert [r.label for r in asked] == [f"{around}nested: {n}" for n in labels]
    actions = [dict(r.key.actions) for r in asked]
    assert not any(r.key.gradient_barrier for r in asked)
    assert all(("layers" in a) == encloses for a in actions)
    assert actions[0]["loops"] == (RECOMPUTE,) * 8
    assert most < 9 or actions[-1]["loops"] == (pairs,) * 8


@pytest.mark.parametrize("recomputes", [True, False])
def test_what_was_found_inside_counts_outside(recomputes):
    outside, inside, _, _ = levels(1000, **({} if recomputes else {"enclosing": ()}))
    before = inside.skip("earlier", 2)
    outside = outside.skip("own", 1).but(nested={recomputes: before})
    inside, _ = known(before, 10, 1.0, loops=SAVE)
    merged = _merged(outside, inside.skip("fill", 3))
    assert [one.what for one in merged.skipped] == ["own", "fill"]
    assert merged.num_compiles == inside.num_compiles
    assert merged.trials == inside.trials
    assert merged.nested[recomputes].skipped[-1].what == "fill"
    assert merged.units == outside.units


def test_where_nothing_is_inside_there_is_nothing_to_ask():
    state, _ = World().state(1000)
    fail = lambda *_: pytest.fail("was asked")
    for one in (_instead, _both):
        after, bound_us = one(state, fail, fail)
        assert bound_us == math.inf
        assert after.trials == state.trials
    assert _inner(state, ()) is None
    assert _instead(state, fail, fail)[0].nested == {False: None}
    assert nested(fail)(state.but(bound_us=5.0, greedy_us=4.0), fail).greedy_us == 4.0


def test_where_nothing_is_to_be_decided_inside_that_is_remembered():
    outside, _, _, _ = levels(1000)
    fail = lambda *_: pytest.fail("was asked")
    state, bound_us = _both(outside.but(nested={True: None}), fail, fail)
    assert (state.nested, bound_us) == ({True: None}, math.inf)


@pytest.mark.parametrize(
    ("inside_us", "bound_us", "greedy_us"),
    [(7.0, 7.0, None), (9.0, 8.0, 6.0), (8.0, 8.0, 6.0)],
)
def test_a_bound_gives_way_where_the_inside_may_be_faster(
    inside_us, bound_us, greedy_us
):
    outside, inside, _, _ = levels(1000)
    known_inside = {True: inside, False: None}
    outside = outside.but(nested=known_inside, bound_us=8.0, greedy_us=6.0)
    found = lambda state, ask: state.but(bound_us=inside_us)
    slow = lambda state, requests: _slowly(state, requests)
    state = nested(found)(outside, slow)
    assert (state.bound_us, state.greedy_us) == (bound_us, greedy_us)


def _slowly(state, requests):
    """The baseline takes long, and everything inside a little less."""
    for request in requests:
        if not state.knows(request):
            us = 100.0 if request.key == BASELINE else 50.0
            state = state.with_measured(request, measured(10, us))
    return state
