"""On paper: the best sets of unrolled layers, before any of them has a cost.

What unrolled layers keep is held in memory as it is, without a stack, so bytes on paper
are right within some percent. What a set has read and written more or less than what
recomputes all tells its time. One program tells whether that holds.
"""

import dataclasses
from collections.abc import Mapping

from revremat._search._keys import ProgramKey, Request
from revremat._search._layer_costs import RECOMPUTE_ALL, summary
from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import try_assignments
from revremat._search.passes._column_generation import unrolled_sets_of
from revremat._search.passes._plain_unroll import (
    plain_key,
    plain_may_fit,
    plain_request,
)
from revremat.policies import Candidate, LayerCost, UnitOptions


def plain_and_on_paper(state: State, ask: Ask) -> State:
    """Measures the best sets on paper, and plain unrolled loops where those may fit.

    No engine is around the latter: it is what `lax.scan(..., unroll=True)` is.
    """
    on_paper = _best_on_paper(state, state.budget_bytes)
    plain = plain_request(state)
    if on_paper is not None and not plain_may_fit(state):
        plain = None  # a longer search asks for it
    wanted = [one for one in (plain, on_paper) if one is not None]
    new = [_without_promise(one) for one in wanted if not state.knows(one)]
    return ask(state, new) if new else state


def best_on_paper(state: State, ask: Ask) -> State:
    """Smaller sets where nothing is chosen that fits, larger ones if much is left.

    A longer search asks for plain unrolled loops at the same time, which come next.
    """
    request = _best_on_paper(state, state.budget_bytes)
    for _ in range(state.space.heuristics.most_brief_tightenings):
        if request is None:
            break
        key, expected = request.key, request.predicted_bytes
        assert isinstance(key, ProgramKey)
        assert expected is not None
        row = state.row(key)
        if row is None or (state.is_chosen and not state.leaves_much):
            break
        limit = state.budget_bytes - (row.bytes - expected)
        request = _best_on_paper(state, limit)
        if request is None or state.knows(request):
            break
        wanted = [request, None if state.space.most_on_paper else plain_request(state)]
        new = [one for one in wanted if one is not None and not state.knows(one)]
        state = ask(state, [*map(_without_promise, new)])
    return state


def better_in_loops(state: State, ask: Ask) -> State:
    """What stays in loops, where first costs call that better than what is unrolled."""
    found = state.better_in_loops if state.recomputes_unrolled else None
    if found is None:
        return state
    return try_assignments(state, ask, [(found.counts, found.bytes)])[0]


def _without_promise(request: Request) -> Request:
    """The same; what a program takes on paper is no error of costs."""
    return dataclasses.replace(request, predicted_bytes=None)


def has_unrolled_sets(state: State) -> bool:
    """Whether sets of unrolled layers are worth it.

    Loops with others inside are left to other passes: most is inside. Of times that are
    measured, paper says nothing.
    """
    loops = {unit.name for unit in state.units if state.costs[unit.name].can_unroll}
    return (
        plain_key(state) is not None
        and not state.space.heuristics.is_measured
        and not any(unit.enclosing in loops for unit in state.space.graph.units)
    )


def _best_on_paper(state: State, limit: float) -> Request | None:
    """The program of the best sets; None where there is none, or nothing to try."""
    if not has_unrolled_sets(state) or state.reference is None:
        return None
    actions, runs, options = {}, {}, []
    known: dict[str, Mapping[str, Candidate]] = {}
    for unit_options in state.options:
        found, few = _on_paper(state, unit_options)
        options.append(found)
        known[found.unit] = few
    assignment = state.assign(options, limit)
    if assignment is None:
        return None
    for unit, few in assignment.counts.items():
        taken = [known[unit][name].action for name, n in few for _ in range(n)]
        actions[unit], runs[unit] = tuple(taken), few
    return Request(state.key_of(actions), summary(runs), assignment.bytes)


def _on_paper(
    state: State, options: UnitOptions
) -> tuple[UnitOptions, Mapping[str, Candidate]]:
    """A unit's sets unrolled, or its costs where it stays as it is."""
    unit, costs = state.space.graph[options.unit], state.costs[options.unit]
    if not costs.can_unroll:
        return options, costs.candidates
    pool, card = state.space.pools[unit.name], state.space.target.card
    plain = costs.candidates[RECOMPUTE_ALL]
    (known,) = (cost for cost in options.costs if cost.name == RECOMPUTE_ALL)
    sets = {c.name: c for c in unrolled_sets_of(state, unit, pool.sets)}
    found = []
    for name, one in sets.items():
        kept_bytes = pool.kept(one).device_bytes
        moved = pool.cost(one).traffic - pool.cost(plain).traffic
        time_us = known.time_us + 1e6 * moved / card.stream_bandwidth
        found.append(LayerCost(name, kept_bytes, known.base_bytes, 0.0, time_us))
    return UnitOptions(options.unit, options.num_layers, tuple(found)), sets
