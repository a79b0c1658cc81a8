"""Drops: sets that keep about what fits, where a stopwatch says what they take.

What is fused decides what recomputing a value costs, and no model knows that of every
machine. Here sets are measured that rank values by arithmetic alone.
"""

from revremat._graph import Unit
from revremat._search._layer_costs import RECOMPUTE_ALL
from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import offer
from revremat.policies import Candidate, drops, predict_bytes


def near_drops(state: State, ask: Ask) -> State:
    """Offers those next to the budget; of loops that gain unrolled, later."""
    if not state.space.heuristics.is_measured or not state.options:
        return state
    for unit in state.units:
        if not (state.space.unroll and state.costs[unit.name].can_unroll):
            state = offer(state, ask, unit, drops_of(state, unit))
    return state


def drops_of(state: State, unit: Unit) -> list[Candidate]:
    """The sets of a unit that fit and keep most, and the next larger one.

    All of its layers keep the same there, and those of other units their inputs alone.
    """
    heuristics, few = state.space.heuristics, [one.candidate for one in drops(unit)]
    size = lambda one: unit.kept(one.action).device_bytes
    least = {u.name: ((RECOMPUTE_ALL, u.num_layers),) for u in state.units}
    left_bytes = state.budget_bytes - predict_bytes(state.options, least)
    most_bytes = left_bytes / unit.num_layers + min(map(size, few), default=0)
    fitting = sorted((c for c in few if size(c) <= most_bytes), key=size, reverse=True)
    larger = sorted((c for c in few if size(c) > most_bytes), key=size)
    return [*fitting[: heuristics.num_drops], *larger[:1]]
