"""Unrolled sets: what unrolled layers keep, where unrolling gains at all.

In a loop, all that is kept is copied into a stack and out of it again, so costs of
loops say little of unrolled layers. One cost does, of those that keep all: what others
keep less, and recompute, tells what they would cost.
"""

from revremat._search._layer_costs import SAVE_ALL_UNROLLED
from revremat._search._pass import Ask
from revremat._search._result import Row, over
from revremat._search._state import State
from revremat._search.passes._ask import first_requests, probe_request
from revremat._search.passes._column_generation import ask_for_best
from revremat._search.passes._on_paper import has_unrolled_sets
from revremat._search.passes._plain_unroll import plain_key
from revremat._search.passes._solve import tighten


def best_unrolled_set(state: State, ask: Ask) -> State:
    """The best set by estimates, and a choice of it and of what keeps all."""
    if not _gains(state):
        return state
    more = state
    for unit in state.units:
        if state.costs[unit.name].can_unroll:
            more, requests = first_requests(more, unit, [SAVE_ALL_UNROLLED])
            second = more.costs[unit.name].second_probes([SAVE_ALL_UNROLLED.name])
            requests += [probe_request(more, unit, actions) for actions in second]
            more = ask(more, requests)
    for _ in range(state.space.heuristics.most_column_rounds):
        before, limit = more.generated, state.budget_bytes - over(_unrolled(more))
        how = {"only_unrolled": True, "pure": True, "limit": limit}
        more = ask_for_best(more, ask, by_chosen=True, **how)
        if more.generated == before:
            break
        more = _choose(more, ask, is_rough=True)
        if more.is_chosen:
            break
    return more


def unrolled_sets(state: State, ask: Ask) -> State:
    """Others by what was chosen, some rounds."""
    if not _gains(state):
        return state
    for _ in range(state.space.heuristics.most_column_rounds):
        before = state.generated
        state = ask_for_best(state, ask, by_chosen=True, only_unrolled=True)
        if state.generated == before:
            break
        state = _choose(state, ask)
    return state


def leave_loops(state: State, ask: Ask) -> State:
    """Ends a search with a limit where unrolled layers fit that recompute.

    What stays in loops has then hardly ever been faster, and takes as many programs.
    """
    return _left(state) if state.recomputes_unrolled and _gains(state) else state


def leave_timed_loops(state: State, ask: Ask) -> State:
    """The same where a stopwatch found that all loops gain unrolled."""
    gain = all(map(state.gains_unrolled, state.units))
    return _left(state) if state.recomputes_unrolled and gain else state


def _left(state: State) -> State:
    """What stays in loops is left out, if that is anything and there is a limit."""
    if not state.space.ends_unrolled:
        return state
    known = {unit.name: state.costs[unit.name].known_actions for unit in state.units}
    number = sum(
        one.action not in known[unit]
        for unit in known
        for one in state.space.proposed[unit]
    )
    if not number:
        return state
    return state.skip("what stays in loops", number).but(is_settled=True)


def _choose(state: State, ask: Ask, is_rough: bool = False) -> State:
    most = state.space.heuristics.most_brief_tightenings
    how = {"most": most, "is_rough": is_rough}
    state, assignment = tighten(state, ask, ("in_loops",), **how)
    return state.but(leading=assignment)


def _unrolled(state: State) -> list[Row]:
    """Programs that have unrolled layers."""
    return [row for row in state.rows.values() if row.takes("unroll")]


def _gains(state: State) -> bool:
    """Whether the program is faster with its loops unrolled.

    Not where the sets that are best on paper fit, and are slower than what is in loops.
    """
    key = plain_key(state)
    row = None if key is None else state.row(key)
    if row is None or not has_unrolled_sets(state):
        return False
    is_beaten = state.is_chosen and not state.best.takes("unroll")
    return row.time_us < state.baseline.time_us and not is_beaten
