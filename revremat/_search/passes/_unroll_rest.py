"""Unroll rest: the best plan without the loops that it still has."""

from revremat._action import Action
from revremat._search._keys import Actions
from revremat._search._pass import Ask
from revremat._search._result import Row
from revremat._search._state import State
from revremat._search.passes._ask import try_assignments
from revremat.policies import predict_bytes


def unroll_rest(state: State, ask: Ask) -> State:
    """Measures the best plan with the rest of its layers unrolled, by the same sets.

    A loop between unrolled layers keeps XLA from fusing and scheduling over it. Costs
    of one unit do not tell that: a plan by costs that nearly fits may fit.
    """
    best, heuristics = state.best_costed, state.space.heuristics
    if best is None or best.bytes > state.budget_bytes or not best.takes("unroll"):
        return state
    before, counts = state.counts_of(best), state.counts(_unrolled(state, best))
    if counts == before:
        return state
    error = best.bytes - predict_bytes(state.options, before)
    expected_bytes = predict_bytes(state.options, counts) + error
    expected_us = sum(state.costs[unit].layers_us(counts[unit]) for unit in counts)
    if (
        expected_bytes > heuristics.near_bytes * state.budget_bytes
        or expected_us >= state.layers_us(best)
    ):
        return state
    return try_assignments(state, ask, [(counts, expected_bytes)])[0]


def _unrolled(state: State, row: Row) -> Actions:
    """A program's layers, unrolled where that has a cost."""

    def unrolled(unit: str, action: Action) -> Action:
        costs, other = state.costs[unit], action(unroll=True)
        has_cost = costs.options.has(costs.names.get(other, ""))
        return other if action.can_unroll and has_cost else action

    return {
        unit: tuple(unrolled(unit, action) for action in actions)
        for unit, actions in state.decided(row).items()
    }
