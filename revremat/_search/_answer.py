"""Answer: what a search found, as a `Fit`."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from revremat._apply import apply_quietly
from revremat._format import format_bytes
from revremat._measure import Failure
from revremat._search._result import Dropped, Fit, holders, not_sent, times_alive
from revremat._search._state import State
from revremat._search.passes._local_search import is_local_optimum


def answer(state: State, loss: Callable[..., Any]) -> Fit:
    """The best plan of a state, and all that was measured to find it.

    Args:
      state: After a search.
      loss: The program's.
    """
    space, best, most = state.space, state.best, state.most_compiles
    graph, share, times = space.graph, 1.0, 1.0
    if (reference := state.reference) is not None:
        times = times_alive(state.baseline, reference, graph)
        is_split = space.target.num_devices > 1
        share = min(1.0, max(0.0, times)) if is_split else 1.0
        times = max(1.0, times) if space.repeats_loss else 1.0
    held_by = ""
    if state.arguments_exceed:
        size = format_bytes(state.baseline.measurement.memory.argument_bytes)
        held_by = f"the step's arguments alone ({size})"
    predicted = best.predicted_bytes
    plan = dataclasses.replace(
        best.plan or graph.plan({}),
        target=space.target.spec,
        budget_bytes=state.budget_bytes,
        predicted_bytes=None if predicted is None else round(predicted),
        compiled_bytes=best.bytes,
        held_by=held_by or holders(best, graph, share, times),
    )
    return Fit(
        loss=loss if best.plan is None else apply_quietly(loss, plan),
        plan=plan,
        measurement=best.measurement,
        rows=tuple(state.rows.values()),
        layer_costs=state.options,
        bound_us=state.known_bound_us,
        greedy_us=state.greedy_us,
        filled=is_local_optimum(state, best),
        num_compiles=state.num_compiles,
        most_compiles=most and max(most, state.num_compiles),
        is_cut_short=bool(state.skipped) and not held_by,
        left=space.untouched,
        not_sent=not_sent(best, graph, share, reference),
        dropped=tuple(dropped(state)),
        skipped=state.skipped,
    )


def dropped(state: State) -> Iterator[Dropped]:
    """What could not be compiled, shortened programs first."""
    yield from _probes(state)
    for trial in state.trials.values():
        if isinstance(trial.outcome, Failure):
            yield Dropped(trial.name, trial.outcome.reason)


def _probes(state: State) -> Iterator[Dropped]:
    for key, label in state.failed_labels.items():
        failure = state.probes[key]
        assert isinstance(failure, Failure)
        yield Dropped(label, failure.reason)
    for inner in state.nested.values():
        if inner is not None:
            yield from _probes(inner)
