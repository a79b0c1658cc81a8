"""Nested: where units have others inside, those are decided instead, or too."""

import contextlib
import math
from collections.abc import Sequence
from itertools import product

from revremat._action import SAVE, Action
from revremat._errors import UserError
from revremat._graph import Unit
from revremat._search._keys import Request
from revremat._search._layer_costs import RECOMPUTE_ALL, SAVE_ALL
from revremat._search._pass import Ask, Pass
from revremat._search._result import Row
from revremat._search._start import nested_units, start
from revremat._search._state import OutOfCompiles, State
from revremat.policies import preset

_FIRST = ("recompute all", "dots", "dots_no_batch")
_FEW = "nested: several layers to an iteration"


def nested(search: Pass) -> Pass:
    """Decides about the units inside instead, or too, where that may be better.

    The outer loops stay as they are at first, then they recompute everything,
    which runs layers forward up to three times. A few plans that treat all inner layers
    alike tell whether an assignment of those could be better than what was found.

    Args:
      search: All passes, for what is inside.
    """

    def inside(state: State, ask: Ask) -> State:
        state, instead_us = _instead(state, ask, search)
        state, both_us = _both(state, ask, search)
        if (inside_us := min(instead_us, both_us)) < state.bound_us:
            return state.but(bound_us=inside_us, greedy_us=None)
        return state

    inside.__name__ = "nested"
    return inside


def nested_first(search: Pass) -> Pass:
    """Decides about loops inside before all else, where their iterations take long.

    Several short layers to an iteration are one word of plain JAX, and no decision
    about what is around such a loop gains as much.

    Args:
      search: All passes, for what is inside.
    """

    def inside_first(state: State, ask: Ask) -> State:
        inner = None if state.space.enclosing else _inner(state, ())
        if inner is None:
            return state
        actions = _by_few(state, inner)
        if not actions:
            return state
        key = inner.key_of(actions, gradient_barrier=False)
        inner = _asked(state, inner, ask, [Request(key, _FEW)])
        state, row = _merged(state, inner), inner.row(key)
        least = state.space.heuristics.least_gain_inside
        if row is None or row.time_us > (1 - least) * state.baseline.time_us:
            return state
        state = ask(state, [state.all_recomputed()])  # what fits, if compiles run out
        inner = _inner(state, ())
        assert inner is not None
        return _merged(state, search(inner, ask))

    inside_first.__name__ = "nested first"
    return inside_first


def recompute_around(state: State, ask: Ask) -> State:
    """Loops around others recompute everything, and those inside keep all.

    A word each of plain JAX: `jax.checkpoint` around a microbatch, and its layers
    unrolled. The program comes early, for a quick search has no others of what is
    inside.
    """
    enclosing = _enclosing(state)
    if not enclosing or state.space.enclosing:
        return state
    inner = _inner(state, enclosing)
    if inner is None or not all(unit.is_loop for unit in enclosing):
        return state
    taken = {u.name: SAVE(unroll=_can_unroll(inner, u)) for u in inner.units}
    actions = {u.name: (taken[u.name],) * u.num_layers for u in inner.units}
    key = inner.key_of(actions, gradient_barrier=False)
    unrolls = any(action.unroll for action in taken.values())
    label = "recompute all, nested: save all" + " (unrolled)" * unrolls
    return _merged(state, _asked(state, inner, ask, [Request(key, label)]))


def _enclosing(state: State) -> list[Unit]:
    """Units that have others inside."""
    outer = {unit.enclosing for unit in state.space.graph.units}
    return [unit for unit in state.units if unit.name in outer]


def _can_unroll(state: State, unit: Unit) -> bool:
    return state.space.unroll and state.costs[unit.name].can_unroll


def _by_few(state: State, inner: State) -> dict[str, tuple[Action, ...]]:
    """Several layers to an iteration, of all loops inside whose layers are short."""
    found, heuristics = {}, state.space.heuristics
    outer = {unit.name for unit in state.units}
    for unit in inner.units if state.space.unroll else ():
        most_us = state.baseline.time_us / unit.num_layers  # a layer takes no longer
        if unit.name in outer or most_us > heuristics.short_layer_us:
            continue
        costs = inner.costs[unit.name]
        name = SAVE_ALL if SAVE_ALL in costs.candidates else RECOMPUTE_ALL
        for few in costs.unrolled_by(heuristics.unrolled_by[0], [name]):
            found[unit.name] = (few.action,) * unit.num_layers
    return found


def _instead(state: State, ask: Ask, search: Pass) -> tuple[State, float]:
    """Decides about the units inside, those around them as they are."""
    inner = _inner(state, ())
    if isinstance(inner, State):
        inner, tried = _all_alike(state, inner, ask)
        inner, bound_us = _decide(inner, ask, search, tried, state.baseline)
        return _merged(state, inner), bound_us
    return _without(state, False), math.inf


def _both(state: State, ask: Ask, search: Pass) -> tuple[State, float]:
    """Decides about the units inside, those around them recomputing everything.

    Returns:
      What is known then, and the time that no assignment there can beat; 0 where that
      is not known, infinite where there is none to gain by.
    """
    enclosing = _enclosing(state)
    if not enclosing:
        return state, math.inf
    inner = _inner(state, enclosing)
    if inner is None:
        return _without(state, True), math.inf
    reference = state.reference
    inner, tried = _all_alike(state, inner, ask, 1)
    bound_us = math.inf
    if all(unit.is_loop for unit in enclosing):
        inner, bound_us = _decide(inner, ask, search, tried, reference)
    elif _may_gain(inner, tried, reference):
        inner, _ = _all_alike(
            state, inner, ask
        )  # loops of unrolled layers cannot differ
        bound_us = 0.0
    return _merged(state, inner), bound_us


def _inner(state: State, enclosing: Sequence[Unit]) -> State | None:
    """A state one nesting further in; None if there is nothing to decide."""
    recomputes = bool(enclosing)
    space = state.space
    if recomputes in state.nested:
        inner = state.nested[recomputes]
    else:
        inner = None
        deeper = {u.name for u in nested_units(space.graph, space.nesting + 1)}
        if deeper != {u.name for u in nested_units(space.graph, space.nesting)}:
            # Otherwise every candidate keeps the same there.
            with contextlib.suppress(UserError):
                inner = start(
                    space.graph,
                    space.target,
                    nesting=space.nesting + 1,
                    enclosing=(*space.enclosing, *enclosing),
                    small_units=space.small_units,
                    repeats_loss=space.repeats_loss,
                    most_compiles=space.most_compiles,
                    most_to_choose=space.most_to_choose,
                    most_on_paper=space.most_on_paper,
                    ends_unrolled=space.ends_unrolled,
                    unroll=space.unroll,
                    heuristics=space.heuristics,
                )
    if inner is None:
        return None
    if inner.budget_bytes != state.budget_bytes:
        inner = inner.within(state.budget_bytes)
    return inner.but(
        trials=state.trials,
        exhausted=state.exhausted,
        num_compiles=state.num_compiles,
    )


def _without(state: State, recomputes: bool) -> State:
    """The same, and that nothing is to be decided inside."""
    return state.but(nested={**state.nested, recomputes: None})


def _merged(state: State, inner: State) -> State:
    """The same, and what was measured and left out inside."""
    recomputes = len(inner.space.enclosing) > len(state.space.enclosing)
    before = state.nested.get(recomputes)
    number = len(before.skipped) if before else 0
    return state.but(
        trials=inner.trials,
        exhausted=inner.exhausted,
        num_compiles=inner.num_compiles,
        skipped=(*state.skipped, *inner.skipped[number:]),
        nested={**state.nested, recomputes: inner},
    )


def _decide(
    inner: State, ask: Ask, search: Pass, tried: Sequence[Row], known: Row | None
) -> tuple[State, float]:
    """Searches inside where that may be better; a bound on what that can find."""
    if not _may_gain(inner, tried, known):
        return inner, math.inf
    if inner.leading is None:  # not decided first of all
        inner = search(inner, ask)
    return inner, inner.known_bound_us


def _may_gain(inner: State, tried: Sequence[Row], known: Row | None) -> bool:
    """Whether an assignment of such programs may be better than the best there is.

    Args:
      inner: What is known of what they differ in.
      tried: Some of them; none if none compiles.
      known: One more, from outside.
    """
    if not tried:
        return True
    rows = tried if known is None else [*tried, known]
    best, budget = inner.best, inner.budget_bytes
    enclosing = {unit.name for unit in inner.space.enclosing}
    taken = set(best.plan.actions) if best.plan else set()
    units = {unit.name for unit in inner.units}
    is_inside = bool(taken) and enclosing <= taken <= enclosing | units
    # Unrolled layers inside beat what loops promise, with others around they may too.
    is_inside |= not enclosing and not taken.isdisjoint(units)
    misses = best.bytes > budget
    return misses or is_inside or _promised_us(rows, budget) < best.time_us


def _all_alike(
    state: State, inner: State, ask: Ask, most: int = len(_FIRST) + 1
) -> tuple[State, list[Row]]:
    """Programs all of whose inner layers take the same action."""
    found = {
        name: {u.name: preset(u, name).action for u in inner.units} for name in _FIRST
    }
    segments = {
        unit: candidate.action
        for unit, costs in inner.costs.items()
        for candidate in costs.probed.values()
        if candidate.action.segment_length > 1 and candidate.action.recomputes_all
    }
    if segments:
        found["recompute all, in segments"] = found["recompute all"] | segments
    around = "recompute all, " if inner.space.enclosing else ""
    requests = []
    for name, actions in [*found.items()][:most]:
        whole = {u.name: (actions[u.name],) * u.num_layers for u in inner.units}
        key = inner.key_of(whole, gradient_barrier=False)
        requests.append(Request(key, f"{around}nested: {name}"))
    inner = _asked(state, inner, ask, requests)
    rows = [inner.row(request.key) for request in requests]  # pyright: ignore
    return inner, [row for row in rows if row is not None]


def _asked(state: State, inner: State, ask: Ask, requests: Sequence[Request]) -> State:
    """What is known inside then; where compiles run out, that counts outside."""
    try:
        return ask(inner, requests)
    except OutOfCompiles as cut:
        raise OutOfCompiles(_merged(state, cut.state), cut.number) from None


def _promised_us(rows: Sequence[Row], budget_bytes: int) -> float:
    """What two of these together that just fit would take, were all in proportion."""
    found = [row.time_us for row in rows if row.bytes <= budget_bytes]
    for small, large in product(rows, rows):
        if small.bytes < budget_bytes < large.bytes:
            part = (budget_bytes - small.bytes) / (large.bytes - small.bytes)
            found.append(small.time_us + part * (large.time_us - small.time_us))
    return min(found, default=math.inf)
