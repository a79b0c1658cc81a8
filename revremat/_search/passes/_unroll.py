"""Unroll: candidates whose layers stand one after the other instead of in a loop."""

from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import offer
from revremat.policies import Support


def unroll(state: State, ask: Ask) -> State:
    """Offers all candidates unrolled that are not yet."""
    return unroll_those(state, ask, None)


def unroll_those(state: State, ask: Ask, support: Support | None) -> State:
    """Offers candidates unrolled.

    Args:
      state: Knows costs.
      ask: Asks for those of unrolled layers.
      support: Which candidates of which units; None for all.
    """
    for unit in state.units if state.space.unroll else ():
        variants = [
            variant
            for variant in state.costs[unit.name].not_unrolled()
            if support is None or (unit.name, variant.plain.name) in support
        ]
        if variants:
            state = offer(state, ask, unit, variants)
    return state
