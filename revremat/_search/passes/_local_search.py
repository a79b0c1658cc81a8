"""Local search: changes around the best plan, for what it leaves of the budget."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from revremat._search._pass import Ask
from revremat._search._result import Row
from revremat._search._state import State
from revremat._search.passes._ask import refine, try_assignments
from revremat.policies import (
    Assignment,
    Counts,
    Runs,
    Support,
    UnitOptions,
    predict_bytes,
)

_Kind = tuple[str, str]
"""A unit and a candidate of it."""
_Peeled = Mapping[str, tuple[Runs, Runs]]
"""What stands before and after the loops of units."""


@dataclass(frozen=True)
class _Miss:
    """An assignment that came out too large.

    Attributes:
      newcomer: The kind of layers in it that the best plan had not, if there was one.
      assignment: The assignment.
      bytes: What it took.
    """

    newcomer: _Kind | None
    assignment: Assignment
    bytes: int

    def came_with(self, newcomer: _Kind | None, options: Sequence[UnitOptions]) -> bool:
        """Whether it tells of assignments of these options, by what is new in both."""
        if self.newcomer is None:
            return newcomer is None
        unit, name = self.newcomer
        return any(
            unit_options.unit == unit and unit_options.has(name)
            for unit_options in options
        )


def local_search(state: State, ask: Ask) -> State:
    """Fills the budget, unless what the best plan leaves is known to be of no use.

    The best one whose actions have costs: the best of all may have none.
    """
    best = state.best_costed
    if best is None or best.bytes > state.budget_bytes:
        return state
    if is_local_optimum(state, best):
        return state
    state, row, is_full = local_search_from(state, ask, best)
    if not is_full:
        return state
    at = state.key_of_row(row), state.budget_bytes
    return state.but(exhausted=state.exhausted | {at})


def is_local_optimum(state: State, row: Row) -> bool:
    """Whether a program leaves next to nothing of the budget, or what is of no use."""
    if (state.key_of_row(row), state.budget_bytes) in state.exhausted:
        return row.bytes <= state.budget_bytes
    least = (1 - state.space.heuristics.negligible_budget) * state.budget_bytes
    return least < row.bytes <= state.budget_bytes


def local_search_from(state: State, ask: Ask, best: Row) -> tuple[State, Row, bool]:
    """Uses up what the best plan leaves of the budget.

    Costs tell a difference between two assignments of the same kinds of layers better
    than they tell the sum of either, so they are held to what the best one really took.
    No more than one kind of layers comes in at a time. Peeled layers stay.

    Returns:
      What is known then; the fastest that fits, the same row if there is none that is
      faster; and whether no more is to be had: next to nothing is left, or nothing near
      is faster by its estimated costs but for what the compiler says is not.
    """
    heuristics, budget = state.space.heuristics, state.budget_bytes
    misses: list[_Miss] = []
    slower: list[Support] = []
    counts, peeled = split(state, best)
    for _ in range(heuristics.most_local_steps):
        if budget - best.bytes < heuristics.negligible_budget * budget:
            return state, best, True
        state, found = _nearby(state, ask, best, counts, misses, slower)
        if found is None:
            return state, best, True
        newcomer, assignment = found
        layers, expected = assignment.counts, assignment.bytes
        if peeled:
            layers = {
                **layers,
                **{u: (*a, *layers[u], *b) for u, (a, b) in peeled.items()},
            }
            expected += best.bytes - predict_bytes(state.options, counts)
        state, (row,) = try_assignments(state, ask, [(layers, expected)])
        if row is None:  # it does not compile
            slower.append(assignment.support)
        elif row.bytes > budget:
            misses.append(_Miss(newcomer, assignment, row.bytes))
        elif row.time_us < best.time_us:
            best, counts = row, assignment.counts
        else:
            slower.append(assignment.support)
    return state, best, False


def _nearby(
    state: State,
    ask: Ask,
    row: Row,
    counts: Counts,
    misses: Sequence[_Miss],
    slower: Sequence[Support],
) -> tuple[State, tuple[_Kind | None, Assignment] | None]:
    """The fastest assignment of a row's kinds of layers and one more.

    Args:
      state: Knows the costs.
      ask: Asks for second ones.
      row: Has some.
      counts: Its layers, peeled ones left out.
      misses: Assignments that came out too large. Costs are set right by what they
        took; others with the same newcomer have to be smaller by what that leaves, and
        beside another one their kinds do not come again.
      slower: What those consist of that came out slower; they do not come again.

    Returns:
      What is known then; the kind that comes in, if one does, and the assignment, or
      None: it is the row.
    """
    heuristics = state.space.heuristics
    numbers = {unit: sum(n for _, n in runs) for unit, runs in counts.items()}
    used = {unit: {name for name, _ in runs} for unit, runs in counts.items()}
    while True:
        more_each = _more_each(state.options, counts, row.bytes, misses)
        every = _corrected(state.options, more_each)
        options = [
            unit_options.distinct(used[unit_options.unit])
            for unit_options in _options(state, used)
        ]
        options = [
            replace(unit_options, num_layers=numbers[unit_options.unit])
            for unit_options in options
        ]
        options = _corrected(options, more_each)
        limit = predict_bytes(every, counts) + state.budget_bytes - row.bytes
        found = []
        for newcomer, few in _one_more(options, used):
            known = [m for m in misses if m.came_with(newcomer, few)]
            others = [m.assignment.support for m in misses if m not in known]
            over = [_over(every, counts, row.bytes, miss) for miss in known]
            apart = heuristics.apart_budget * state.budget_bytes
            less = max(0.0, *over) + apart if over else 0.0
            others += slower
            if assignment := state.assign(few, limit - less, excluding=others):
                came = newcomer if newcomer in assignment.support else None
                found.append((came, assignment))
        if not found:
            return state, None
        newcomer, assignment = min(
            found, key=lambda one: (one[1].time_us, one[1].bytes)
        )
        before = state.num_compiles
        state = refine(state, ask, assignment.support)
        if state.num_compiles > before:
            continue
        gain_us = Assignment.of(every, counts).time_us - assignment.time_us
        is_worth_it = gain_us > heuristics.least_gain_local * row.time_us
        return state, (newcomer, assignment) if is_worth_it else None


def split(state: State, row: Row) -> tuple[Counts, _Peeled]:
    """A row's layers, and apart from them those that were peeled off their loops."""
    counts, peeled = dict(state.counts_of(row)), {}
    for unit, costs in state.costs.items():
        first, loop, last = costs.peeled.split(counts[unit])
        if first or last:
            counts[unit], peeled[unit] = loop, (first, last)
    return counts, peeled


def _over(
    options: Sequence[UnitOptions], counts: Counts, bytes: float, miss: _Miss
) -> float:
    """By how much more than a plan an assignment took than costs say of both."""
    wanted = predict_bytes(options, miss.assignment.counts)
    return miss.bytes - bytes - (wanted - predict_bytes(options, counts))


def _more_each(
    options: Sequence[UnitOptions],
    counts: Counts,
    bytes: float,
    misses: Sequence[_Miss],
) -> dict[_Kind, float]:
    """Bytes that a layer of each kind takes more than its cost says.

    Least squares: what is over in assignments is spread over the layers of kinds that
    one of them has more of than the plan.
    """
    had = _layers(counts)
    grown = [_layers(miss.assignment.counts) for miss in misses]
    for layers in grown:
        layers.subtract(had)
    kinds = sorted({kind for layers in grown for kind, n in layers.items() if n > 0})
    if not kinds:
        return {}
    over = [_over(options, counts, bytes, miss) for miss in misses]
    matrix = [[layers[kind] for kind in kinds] for layers in grown]
    each = np.linalg.lstsq(np.array(matrix, float), np.array(over), rcond=None)[0]
    return dict(zip(kinds, each.tolist(), strict=True))


def _layers(counts: Counts) -> Counter[_Kind]:
    """How many layers there are of each kind."""
    found: Counter[_Kind] = Counter()
    for unit, runs in counts.items():
        for name, n in runs:
            found[unit, name] += n
    return found


def _corrected(
    options: Sequence[UnitOptions], more: Mapping[_Kind, float]
) -> list[UnitOptions]:
    """The same options, with so much more for a layer of some kinds."""
    found = []
    for unit_options in options:
        costs = [
            replace(
                p, kept_bytes=p.kept_bytes + more.get((unit_options.unit, p.name), 0.0)
            )
            for p in unit_options.costs
        ]
        found.append(replace(unit_options, costs=tuple(costs)))
    return found


def _options(state: State, used: Mapping[str, set[str]]) -> Sequence[UnitOptions]:
    """All costs; those that are known to be far off if some are used already."""
    surer = state.options_without(state.far_off)
    holds = all(
        used[unit_options.unit] <= {p.name for p in unit_options.costs}
        for unit_options in surer
    )
    return surer if holds else state.options


def _one_more(
    options: Sequence[UnitOptions], used: Mapping[str, set[str]]
) -> Iterator[tuple[_Kind | None, list[UnitOptions]]]:
    """Options of what is used, then with each other candidate beside it."""
    yield None, [unit_options.only(used[unit_options.unit]) for unit_options in options]
    for unit_options in options:
        for cost in unit_options.costs:
            if cost.name not in used[unit_options.unit]:
                names = {
                    **used,
                    unit_options.unit: used[unit_options.unit] | {cost.name},
                }
                few = [other.only(names[other.unit]) for other in options]
                yield (unit_options.unit, cost.name), few
