"""Schedules: which segments of a program without equal layers are recomputed."""

import math
from collections.abc import Mapping
from itertools import cycle

from revremat._action import Action
from revremat._search._keys import ProgramKey
from revremat._search._pass import Ask
from revremat._search._result import Row
from revremat._search._schedules import (
    parts_waiting,
    products_kept,
    recomputed_groups,
    request_of,
    uniform,
)
from revremat._search._state import State
from revremat.policies import Chain

_Actions = Mapping[str, Action]
_RIGHT = 0.03
"""How far off what a model says may be: more teaches it something."""


def schedules(state: State, ask: Ask) -> State:
    """Measures schedules, those first that a model likes best.

    The model is set right by what the compiler says of each. It ends where the model
    has no other that is better, or several have not been. Of a program that fits as it
    is, the model says whether any schedule is faster.
    """
    chain, budget = state.space.chain, state.budget_bytes
    assert chain is not None
    heuristics = state.space.heuristics
    state = _added_up(state, ask)
    if _plain(state).bytes <= budget:
        return _bounded(state, chain)
    tried = _Tried(chain, heuristics.most_over_budget)
    waiting = uniform(chain)
    for products in products_kept(chain, state.space.graph):
        if products not in waiting:
            waiting.append(products)
    failures = 0
    for _ in range(heuristics.most_schedules):
        how = "" if waiting else next(tried.ways)
        found = (waiting.pop(0), None) if waiting else tried.next(state, how)
        if found is None:
            return state
        best, (actions, expected) = state.best, found
        request = request_of(state, actions, expected)
        state = ask(state, [request])
        assert isinstance(request.key, ProgramKey)
        row = state.row(request.key)
        tried.add(request.key, actions, row)
        if how in ("near", "over") and row is not None:
            tried.over *= 1 / 2 if row.bytes > budget else 3 / 2
        if state.best != best or waiting:
            failures = 0
        elif row is None or _is_as(row.bytes, expected):
            failures += 1  # else the model knows better now
        if failures >= heuristics.most_failures:
            return state
    return state


def _added_up(state: State, ask: Ask) -> State:
    """The same with a gradient barrier, where that saves much.

    It is asked of the program all of whose groups are recomputed, and of the one that
    keeps all, which may be faster for it.
    """
    chain, graph = state.space.chain, state.space.graph
    assert chain is not None
    least = state.space.heuristics.barrier_saves
    if parts_waiting(graph) < least * state.baseline.measurement.memory.temp_bytes:
        return state
    free, held = (state.but(gradient_barrier=on) for on in (False, True))
    requests = [request_of(one, recomputed_groups(chain)) for one in (free, held)]
    state = ask(state, [request_of(held, {}), *requests])
    rows = [state.row(r.key) for r in requests if isinstance(r.key, ProgramKey)]
    sizes = [math.inf if row is None else row.bytes for row in rows]
    return state.but(gradient_barrier=sizes[1] < (1 - least) * sizes[0])


class _Tried:
    """Schedules that are known, and what comes next.

    Args:
      chain: The model.
      over: Share of the budget by which some of them may be over it.
    """

    def __init__(self, chain: Chain, over: float):
        self.chain, self.over = chain, over
        self.known: dict[ProgramKey, tuple[_Actions, Row | None]] = {}
        self.excluded: list[tuple[_Actions, int]] = [({}, 1)]
        self.ways = cycle(("within", "less", "near", "less", "over", "less"))

    def add(self, key: ProgramKey, actions: _Actions, row: Row | None) -> None:
        """One more, and what it takes; None if it could not be compiled."""
        rows = [known for _, known in self.known.values()]
        same = any(row and known and _is_same(row, known) for known in rows)
        self.excluded.append((actions, 2 if same else 1))
        self.known[key] = actions, row

    def next(self, state: State, how: str) -> tuple[_Actions, float] | None:
        """What to try, and the bytes that are expected of it; None if nothing is left.

        Args:
          state: What is known.
          how: "less" for the best one without one of its actions, or the smallest where
            none fits; "near" for one that has most actions of the best, "over" for one
            that may be over the budget.
        """
        memory = state.baseline.measurement.memory
        fixed = memory.total_bytes - memory.temp_bytes
        # What is not known well may be small, or fast, and is so worth a try.
        smaller = 1.0 if how == "over" or not state.fits else 0.0
        faster = 1.0 if how == "over" and state.fits else 0.0
        model = self._model(fixed, _plain(state), smaller, faster)
        limit = state.budget_bytes - fixed
        best = self.known.get(state.key_of_row(state.best)) if state.fits else None
        if how == "less" and best and (fewer := self._without_one(best[0], model)):
            return fewer, model.predict(fewer)[0] + fixed
        if how == "less" and not state.fits:
            found = model.schedule(None, self.excluded)
            return found and (found.actions, found.bytes + fixed)
        near = (best[0], state.space.heuristics.most_changes) if best else None
        more = 0.0 if how in ("within", "less") else self.over * state.budget_bytes
        found = (
            model.schedule(limit + more, self.excluded, near if how == "near" else None)
            or model.schedule(limit, self.excluded)
            or model.schedule(None, self.excluded)
        )
        return found and (found.actions, found.bytes + fixed)

    def _model(self, fixed: float, plain: Row, smaller: float, faster: float) -> Chain:
        """The model, set right by what schedules take beside what none changes.

        Args:
          fixed: Bytes that no schedule changes.
          plain: The program that keeps all.
          smaller: How optimistic it is of sizes.
          faster: The same of times.
        """
        rows = [(a, r) for a, r in self.known.values() if r is not None]
        rows.append(({}, plain))
        model = self.chain.sized([(a, r.bytes - fixed) for a, r in rows], smaller)
        times = [(a, r.time_us - plain.time_us) for a, r in rows]
        return model.timed(times, faster)

    def _without_one(self, actions: _Actions, model: Chain) -> _Actions | None:
        """A schedule without the action that is said to take longest."""
        known = [dict(a) for a, _ in self.known.values()]
        fewer = [{n: a for n, a in actions.items() if n != one} for one in actions]
        new = [few for few in fewer if few and few not in known]
        return min(new, key=lambda few: model.predict(few)[1], default=None)


def _bounded(state: State, chain: Chain) -> State:
    """What no schedule of a program that fits takes less than, by the model."""
    memory, plain_us = state.baseline.measurement.memory, _plain(state).time_us
    fixed = memory.total_bytes - memory.temp_bytes
    fastest = chain.schedule(state.budget_bytes - fixed, [])
    saved_us = max(0.0, -fastest.time_us) if fastest else 0.0
    return state.but(bound_us=plain_us - saved_us)


def _plain(state: State) -> Row:
    """The program that keeps all."""
    row = state.row(state.key_of({})) if state.gradient_barrier else None
    return row or state.baseline


def _is_as(size: int, expected: float | None) -> bool:
    """Whether a program takes about as much as was expected."""
    return expected is None or math.isclose(size, expected, rel_tol=_RIGHT)


def _is_same(one: Row, other: Row) -> bool:
    """Whether two programs take as much memory and as long."""
    pairs = (one.bytes, other.bytes), (one.time_us, other.time_us)
    return all(math.isclose(*pair, rel_tol=1e-3) for pair in pairs)
