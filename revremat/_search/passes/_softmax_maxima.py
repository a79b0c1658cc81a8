"""Softmax maxima: candidates once more without a value no model can judge."""

from revremat._search._pass import Ask
from revremat._search._state import State
from revremat._search.passes._ask import offer
from revremat.policies import kept_maxima, without_maxima


def softmax_maxima(state: State, ask: Ask) -> State:
    """Offers what keeps a softmax's maxima without them, too, where that is faster.

    One candidate tells for all of its unit, maximum by maximum. Not of loops that a
    stopwatch found to gain unrolled.
    """
    for unit in state.units:
        if state.gains_unrolled(unit):
            continue
        candidates = [*state.costs[unit.name].probed.values()]
        kept = {c: kept_maxima(unit, c) for c in candidates}
        slower: set[str] = set()
        for maximum in dict.fromkeys(name for names in kept.values() for name in names):
            one = next(c for c, names in kept.items() if maximum in names)
            variant = without_maxima(one, [maximum])
            state = offer(state, ask, unit, [variant])
            costs = state.costs[unit.name]
            name = costs.names.get(variant.action)
            if name is None or one.name not in costs.candidates:
                continue
            if costs.difference(name)[1] < costs.difference(one.name)[1]:
                slower.add(maximum)
        known = state.dropped_maxima.get(unit.name, frozenset())
        dropped = {**state.dropped_maxima, unit.name: known | slower}
        state = state.but(dropped_maxima=dropped)
        keeping = [c for c, names in kept.items() if slower & set(names)]
        variants = [without_maxima(c, slower) for c in keeping]
        if variants:
            state = offer(state, ask, unit, variants)
            before = state.dominated.get(unit.name, frozenset())
            names = before | {c.name for c in keeping}
            state = state.but(dominated={**state.dominated, unit.name: names})
    return state
