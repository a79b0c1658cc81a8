"""Bound: how good any assignment could be by its estimated costs, and a greedy one."""

from revremat import policies
from revremat._search._pass import Ask
from revremat._search._state import State


def bound(state: State, ask: Ask) -> State:
    """What a step takes with any assignment, at least, and with a greedy one.

    Where costs say of the best one that it takes more than it does, any other may take
    as much less than its costs. It asks nothing.
    """
    best = state.best_costed
    if best is None or best.bytes > state.budget_bytes:
        return state
    options = state.options
    fixed_us = best.time_us - state.layers_us(best)
    predicted = policies.predict_bytes(options, state.counts_of(best))
    limit = state.budget_bytes + max(0.0, predicted - best.bytes)
    found = state.assign(options, limit)
    host_bytes = state.host_bytes
    greedy = policies.choose_greedily(options, limit, host_budget_bytes=host_bytes)
    return state.but(
        bound_us=max(0.0, found.bound_us + fixed_us) if found else 0.0,
        greedy_us=greedy.time_us + fixed_us if greedy else None,
        is_bounded=True,
    )
