"""Timed: an oracle that runs what it compiles, on the devices of this machine."""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from revremat._measure import (
    Compiles,
    Failure,
    Runnable,
    Step,
    step_to_run,
    step_us,
)
from revremat._measurement import Measurement
from revremat._search._keys import ProgramKey, Request
from revremat._search._oracle import CompilerOracle, Program, once
from revremat._search._result import Row
from revremat._search._state import State
from revremat.xla import Target

_MOST_IN_TURN = 4
"""Programs that are run in turn, and hold their arguments at the same time."""
_MOST_AGAIN = 8
"""Programs that are timed again at the end, half of which once more."""
_FINAL_SECONDS = 2.0
"""Of each program that is timed again at the end, at most."""
_FINAL_SHARE = 0.15
"""Of the time until then, that all of them take: short steps need no longer."""

_Made = tuple[Measurement, Runnable]


@dataclass(frozen=True)
class TimedOracle:
    """The compiler of devices that are here, and a stopwatch.

    Attributes:
      compiler: Makes and compiles the steps.
      kept: Whole programs that were compiled, to be timed once more.
      known: What became of each program.
      began: When it was made, by `time.monotonic`.
    """

    compiler: CompilerOracle
    kept: dict[ProgramKey, _Made] = field(default_factory=dict)
    known: dict[Program, Measurement | Failure] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)

    def measure(self, requests: Iterable[Request]) -> list[Measurement | Failure]:
        """Compiles programs, several at a time; then runs each.

        What compiles beside a run would slow it down, so none does.
        """
        found = once(requests, self.compiler.program, self.known.get, self._measured)
        self.known.update(found)
        return [one for _, one in found]

    def _measured(
        self, requests: Iterable[Request]
    ) -> Iterator[tuple[Request, Measurement | Failure]]:
        made = self.compiler.compile(requests, step_to_run)
        _, specs = self.compiler.problem.make_step()
        given = tuple(jax.tree.leaves(specs))
        ready: list[_Made] = []
        for request, one in made:
            if isinstance(one, Failure):
                continue
            measured, run = one
            ready.append((measured, dataclasses.replace(run, given=given)))
            program = self.compiler.program(request.key)
            if isinstance(program, ProgramKey):
                self.kept[program] = ready[-1]
        timed = iter(self._timed(ready))
        for request, one in made:
            yield request, one if isinstance(one, Failure) else next(timed)

    def _timed(self, made: Sequence[_Made], **how: Any) -> list[Measurement | Failure]:
        found: list[Measurement | Failure] = []
        for few in self._in_turn(made):
            times = _times_of(few, **how)
            if isinstance(times, Failure):  # no room for one of them
                alone = [self._timed([one], **how)[0] for one in few if len(few) > 1]
                found += alone or [times]
                continue
            found += [_with_time(m, us) for (m, _), us in zip(few, times, strict=True)]
        return found

    def _in_turn(self, made: Sequence[_Made]) -> Iterator[list[_Made]]:
        """Groups that the device has room for."""
        few: list[_Made] = []
        for one in made:
            total = sum(m.memory.total_bytes for m, _ in [*few, one])
            full = total > self.compiler.target.usable_bytes
            if few and (full or len(few) == _MOST_IN_TURN):
                yield few
                few = []
            few.append(one)
        if few:
            yield few

    def confirmed(self, state: State) -> State:
        """The same, the fastest programs that fit timed once more, in turn.

        Of many that are about as fast, the first choice is the one whose first time
        happened to be short, and whatever else ran then made others long. So all that
        may be the fastest are run again, and of those the fastest once more.
        """
        seconds = _FINAL_SHARE * (time.monotonic() - self.began)
        for most in (_MOST_AGAIN, _MOST_IN_TURN):
            rows = self._nearest(state, most)
            are_few = most > _MOST_IN_TURN >= len(rows)  # they come again at once
            if len(rows) < 2 or are_few:
                continue
            each = min(_FINAL_SECONDS, seconds / 2 / len(rows))
            again = self._timed([self.kept[key] for key in rows], seconds=each)
            trials = dict(state.trials)
            for key, outcome in zip(rows, again, strict=True):
                trials[key] = dataclasses.replace(trials[key], outcome=outcome)
            state = state.but(trials=trials)
        return state

    def _nearest(self, state: State, most: int) -> dict[ProgramKey, Row]:
        most_us = state.space.heuristics.near_timed * state.best.time_us
        most_bytes = max(state.budget_bytes, state.best.bytes)
        found = {
            key: row
            for key, row in state.rows.items()
            if key in self.kept and row.bytes <= most_bytes and row.time_us <= most_us
        }
        fastest = sorted(found, key=lambda key: found[key].time_us)[:most]
        return {key: found[key] for key in fastest}


def _times_of(made: Sequence[_Made], **how: Any) -> list[float] | Failure:
    """What programs take in turn, or why one of them does not run."""
    try:
        return step_us([run for _, run in made], **how)
    except jax.errors.JaxRuntimeError as error:
        # Its traceback holds what the programs were given, which takes their room.
        return Failure(error.with_traceback(None))


def run_step(step: Step, *, target: Target) -> Measurement:
    """What one step takes on this machine, whatever it is a step of.

    Args:
      step: With its arguments, which are used where they are arrays.
      target: This machine.

    Raises:
      Exception: What JAX or XLA raises where it does not compile, or has no room.
    """
    with Compiles(target, step_to_run) as compiles:
        (made,) = (*compiles.start(step), *compiles.rest())
    if isinstance(made, Failure):
        raise made.error
    measured, run = made
    given = tuple(jax.tree.leaves(step.specs))
    (us,) = step_us([dataclasses.replace(run, given=given)])
    return _with_time(measured, us)


def _with_time(measurement: Measurement, us: float) -> Measurement:
    time = dataclasses.replace(measurement.time, step_us=us, measured=True)
    return dataclasses.replace(measurement, time=time)
