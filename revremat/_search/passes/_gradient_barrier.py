"""Gradient barrier: whether layers' gradients are held together, by the compiler."""

import dataclasses

from revremat._search._keys import Request
from revremat._search._pass import Ask
from revremat._search._result import Row
from revremat._search._state import State


def gradient_barrier(state: State, ask: Ask) -> State:
    """Holds gradients of layers outside of loops together where that saves memory.

    A compiler may put gradients of weights off, and then holds what several layers
    recomputed. It is asked about the program all of whose layers recompute everything,
    and where that takes most in its backward pass, about the same with a barrier.
    """
    apart = [u for u in state.units if not u.is_loop and not u.chained]
    if sum(u.num_layers for u in apart) < 2:
        return state
    state = ask(state, [state.all_recomputed()])
    free = state.reference
    if free is None or not free.measurement.memory.where(phase="recompute").bytes:
        return state
    held = state.but(gradient_barrier=True)
    held = ask(held, [held.all_recomputed()])
    most = (1 - state.space.heuristics.barrier_saves) * free.bytes
    saves = held.reference is not None and held.reference.bytes < most
    return held.but(gradient_barrier=saves)


def with_barrier(state: State, ask: Ask) -> State:
    """The smallest plan with a barrier, if it has unrolled layers and does not fit.

    Over several devices they take one layer more where they do not wait for one
    another's gradients.
    """
    best = state.best
    if state.fits or not _lags(state, best):
        return state
    key = state.key_of_row(best)
    held = dataclasses.replace(key, gradient_barrier=True)
    return ask(state, [Request(held, state.trials[key].label)])


def put_off(state: State, ask: Ask) -> State:
    """The best plans once more with their gradients put off, if there is room.

    Over several devices that hides more of what they exchange, so what nothing hides
    has to tell them from the best. Such plans have no costs, nor a bound.
    """
    requests = []
    for row in _worth_putting_off(state):
        key = state.key_of_row(row)
        off = dataclasses.replace(key, puts_gradients_off=True)
        requests.append(Request(off, state.trials[key].label))
    return ask(state, requests)


def _worth_putting_off(state: State) -> list[Row]:
    best_us = state.best.time_us
    rows = [
        row
        for row in state.rows.values()
        if row.bytes <= state.budget_bytes
        and row.time_us - row.measurement.time.exposed_collective_us < best_us
        and _lags(state, row)
    ]
    rows.sort(key=lambda row: row.time_us)
    return rows[: state.space.heuristics.most_put_off]


def _lags(state: State, row: Row) -> bool:
    """Whether unrolled layers of a plan have gradients that devices add up later."""
    graph, plan = state.space.graph, row.plan
    if plan is None or graph.num_devices == 1:
        return False
    if plan.gradient_barrier or plan.puts_gradients_off:
        return False
    return any(graph[name].lags(taken) for name, taken in plan.actions.items())


def without_barrier(state: State, ask: Ask) -> State:
    """The best plan without its barrier: where it fits so, it is faster.

    Assignments without a barrier have no costs, so if it is, no bound is known.
    """
    best = state.best
    if best.plan is None or not best.plan.gradient_barrier:
        return state
    held = state.key_of_row(best)
    key = dataclasses.replace(held, gradient_barrier=False)
    state = ask(state, [Request(key, state.trials[held].label)])
    row = state.row(key)
    beats = row is not None and row.time_us < state.bound_us
    if row is None or row.bytes > state.budget_bytes or not beats:
        return state
    return state.but(bound_us=0.0)
