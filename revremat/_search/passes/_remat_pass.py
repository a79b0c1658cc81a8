"""XLA's remat pass: unrolled programs that are too large, with that pass on."""

from collections.abc import Iterator
from dataclasses import replace

from revremat._search._keys import BASELINE, Request
from revremat._search._pass import Ask
from revremat._search._state import State, Trial
from revremat.xla import remat_pass_percent, remat_pass_refusal


def remat_pass(state: State, ask: Ask) -> State:
    """Lets the compiler recompute what does not fit of unrolled programs.

    It is strong where there are no loops, and does nothing for what loops keep. Its
    limit is moved until the program fits, or is slower than what does.
    """
    return _with_passes(state, ask, float("inf"))


def remat_pass_nearly(state: State, ask: Ask) -> State:
    """The same for programs that nearly fit, of which little is recomputed then."""
    return _with_passes(state, ask, state.space.heuristics.most_over_remat_pass)


def _with_passes(state: State, ask: Ask, most_over: float) -> State:
    """Tries programs of at most so many times the budget."""
    if state.space.enclosing or remat_pass_refusal(state.space.target):
        return state
    for trial in _worth_it(state, most_over * state.budget_bytes):
        state = _with_pass(state, ask, trial)
    return state


def _worth_it(state: State, most_bytes: float) -> list[Trial]:
    """The fastest programs without loops that do not fit and beat what does."""
    trials = _without_loops(state, most_bytes)
    rows = [(t.row.time_us, t) for t in trials if t.row is not None]
    few = sorted((one for one in rows if _gains(state, one[0])), key=lambda one: one[0])
    return [trial for _, trial in few[: state.space.heuristics.num_remat_passes]]


def _gains(state: State, time_us: float) -> bool:
    """Whether a program of that time would be worth having, did it fit."""
    least_gain = state.space.heuristics.least_gain_settled
    return not state.fits or (1 + least_gain) * time_us < state.best.time_us


def _without_loops(state: State, most_bytes: float) -> Iterator[Trial]:
    loops = {unit.name for unit in state.space.units if unit.is_loop}
    for key, trial in state.trials.items():
        row = trial.row
        if row is None or not state.budget_bytes < row.bytes <= most_bytes:
            continue
        if key.remat_pass_percent is not None:
            continue
        actions = dict(key.actions or ())
        taken = [a for name in loops for a in actions.get(name, ())]
        if loops <= actions.keys() and all(a.unroll is True for a in taken):
            yield trial


def _with_pass(state: State, ask: Ask, trial: Trial) -> State:
    """The program with the pass, its limit moved until it fits."""
    space, budget = state.space, state.budget_bytes
    memory = state.baseline.measurement.memory
    fixed = memory.argument_bytes + memory.output_bytes - memory.alias_bytes
    wanted, last = budget, None
    for tries in range(space.heuristics.most_remat_limits):
        percent = remat_pass_percent(space.target, wanted, fixed)
        if percent is None or last == 1:
            return state
        last = percent = percent if last is None else min(percent, last - 1)
        actions = () if trial.key == BASELINE else trial.key.actions
        key = replace(trial.key, actions=actions, remat_pass_percent=percent)
        state = ask(state, [Request(key, trial.label)])
        row = state.row(key)
        if row is None or row.bytes <= budget or not _gains(state, row.time_us):
            return state  # a lower limit has more recomputed
        # Its own count of bytes is another: what moved nothing is moved further.
        wanted -= 2**tries * (row.bytes - budget)
    return state
