"""Slots: of a long loop, as many inputs as fit, by a schedule that runs least again."""

import math

from revremat._action import RECOMPUTE, Action
from revremat._graph import Unit
from revremat._search._keys import Request
from revremat._search._pass import Ask
from revremat._search._result import Row
from revremat._search._state import State


def slots(state: State, ask: Ask) -> State:
    """Measures a binomial schedule for the slots that fit.

    It is for budgets that segments do not reach, or reach by running layers again as
    well. A slot takes the same wherever it is, so the first compile says how many fit.
    """
    unit = _longest(state)
    if unit is None or (state.fits and not _has_segments(state.best, unit)):
        return state
    beside = {u.name: (RECOMPUTE,) * u.num_layers for u in state.units}
    if state.best.plan is not None:
        beside |= state.decided(state.best)
    state = ask(state, [state.all_recomputed()])
    known = state.reference
    if known is None:
        return state
    one = unit.kept(RECOMPUTE).device_bytes
    number, size = unit.num_layers, float(known.bytes)
    tried: set[int] = set()
    for _ in range(state.space.heuristics.most_numbers_of_slots):
        number += math.floor((state.budget_bytes - size) / one)
        number = max(1, min(number, unit.num_layers - 2))
        if number in tried:
            return state
        tried.add(number)
        action = RECOMPUTE(slots=number)
        key = state.key_of({**beside, unit.name: (action,) * unit.num_layers})
        state = ask(state, [Request(key, _label(unit, action))])
        row = state.row(key)
        if row is None:
            return state
        size = row.bytes
    return state


def _longest(state: State) -> Unit | None:
    """The loop whose layers' inputs take most, if it is long."""
    least = state.space.heuristics.least_layers_for_slots
    long = [
        unit
        for unit in state.units
        if unit.num_layers >= least
        and not RECOMPUTE(slots=1).refused_by(unit.facts)
        and unit.kept(RECOMPUTE).device_bytes
    ]
    taken = lambda unit: unit.num_layers * unit.kept(RECOMPUTE).device_bytes
    return max(long, key=taken, default=None)


def _has_segments(row: Row, unit: Unit) -> bool:
    """Whether a program's layers run again for the inputs of others."""
    actions = row.plan.actions.get(unit.name, ()) if row.plan else ()
    return any(action.segment_length > 1 for action in actions)


def _label(unit: Unit, action: Action) -> str:
    return f"{unit.name}: recompute all, {action.slots} slots"
