"""Unroll: candidates whose layers stand one after the other instead of in a loop."""

from collections.abc import Collection

from revremat._graph import Unit
from revremat._search._layer_costs import RECOMPUTE_ALL
from revremat._search._pass import Ask
from revremat._search._state import State, support_of
from revremat._search.passes._ask import offer
from revremat.policies import Support


def unroll(state: State, ask: Ask) -> State:
    """Offers all candidates unrolled that are not yet.

    Not of loops that a stopwatch found to gain so: theirs are chosen among more.
    """
    return unroll_those(state, ask, None)


def unroll_those(state: State, ask: Ask, support: Support | None) -> State:
    """Offers candidates unrolled.

    Args:
      state: Knows costs.
      ask: Asks for those of unrolled layers.
      support: Which candidates of which units; None for all.
    """
    for unit in state.units if state.space.unroll else ():
        if support is None and state.gains_unrolled(unit):
            continue
        variants = [
            variant
            for variant in state.costs[unit.name].not_unrolled()
            if support is None or (unit.name, variant.plain.name) in support
        ]
        if variants:
            state = offer(state, ask, unit, variants)
    return state


def unroll_by_few(state: State, ask: Ask) -> State:
    """Offers what was chosen for a loop with several layers to an iteration.

    The loop stays one, so this is for layers that take little longer than an iteration
    itself, and for loops too long to be unrolled whole. More layers to an iteration are
    offered as long as the number before has gained.
    """
    for unit in state.units if state.space.unroll else ():
        names = _chosen(state, unit)
        if not _is_worth_it(state, unit, names):
            continue
        for number in state.space.heuristics.unrolled_by:
            variants = state.costs[unit.name].unrolled_by(number, names)
            state = offer(state, ask, unit, variants)
            if not _gained(state, unit, [one.name for one in variants]):
                break
    return state


def _chosen(state: State, unit: Unit) -> list[str]:
    if state.leading is None:
        return [RECOMPUTE_ALL]
    return support_of(state.leading.support, state.costs[unit.name])


def _is_worth_it(state: State, unit: Unit, names: Collection[str]) -> bool:
    costs = state.costs[unit.name]
    most_us = state.space.heuristics.short_layer_us
    is_short = any(costs.cost(name).time_us <= most_us for name in names)
    return is_short or not costs.can_unroll


def _gained(state: State, unit: Unit, names: Collection[str]) -> bool:
    """Whether any of these takes less time than all others of the unit."""
    known = {cost.name: cost.time_us for cost in state.costs[unit.name].options.costs}
    before = min(us for name, us in known.items() if name not in names)
    return any(known[name] < before for name in names if name in known)
