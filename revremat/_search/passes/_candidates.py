"""Candidates: all that is proposed for a unit, after the few it began with."""

from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import offer


def candidates(state: State, ask: Ask) -> State:
    """Offers whatever was proposed at first and has no cost yet."""
    for unit in state.units:
        state = offer(state, ask, unit, state.space.proposed[unit.name])
    return state
