"""Solve: the assignment that is best by its costs, measured until one fits."""

from collections.abc import Sequence

from revremat import policies
from revremat._graph import Unit
from revremat._search._layer_costs import RECOMPUTE_ALL, SAVE_ALL, Unrolled
from revremat._search._pass import Ask, Pass
from revremat._search._probes import first_cuts
from revremat._search._state import State, support_of
from revremat._search.passes._ask import assign, offer, try_assignments
from revremat._search.passes._keep_last import keep_last
from revremat._search.passes._near_sets import worth_unrolling
from revremat._search.passes._runners_up import compare
from revremat._search.passes._unroll import unroll_by_few, unroll_those
from revremat.policies import Assignment, Support


def solve(state: State, ask: Ask) -> State:
    """The best assignment by costs, until one fits."""
    state, assignment = tighten(state, ask)
    return state.but(leading=assignment)


def solve_briefly(state: State, ask: Ask) -> State:
    """The best by the estimated costs so far: a plan that fits early, if any does.

    What is nearest is not looked at: there will be other costs.
    """
    most = state.space.heuristics.most_brief_tightenings
    state, assignment = tighten(state, ask, most=most)
    return state.but(leading=assignment)


def unroll_chosen(state: State, ask: Ask) -> State:
    """Layers of what was chosen unrolled, which is mostly what gains most."""
    if state.leading is None:
        return state
    more = unroll_those(state, ask, _telling(state, state.leading.support))
    return more if more.candidates == state.candidates else solve_briefly(more, ask)


def _telling(state: State, support: Support) -> Support:
    """What was chosen, where unrolled it tells whether unrolling gains.

    What recomputes everything keeps little in a stack, and gains least without one. So
    a stopwatch is asked for a set instead.
    """
    found: set[tuple[str, str]] = set(support)
    for unit in state.units if state.space.heuristics.is_measured else ():
        names = support_of(support, state.costs[unit.name])
        sets = (c for c in state.candidates[unit.name] if c.action.kind == "recompute")
        few = [c.name for c in sets if c.name != RECOMPUTE_ALL and not c.action.unroll]
        if names == [RECOMPUTE_ALL] and few and state.costs[unit.name].can_unroll:
            found -= {(unit.name, RECOMPUTE_ALL)}
            found |= {(unit.name, few[0])}
    return frozenset(found)


def unrolled_candidates(state: State, ask: Ask) -> State:
    """Offers what was proposed unrolled, where a stopwatch found that this gains.

    Some programs are left for choices by these costs, which mix them, and for the best
    of them with its last layers kept.
    """
    before = state.candidates
    for unit in filter(state.gains_unrolled, state.units):
        wanted = worth_unrolling(state, unit)
        every = state.costs[unit.name].not_unrolled(wanted)
        known = [one for one in every if _is_known(state, unit, one)]
        # What keeps all is left to the last layers.
        few = [c for c in every if c not in known and c.plain.name != SAVE_ALL]
        actions = [one.action for one in wanted]
        few.sort(key=lambda one: actions.index(one.plain.action))
        if state.room is not None:
            few = few[: max(0, state.room - state.space.heuristics.num_choices)]
        few = [*known, *few]
        state = offer(state, ask, unit, few)
    if state.candidates == before:
        return state
    state = keep_last(state, ask)
    state, assignment = tighten(state, ask)
    return state.but(leading=assignment or state.leading)


def _is_known(state: State, unit: Unit, one: Unrolled) -> bool:
    """Whether a whole program of it was timed already."""
    (cut,) = first_cuts(unit, [one], state.space.heuristics.most_whole)
    return state.probed(state.probe_key(unit, cut)) is not None


def unroll_partly(state: State, ask: Ask) -> State:
    """Several layers to an iteration, of what was chosen for loops so far."""
    return _with_few(state, ask, solve_briefly)


def unroll_partly_again(state: State, ask: Ask) -> State:
    """The same of what was chosen since, among all costs."""
    return _with_few(state, ask, solve)


def _with_few(state: State, ask: Ask, then: Pass) -> State:
    more = unroll_by_few(state, ask)
    return more if more.candidates == state.candidates else then(more, ask)


def solve_again(state: State, ask: Ask) -> State:
    """By costs that were not known before; with what is nearest to it."""
    state, assignment = tighten(state, ask)
    state = state.but(leading=assignment or state.leading)
    return compare(state, ask, state.leading) if state.leading else state


def tighten(
    state: State,
    ask: Ask,
    without: Sequence[str] = (),
    most: int | None = None,
    is_rough: bool = False,
) -> tuple[State, Assignment | None]:
    """The best by estimated costs, measured; the limit moves until it fits.

    Args:
      state: Knows costs.
      ask: Measures.
      without: Kinds that no layer takes, as `State.options_without` has them.
      most: Choices measured at most; by default as many as the heuristics say.
      is_rough: Whether costs of one probe are enough.

    Returns:
      What is known then, and the first assignment.
    """
    heuristics, budget = state.space.heuristics, state.budget_bytes
    most = heuristics.most_tightenings if most is None else most
    limit, first = float(budget), None
    failed: list[Support] = []
    for _ in range(most):
        how = {"without": without, "is_rough": is_rough}
        state, assignment = assign(state, ask, limit, excluding=failed, **how)
        if assignment is None and first is None:  # Costs may be a little too high.
            state, least = assign(state, ask, None, **how)
            near = least is not None and least.bytes <= heuristics.near_bytes * budget
            assignment = least if near else None
        if assignment is None:
            break
        first = first or assignment
        state, (row,) = try_assignments(
            state, ask, [(assignment.counts, assignment.bytes)]
        )
        if row is None:
            failed.append(assignment.support)
            continue
        error = row.bytes - assignment.bytes
        if row.bytes > budget:
            less = budget - error
            options = state.options_without(without)
            if state.assign(options, less) is None:
                # By this one none fits, but smaller ones may miss by less.
                least = policies.smallest_bytes(options, state.host_bytes)
                floor = least if least < assignment.bytes else less
                less = (floor + assignment.bytes) / 2
            limit = min(limit, less) - heuristics.step_below * budget
        elif -error > heuristics.negligible_budget * budget and limit < budget - error:
            limit = budget - error  # it came out smaller: use what is left
        else:
            break
    return state, first
