"""Uniform: plans of one action for all layers, where programs are timed."""

from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import try_assignments
from revremat.policies import Counts, predict_bytes


def uniform(state: State, ask: Ask) -> State:
    """Measures whole programs of each unit's fastest candidates, as far as they fit.

    A sum of layers' times has the errors of all of them. Whatever is chosen by it has
    to beat what anybody would write. Loops that can be unrolled are left to the passes
    that do: unrolled, other candidates are the fastest.
    """
    heuristics, all_options = state.space.heuristics, state.options
    if state.space.unroll and any(c.can_unroll for c in state.costs.values()):
        return state
    limit = heuristics.near_bytes * state.budget_bytes
    found: list[tuple[Counts, float]] = []
    for place in range(heuristics.num_uniform):
        counts: Counts = {}
        for options in all_options:
            by_time = sorted(options.costs, key=lambda cost: cost.time_us)
            chosen = by_time[min(place, len(by_time) - 1)]
            counts[options.unit] = ((chosen.name, options.num_layers),)
        size = predict_bytes(all_options, counts)
        if size <= limit and (counts, size) not in found:
            found.append((counts, size))
    return try_assignments(state, ask, found)[0]
