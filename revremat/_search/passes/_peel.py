"""Peel: plans whose first and last layers stand outside of their loops.

A loop costs something: weights are cut out of their stack and residuals written to one.
"""

from itertools import batched, product

from revremat._graph import Unit
from revremat._search._pass import Ask
from revremat._search._peeled import can_peel, neighbour, peeled_cut
from revremat._search._result import Row
from revremat._search._state import State
from revremat._search.passes._ask import probe, try_assignments
from revremat._search.passes._local_search import split
from revremat.policies import Counts, LayerCost, Runs


def peel(state: State, ask: Ask) -> State:
    """Tries other actions for the first and last layers of the best plan.

    And of the smallest one all in loops that is hardly too large and faster: a peeled
    layer may give back more than it keeps. The bound then holds for such plans, too.
    """
    if (best := state.best_costed) is None:
        return state
    bound_us = state.bound_us
    if best.bytes <= state.budget_bytes:
        state, gain_us = peel_from(state, ask, best)
        bound_us += gain_us
    for row in _near_misses(state):
        state, gain_us = peel_from(state, ask, row)
        bound_us = min(bound_us, row.time_us + gain_us)
    return state.but(bound_us=max(0.0, bound_us))


def _near_misses(state: State) -> list[Row]:
    """A plan all in loops, hardly too large, and faster than the best if that fits."""
    heuristics, budget, best = state.space.heuristics, state.budget_bytes, state.best
    most_us = best.time_us / (1 + heuristics.least_gain_local)
    found = [
        row
        for row in state.rows.values()
        if budget < row.bytes <= heuristics.nearly_budget * budget
        and (row.time_us < most_us or best.bytes > budget)
        and state.is_costed(row)
        and not (row.takes("unroll") or split(state, row)[1])
    ]
    return sorted(found, key=lambda row: row.bytes)[:1]


def peel_from(state: State, ask: Ask, start: Row) -> tuple[State, float]:
    """Other actions for the first and the last layer of every loop.

    Args:
      state: Knows the costs.
      ask: Measures.
      start: A plan with costs, which may be too large.

    Returns:
      What is known then, and how much faster than that the costs say that such a plan
      can be, at most (0 or less).
    """
    heuristics, budget = state.space.heuristics, state.budget_bytes
    row, gain_us = start, 0.0
    none_fits = start.bytes > budget and not state.fits
    most_whole = state.space.heuristics.most_whole
    units = [unit for unit in state.units if can_peel(unit, most_whole)]
    for unit in units:
        few = max(1, heuristics.num_peeled // len(units))
        counts = state.counts_of(row)
        room = budget - row.bytes
        sides: list[list[LayerCost | None]] = []
        for last in (False, True):
            state, more, known = _side(state, ask, unit, counts[unit.name], last, few)
            sides.append([None, *more])
            gain_us += min([0.0, *(cost.time_us for cost in known)])
        options = []
        for first, end in product(*sides):
            added = [cost for cost in (first, end) if cost is not None]
            time_us = sum(cost.time_us for cost in added)
            size = sum(cost.kept_bytes for cost in added)
            if added and (time_us < 0 or none_fits) and size <= room:
                runs = _with_peeled(counts[unit.name], first, end)
                options.append((time_us, size, {**counts, unit.name: runs}))
        options.sort(key=lambda option: option[:2])
        tried = [
            (assignment, size)
            for _, size, assignment in options[: heuristics.most_trimmed]
        ]
        state, row = _trim(state, ask, row, tried)
    return state, gain_us


def _side(
    state: State, ask: Ask, unit: Unit, runs: Runs, last: bool, few: int
) -> tuple[State, list[LayerCost], list[LayerCost]]:
    """Costs of one peeled layer: those to try, and those that tell what it can gain."""
    beside, stands_alone = neighbour(runs, last)
    costs = state.costs[unit.name]
    action = costs.candidates[beside].action
    if action.segment_length > 1 or action.unroll:
        return state, [], []
    names = [] if stands_alone else costs.peeled.least_recomputed(beside, few)
    cuts = [peeled_cut(costs.candidates[n].action, action, last) for n in names]
    state = probe(state, ask, unit, cuts)
    peeled = state.costs[unit.name].peeled
    found = [peeled.cost(name, beside, last) for name in names]
    found = [cost for cost in found if cost is not None]
    return state, found, found or peeled.known(beside, last)


def _trim(
    state: State, ask: Ask, row: Row, options: list[tuple[Counts, float]]
) -> tuple[State, Row]:
    """Measures a few peeled plans, two at a time, until one fits; the fastest."""
    fits = row.bytes <= state.budget_bytes
    fitting = [row] if fits else []
    for tried in batched(options, 2):
        assignments = [(assignment, row.bytes + size) for assignment, size in tried]
        state, rows = try_assignments(state, ask, assignments)
        fitting += [r for r in rows if r and r.bytes <= state.budget_bytes]
        if len(fitting) > fits:
            break
    return state, min(fitting, key=lambda r: r.time_us, default=row)


def _with_peeled(
    runs: Runs, first: LayerCost | None, last: LayerCost | None
) -> tuple[tuple[str, int], ...]:
    """The runs, with a first and a last layer of their own."""
    found = list(runs)
    if first is not None:
        found[0] = (found[0][0], found[0][1] - 1)
        found.insert(0, (first.name, 1))
    if last is not None:
        found[-1] = (found[-1][0], found[-1][1] - 1)
        found.append((last.name, 1))
    return tuple((name, n) for name, n in found if n)
