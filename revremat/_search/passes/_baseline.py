"""Baseline: the program as the user wrote it."""

from revremat._search._keys import BASELINE, Request
from revremat._search._pass import Ask
from revremat._search._schedules import request_of, uniform
from revremat._search._state import State


def baseline(state: State, ask: Ask) -> State:
    """Measures the program without a plan; everything is held to it."""
    return ask(state, [Request(BASELINE, "baseline")])


def recompute_all(state: State, ask: Ask) -> State:
    """Measures the program with everything recomputed: mostly, none is smaller."""
    if (chain := state.space.chain) is not None:
        return ask(state, [request_of(state, uniform(chain)[2])])
    return ask(state, [state.all_recomputed()])
