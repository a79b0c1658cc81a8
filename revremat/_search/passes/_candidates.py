"""Candidates: what is proposed for a unit, after the few it began with."""

from revremat._search._pass import Ask
from revremat._search._start import another_of
from revremat._search._state import State
from revremat._search.passes._ask import offer


def another(state: State, ask: Ask) -> State:
    """Offers one more candidate of every unit than it began with."""
    for name, candidate in another_of(state).items():
        state = offer(state, ask, state.space.graph[name], [candidate])
    return state


def candidates(state: State, ask: Ask) -> State:
    """Offers whatever was proposed at first and has no cost yet.

    Not for loops that a stopwatch found to gain unrolled: it is offered so instead.
    """
    for unit in state.units:
        if state.gains_unrolled(unit):
            continue
        state = offer(state, ask, unit, state.space.proposed[unit.name])
    return state
