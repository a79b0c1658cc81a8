"""Plain unroll: the program with its loops unrolled, which anybody would try first."""

from collections.abc import Mapping

from revremat._action import RECOMPUTE, SAVE, Action
from revremat._search._keys import BASELINE, ProgramKey, Request
from revremat._search._layer_costs import (
    RECOMPUTE_ALL,
    SAVE_ALL_UNROLLED,
    summary,
    unrolled,
)
from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import offer, refine
from revremat._search.passes._column_generation import (
    ask_for_best,
    with_all_estimates,
)
from revremat.policies import Candidate
from revremat.xla import remat_pass_refusal


def plain_unroll(state: State, ask: Ask) -> State:
    """Measures the program with its loops unrolled and nothing recomputed."""
    request = plain_request(state)
    return state if request is None else ask(state, [request])


def plain_request(state: State) -> Request | None:
    """The program with its loops unrolled; None where nothing can be unrolled.

    And where a stopwatch would have kernels generated for what cannot be chosen: it has
    no room, and there is no remat pass to make it fit.
    """
    if (key := plain_key(state)) is None:
        return None
    is_measured, target = state.space.heuristics.is_measured, state.space.target
    if is_measured and remat_pass_refusal(target) and not plain_may_fit(state):
        return None
    runs = {
        unit: ((SAVE_ALL_UNROLLED.name, len(few)),)
        for unit, few in _plain(state).items()
    }
    return Request(key, summary(runs))


def plain_key(state: State) -> ProgramKey | None:
    """Which program that is; None where nothing can be unrolled."""
    actions = _plain(state)
    if not actions or state.space.enclosing:
        return None
    return state.key_of(actions, gradient_barrier=False)


def plain_may_fit(state: State) -> bool:
    """Whether plain unrolled loops may: they keep more than the largest sets do.

    And not much less than plain autodiff keeps on paper.
    """
    kept, least = 0.0, state.space.heuristics.least_kept_unrolled
    for unit in state.units:
        if state.costs[unit.name].can_unroll:
            sets = state.space.pools[unit.name].unrolled_sets
            each = [unit.kept(one.action).device_bytes for one in sets]
            on_paper = least * unit.kept(SAVE).device_bytes
            kept += unit.num_layers * max([on_paper, *each])
    argument_bytes = state.space.argument_bytes
    if (baseline := state.row(BASELINE)) is not None:
        argument_bytes = baseline.measurement.memory.argument_bytes
    return argument_bytes + kept <= state.budget_bytes


def settle(state: State, ask: Ask) -> State:
    """Ends the search where plain unrolled loops fit and nothing can gain on them.

    Sets that have no cost are estimated by what memory they have read and written. The
    best assignment of all of them is a bound on what a search could still gain. Held
    to what recomputes all, a set that keeps half of a layer may seem slow; so the one
    that is best if held to what keeps all is measured first.
    """
    heuristics, actions = state.space.heuristics, _plain(state)
    key = state.key_of(actions, gradient_barrier=False)
    row = state.row(key) if actions and state.fits else None
    if row is None or state.key_of_row(state.best) != key:
        return state
    if not all(unit.name in actions for unit in state.units):
        return state  # what is no loop has not been decided
    if any(unit.enclosing in actions for unit in state.space.graph.units):
        return state  # nor what is inside of the loops
    more = state
    for unit in state.units:
        least = unrolled(Candidate(RECOMPUTE_ALL, RECOMPUTE))
        more = offer(more, ask, unit, [SAVE_ALL_UNROLLED, least])
    both = frozenset(
        (unit.name, more.costs[unit.name].names[action])
        for unit in more.units
        for action in (SAVE_ALL_UNROLLED.action, RECOMPUTE(unroll=True))
        if action in more.costs[unit.name].names
    )
    more = ask_for_best(refine(more, ask, both), ask, by_chosen=True)
    found = more.assign(with_all_estimates(more), more.budget_bytes)
    if found is None or not more.is_costed(row):
        return more
    gain_us = more.layers_us(row) - found.time_us
    if gain_us > heuristics.least_gain_settled * row.time_us:
        return more
    bound_us = row.time_us - max(0.0, gain_us)
    return more.but(is_settled=True, bound_us=bound_us)


def _plain(state: State) -> Mapping[str, tuple[Action, ...]]:
    """Plain actions of all loops that may be unrolled."""
    if not state.space.unroll:
        return {}
    return {
        unit.name: (SAVE_ALL_UNROLLED.action,) * unit.num_layers
        for unit in state.units
        if state.costs[unit.name].can_unroll
    }
