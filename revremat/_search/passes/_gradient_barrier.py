"""Gradient barrier: whether layers' gradients are held together, by the compiler."""

from revremat._search._keys import Request
from revremat._search._pass import Ask
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
    """The smallest plan with a barrier, where none fits without.

    Over several devices unrolled layers take one layer more where they do not wait for
    one another's gradients.
    """
    best, graph = state.best, state.space.graph
    if state.fits or best.plan is None or best.plan.gradient_barrier:
        return state
    actions = best.plan.actions
    is_unrolled = any(
        not graph[name].is_loop or any(action.unroll is True for action in taken)
        for name, taken in actions.items()
    )
    if not is_unrolled or graph.num_devices == 1:
        return state
    trial = state.trials[state.key_of_row(best)]
    key = state.key_of(actions, gradient_barrier=True)
    return ask(state, [Request(key, trial.label)])


def without_barrier(state: State, ask: Ask) -> State:
    """The best plan without its barrier: where it fits so, it is faster.

    Assignments without a barrier have no costs, so if it is, no bound is known.
    """
    best = state.best
    if best.plan is None or not best.plan.gradient_barrier:
        return state
    trial = state.trials[state.key_of_row(best)]
    key = state.key_of(best.plan.actions, gradient_barrier=False)
    state = ask(state, [Request(key, trial.label)])
    row = state.row(key)
    beats = row is not None and row.time_us < state.bound_us
    if row is None or row.bytes > state.budget_bytes or not beats:
        return state
    return state.but(bound_us=0.0)
