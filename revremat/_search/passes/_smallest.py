"""Smallest: what needs least memory is measured where nothing else fits."""

from collections.abc import Sequence

from revremat import policies
from revremat._search._layer_costs import first_cuts
from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import offer, refine, try_mixes

_DOUBTFUL = ("unroll", "on_host", "late")


def smallest(state: State, ask: Ask) -> State:
    """Measures what needs least by its costs, unless there is a plan that fits.

    Costs of what is unrolled, on the host, or added by column generation for another
    budget hold least: where that does not fit after all, the smallest assignments
    without follow. At last, what keeps less still and was left out because of a limit.
    """
    for number in range(len(_DOUBTFUL) + 1):
        if state.fits:
            return state
        if not state.has_room(1):
            return state.skip("smallest", 1)
        state = _try_smallest(state, ask, _DOUBTFUL[:number])
    more = _offer_smaller(state, ask)
    if more.num_compiles == state.num_compiles:
        return more
    if not more.has_room(1):
        return more.skip("smallest", 1)
    return _try_smallest(more, ask, ())


def _offer_smaller(state: State, ask: Ask) -> State:
    """Offers for each unit what keeps least, if less than all that has a cost."""
    if state.fits:
        return state
    after = state.space.heuristics.compiles_after_smallest
    for unit in state.units:
        size = lambda candidate, unit=unit: unit.kept(candidate.action).device_bytes
        offload = state.space.can_offload(unit)
        pool = state.space.pools[unit.name].worth_compiling(offload=offload)
        costs = state.costs[unit.name]
        failing = costs.known_actions - costs.names.keys()
        least = min((c for c in pool if c.action not in failing), key=size)
        if size(least) >= min(map(size, costs.choices.values())):
            continue
        number = len(first_cuts(unit, [least])) + after
        if state.has_room(number):
            state = offer(state, ask, unit, [least])
        else:
            state = state.skip("smallest", number)
    return state


def _try_smallest(state: State, ask: Ask, without: Sequence[str]) -> State:
    """The smallest assignment by the costs there is room for."""
    while True:
        options = state.options_without(without)
        counts = policies.smallest(options, state.host_bytes)
        before = state.num_compiles
        state = refine(state, ask, policies.support(counts))
        if state.num_compiles == before:
            expected = policies.predict_bytes(options, counts)
            return try_mixes(state, ask, [(counts, expected)])[0]
