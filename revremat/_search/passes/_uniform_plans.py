"""Uniform plans: one action for all layers of a unit, where programs are timed."""

from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import try_assignments
from revremat.policies import Assignment


def uniform_plans(state: State, ask: Ask) -> State:
    """Measures the fastest of them by first costs, as far as they fit.

    A sum of layers' times has the errors of all of them. Whatever is chosen by it has
    to beat what anybody would write. Loops that can be unrolled are left to the passes
    that do: unrolled, other candidates are the fastest.
    """
    heuristics = state.space.heuristics
    if state.space.unroll and any(c.can_unroll for c in state.costs.values()):
        return state
    limit = heuristics.near_bytes * state.budget_bytes
    found: list[Assignment] = []
    for _ in range(heuristics.num_uniform):
        seen = [assignment.support for assignment in found]
        one = state.assign(state.options, limit, pure=True, excluding=seen)
        if one is None:
            break
        found.append(one)
    return try_assignments(state, ask, [(a.counts, a.bytes) for a in found])[0]
