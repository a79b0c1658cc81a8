"""Runners-up: what else is measured beside the assignment that is best by its costs."""

from collections.abc import Sequence

from revremat import policies
from revremat._search._pass import Ask
from revremat._search._result import over
from revremat._search._state import State
from revremat._search.passes._ask import assign, try_assignments
from revremat.policies import Assignment


def runners_up(state: State, ask: Ask) -> State:
    """Measures what comes near the assignment that is best by its costs."""
    return compare(state, ask, state.leading) if state.leading else state


def compare(
    state: State, ask: Ask, assignment: Assignment, without: Sequence[str] = ()
) -> State:
    """Measures the nearest competitors, and the best that treats all layers alike.

    Args:
      state: Knows the costs.
      ask: Measures.
      assignment: What they like best.
      without: Kinds that no layer takes, as `State.options_without` has them.
    """
    heuristics = state.space.heuristics
    most, budget = heuristics.num_runners_up, state.budget_bytes
    number = sum(map(len, state.candidates.values()))
    at = (budget, assignment.support, tuple(without), number)
    if at in state.compared:
        return state
    # Costs were set right by the reference: what that took is no error of theirs.
    rows = [r for key, r in state.rows.items() if key != state.reference_key]
    rows = [r for r in rows if state.is_costed(r) and not r.takes(*without)]
    akin = [
        r for r in rows if assignment.support & policies.support(state.counts_of(r))
    ]
    limit = budget - over(akin)
    # Assignments of several may need copies of weights that no cost has; these do not.
    alike_limit = budget - over(r for r in rows if r.alike)
    state, pure = assign(state, ask, alike_limit, without, pure=True)
    found = [] if pure is None else [pure]
    seen, best = [assignment.support, *(c.support for c in found)], state.best_costed
    # If all layers are alike in what was chosen, one compile more is left.
    is_news = pure is not None and pure.support != assignment.support
    for _ in range(most + (not is_news)):
        state, other = assign(state, ask, limit, without, excluding=seen)
        if other is None:
            break
        seen.append(other.support)
        if best is not None:
            fixed_us = best.time_us - state.layers_us(best)
            if other.time_us + fixed_us > heuristics.near_time * state.best.time_us:
                break
        found.append(other)
    assignments = [(assignment.counts, assignment.bytes) for assignment in found]
    state = try_assignments(state, ask, assignments)[0]  # at the same time
    return state.but(compared=state.compared | {at})
