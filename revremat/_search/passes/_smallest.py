"""Smallest: what needs least memory is measured where nothing else fits."""

from collections.abc import Sequence

from revremat import policies
from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import refine, try_assignments

_DOUBTFUL = ("unroll", "on_host", "generated")


def smallest(state: State, ask: Ask) -> State:
    """Measures what needs least by estimated costs, unless there is a plan that fits.

    Costs of what is unrolled, on the host, or added by column generation for another
    budget hold least: where that does not fit after all, the smallest assignments
    without follow.
    """
    for number in range(len(_DOUBTFUL) + 1):
        if state.fits:
            return state
        state = _try_smallest(state, ask, _DOUBTFUL[:number])
    return state


def _try_smallest(state: State, ask: Ask, without: Sequence[str]) -> State:
    """The smallest assignment by its estimated costs."""
    while True:
        options = state.options_without(without)
        counts = policies.smallest(options, state.host_bytes)
        before = state.num_compiles
        state = refine(state, ask, policies.support(counts))
        if state.num_compiles == before:
            expected = policies.predict_bytes(options, counts)
            return try_assignments(state, ask, [(counts, expected)])[0]
