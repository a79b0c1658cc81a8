"""Schedules: which segments of a program without equal layers are recomputed."""

import math
from collections.abc import Mapping
from typing import Any

from revremat._action import Action
from revremat._search._keys import ProgramKey
from revremat._search._pass import Ask
from revremat._search._result import Row
from revremat._search._schedules import products_kept, request_of, uniform
from revremat._search._state import State

_Actions = Mapping[str, Action]


def schedules(state: State, ask: Ask) -> State:
    """Measures schedules, those first that a model likes best.

    The model is set right by what the compiler says of each. It ends where the model
    has no other that is better, or several have not been.
    """
    chain, budget = state.space.chain, state.budget_bytes
    assert chain is not None
    if state.fits:
        return state
    heuristics = state.space.heuristics
    memory = state.baseline.measurement.memory
    fixed = memory.total_bytes - memory.temp_bytes
    plain_us = state.baseline.time_us
    known: dict[Any, tuple[_Actions, Row | None]] = {}
    excluded: list[tuple[_Actions, int]] = []
    failures, over = 0, heuristics.most_over_budget
    waiting = uniform(chain)
    for products in products_kept(chain, state.space.graph):
        if products not in waiting:
            waiting.append(products)
    for _ in range(heuristics.most_schedules):
        mode = 0 if waiting else len(known) % 3
        if waiting:
            actions = waiting.pop(0)
            expected = None
        else:
            rows = [(a, r) for a, r in known.values() if r is not None]
            model = chain.fitted([(a, r.bytes - fixed) for a, r in rows])
            model = model.timed([(a, r.time_us - plain_us) for a, r in rows])
            limit = budget - fixed + (over * budget if mode else 0.0)
            near = None
            best_key = state.key_of_row(state.best)
            if mode == 1 and best_key in known and state.fits:
                near = known[best_key][0], heuristics.most_changes
            found = (
                model.schedule(limit, excluded, near)
                or model.schedule(budget - fixed, excluded)
                or model.schedule(None, excluded)
            )
            if found is None:
                return state
            actions = found.actions
            expected = found.bytes + fixed
        best = state.best
        request = request_of(state, actions, expected)
        key = request.key
        assert isinstance(key, ProgramKey)
        state = ask(state, [request])
        row = state.row(key)
        same = any(row and r and _is_same(row, r) for _, r in known.values())
        excluded.append((actions, 2 if same else 1))
        known[key] = actions, row
        if mode and row is not None:
            over *= 1 / 2 if row.bytes > budget else 3 / 2
        failures = 0 if state.best != best or waiting else failures + 1
        if failures >= heuristics.most_failures:
            return state
    return state


def _is_same(one: Row, other: Row) -> bool:
    """Whether two programs take as much memory and as long."""
    pairs = (one.bytes, other.bytes), (one.time_us, other.time_us)
    return all(math.isclose(*pair, rel_tol=1e-3) for pair in pairs)
