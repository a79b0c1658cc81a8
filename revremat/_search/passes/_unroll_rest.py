"""Unroll rest: the best plan without the loops that it still has."""

from itertools import groupby

from revremat._search._pass import Ask
from revremat._search._result import Row
from revremat._search._state import State
from revremat._search.passes._ask import try_assignments
from revremat.policies import Counts, predict_bytes


def unroll_rest(state: State, ask: Ask) -> State:
    """Measures the best plan with the rest of its layers unrolled, by the same sets.

    A loop between unrolled layers keeps XLA from fusing and scheduling over it. Costs
    of one unit do not tell that: a plan by costs that nearly fits may fit.
    """
    best, heuristics = state.best, state.space.heuristics
    if not (state.fits and state.is_costed(best) and best.takes("unroll")):
        return state
    counts = _unrolled(state, best)
    if counts == state.counts_of(best):
        return state
    error = best.bytes - predict_bytes(state.options, state.counts_of(best))
    expected_bytes = predict_bytes(state.options, counts) + error
    expected_us = sum(state.costs[unit].layers_us(counts[unit]) for unit in counts)
    if (
        expected_bytes > heuristics.near_bytes * state.budget_bytes
        or expected_us >= state.layers_us(best)
    ):
        return state
    return try_assignments(state, ask, [(counts, expected_bytes)])[0]


def _unrolled(state: State, row: Row) -> Counts:
    """A program's layers, unrolled where that has a cost."""
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for unit, actions in state.decided(row).items():
        names = state.costs[unit].names
        taken = [
            names.get(action(unroll=True), names[action])
            if action.can_unroll and not action.unroll
            else names[action]
            for action in actions
        ]
        found[unit] = tuple((name, len(list(run))) for name, run in groupby(taken))
    return found
