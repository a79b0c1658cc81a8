"""Near sets: those that keep about what fits, where a stopwatch says what they take.

What is fused decides what recomputing a value costs, and no model knows that of every
machine. So two kinds are measured: sets that rank values by arithmetic alone, and cuts
of unrolled layers. Of one program these are the fastest, of another one those.
"""

from collections.abc import Sequence
from itertools import chain, zip_longest

from revremat._action import RECOMPUTE
from revremat._graph import Unit
from revremat._search._layer_costs import RECOMPUTE_ALL, SAVE_ALL
from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import offer
from revremat.policies import PRESETS, Candidate, drops, predict_bytes


def near_drops(state: State, ask: Ask) -> State:
    """Offers those by arithmetic; of loops that gain unrolled, later."""
    if not state.space.heuristics.is_measured or not state.options:
        return state
    for unit in state.units:
        if not (state.space.unroll and state.costs[unit.name].can_unroll):
            state = offer(state, ask, unit, drops_of(state, unit))
    return state


def drops_of(state: State, unit: Unit) -> list[Candidate]:
    """The sets by arithmetic that fit and keep most, and the next larger one."""
    number = state.space.heuristics.num_drops
    few = [one.candidate for one in drops(unit)]
    fitting, larger = _next_to_budget(state, unit, few)
    return [*fitting[:number], *larger[:1]]


def worth_unrolling(state: State, unit: Unit) -> list[Candidate]:
    """What is offered of a loop that gains unrolled, the most likely first.

    Presets, which anybody would try, come first. Then cuts take turns with sets by
    arithmetic, and last comes what the loop was offered.
    """
    number, proposed = state.space.heuristics.num_drops, state.space.proposed[unit.name]
    ends = [one for one in proposed if one.name in (RECOMPUTE_ALL, SAVE_ALL)]
    by_turns = [one for one in proposed if one.name in PRESETS and one not in ends]
    few = [*state.space.pools[unit.name].unrolled_sets]
    cuts = _next_to_budget(state, unit, few)[0][:number]
    pairs = chain.from_iterable(zip_longest(cuts, drops_of(state, unit)))
    by_turns += [one for one in pairs if one is not None and one.action != RECOMPUTE]
    known = state.costs[unit.name].candidates.values()
    others = [one for one in (*proposed, *known) if one not in ends]
    return [*by_turns, *others, *ends]


def _next_to_budget(
    state: State, unit: Unit, few: Sequence[Candidate]
) -> tuple[list[Candidate], list[Candidate]]:
    """Those that fit, the largest first, and the others, the smallest first.

    All of the unit's layers keep the same there, and those of other units their inputs
    alone.
    """
    size = lambda one: unit.kept(one.action).device_bytes
    least = {u.name: ((RECOMPUTE_ALL, u.num_layers),) for u in state.units}
    left_bytes = state.budget_bytes - predict_bytes(state.options, least)
    most_bytes = left_bytes / unit.num_layers + min(map(size, few), default=0)
    fitting = sorted((c for c in few if size(c) <= most_bytes), key=size, reverse=True)
    larger = sorted((c for c in few if size(c) > most_bytes), key=size)
    return fitting, larger
