"""Unroll: candidates whose layers stand one after the other instead of in a loop."""

from revremat._search._layer_costs import unrolled
from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import offer
from revremat.policies import Support


def unroll(state: State, ask: Ask, support: Support = frozenset()) -> State:
    """Offers candidates unrolled.

    Args:
      state: Knows costs.
      ask: Asks for those of unrolled layers.
      support: What was chosen: where there is no room for all, only that is unrolled.
    """
    after = state.space.heuristics.compiles_after_variants
    for unit in state.units if state.space.unroll else ():
        costs = state.costs[unit.name]
        if not (variants := costs.not_unrolled()):
            continue
        chosen = {
            unrolled(costs.choices[name]).name
            for of, name in support
            if of == unit.name and name in costs.choices
        }
        number = len(variants) + len(chosen)
        if not state.has_room(number + after):
            state = state.skip("unroll", number + after)
            variants = [c for c in variants if c.name in chosen]
        number = len(variants) + len(chosen) + 1
        if variants and not state.has_room(number):
            state = state.skip("unroll", number)
        elif variants:
            state = offer(state, ask, unit, variants)
    return state


def unroll_freely(state: State, ask: Ask) -> State:
    """Offers all of them before anything is chosen, unless compiles are counted."""
    return state if state.space.most_compiles is not None else unroll(state, ask)
