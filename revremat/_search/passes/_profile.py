"""Profile: the first cost of every candidate, from shortened programs."""

from revremat._action import RECOMPUTE
from revremat._graph import Unit
from revremat._search._pass import Ask
from revremat._search._probes import cuts
from revremat._search._state import State
from revremat._search.passes._ask import probe

_PASSES = 2
"""Over what a layer takes and gives: as far off as its time alone was seen to be."""


def profile_layers(state: State, ask: Ask) -> State:
    """One probe for each candidate, two for one that the others are held to."""
    isolated = [u.name for u in state.units if _is_worth_isolating(state, u)]
    state = state.but(isolated=frozenset(isolated), calibration={})
    for unit in state.units:
        state = probe(state, ask, unit, state.costs[unit.name].first_probes)
        if not state.costs[unit.name].has_reference:  # that one does not compile
            few = cuts(unit, RECOMPUTE, state.space.heuristics.most_whole)
            state = probe(state, ask, unit, few)
    return state


def _is_worth_isolating(state: State, unit: Unit) -> bool:
    """Whether a unit is compiled without the rest of the program."""
    space = state.space
    on_one = space.target.num_devices == 1  # else shardings within are not known
    most_us = space.heuristics.isolate_fused_time * state.baseline.time_us
    is_small = unit.name in space.small_units
    return on_one and is_small and _fused_us(state, unit) <= most_us


def _fused_us(state: State, unit: Unit) -> float:
    """Time that layers may take more alone than fused with what is around them."""
    if unit.is_loop:  # a loop is not fused with anything
        return 0.0
    values = unit.values
    taken = sum(v.num_bytes for v in values if v.role == "input")
    given = sum(values[k].num_bytes for k in unit.outputs)
    moved_bytes = _PASSES * unit.num_layers * (taken + given)
    return 1e6 * moved_bytes / state.space.target.card.stream_bandwidth
