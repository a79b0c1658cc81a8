"""The compiler as an oracle: requests become steps, and what these take."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from revremat._action import RECOMPUTE
from revremat._apply import apply_quietly
from revremat._errors import UserError
from revremat._graph import Graph
from revremat._measure import (
    Compiles,
    Failure,
    Oracle,
    Step,
    ask_each,
    name_of,
    read_step,
)
from revremat._measurement import Measurement
from revremat._problem import Problem
from revremat._search._keys import BASELINE, ProbeKey, ProgramKey, Request
from revremat._search._memory import Known, known_of
from revremat._search._probe_programs import isolate, shorten
from revremat._search._probes import whole_of
from revremat._search._state import State
from revremat.program._loss import TracedLoss
from revremat.xla import Lowered, Target, lower_step

Program = ProbeKey | ProgramKey
"""What is compiled: equal for requests that ask about the same."""


@dataclass(frozen=True)
class CompilerOracle:
    """The target's own compiler, or whoever says what steps take in its place.

    Attributes:
      problem: The program.
      traced: Its loss.
      graph: Its units.
      target: Where it would run.
      oracle: Is asked about steps; None compiles them.
      exact: Whether each compile finds out if XLA can tile its products. Else what is
        chosen has to be confirmed.
    """

    problem: Problem
    traced: TracedLoss
    graph: Graph
    target: Target
    oracle: Oracle | None = None
    exact: bool = True

    def measure(self, requests: Iterable[Request]) -> list[Measurement | Failure]:
        """Compiles programs, several at a time."""
        if self.oracle is not None:
            made = (self.step(request.key) for request in requests)
            return list(ask_each(made, self.oracle))
        return self._measured(requests, self.exact)

    def _measured(
        self, requests: Iterable[Request], exact: bool
    ) -> list[Measurement | Failure]:
        """Compiles what no earlier search of this process has measured."""
        finish = functools.partial(read_step, exact=exact)
        found = once(
            requests,
            self.program,
            lambda program: self._remembered(program, exact),
            lambda new: self.compile(new, finish),
        )
        for program, one in found:
            if isinstance(one, Measurement):
                self._known[program, exact] = one
        return [one for _, one in found]

    def _remembered(self, program: Program, exact: bool) -> Measurement | None:
        """What was measured before, maybe of an equal problem with another name."""
        one = self._known.get((program, exact))
        if one is None:
            return None
        step = self.step(BASELINE)
        return dataclasses.replace(one, program=step.name or name_of(step.function))

    def program(self, key: ProbeKey | ProgramKey) -> Program:
        """A shortened program with all of its layers is a whole one."""
        if isinstance(key, ProgramKey):
            return key
        return whole_of(self.graph, key) or key

    @functools.cached_property
    def _known(self) -> Known:
        """What earlier searches of this process measured of the same problem."""
        try:
            baseline = self._baseline
        except Exception:  # told where the baseline is measured
            return {}
        return known_of(baseline, self.graph)

    @functools.cached_property
    def _baseline(self) -> Lowered:
        step = self.step(BASELINE)
        return lower_step(step.function, step.specs, self.target, donate=step.donate)

    def confirmed(self, state: State) -> State:
        """The same, where the best program takes what an exact compile says.

        Where XLA cannot tile a product, the program is another one and may not be the
        best any longer: then the next one has to be confirmed.
        """
        known: set[ProgramKey] = set()
        if self.exact or self.oracle is not None:
            return state
        while (key := state.key_of_row(state.best)) not in known:
            known.add(key)
            request = Request(key, state.trials[key].label)
            (outcome,) = self._measured([request], exact=True)
            trial = dataclasses.replace(state.trials[key], outcome=outcome)
            state = state.but(trials={**state.trials, key: trial})
        return state

    def compile[T](
        self,
        requests: Iterable[Request],
        finish: Callable[[Lowered, str], T | Failure],
    ) -> list[tuple[Request, T | Failure]]:
        """Compiles programs, several at a time.

        Args:
          requests: Which; the next is taken when its compile can start.
          finish: What is made of each, as `Compiles` takes it.

        Raises:
          UserError: None of the plans changed anything.
        """
        asked: list[Request] = []
        calls: list[bool] = []
        found: list[T | Failure] = []

        def note(place: int) -> None:
            calls[place] = True

        with Compiles(self.target, finish) as compiles:
            for place, request in enumerate(requests):
                asked.append(request)
                calls.append(False)
                step = self.step(request.key, functools.partial(note, place))
                is_baseline = request.key == BASELINE
                lower = (lambda: self._baseline) if is_baseline else None
                found += compiles.start(step, lower)
                if found and isinstance(found[0], Failure) and asked[0].key == BASELINE:
                    raise found[0].error  # nothing is worth a compile then
            found += compiles.rest()
        plans = [
            called
            for request, called, one in zip(asked, calls, found, strict=True)
            if not isinstance(one, Failure) and _is_plan(request)
        ]
        if plans and not any(plans):
            raise UserError(_LOSS_UNUSED)
        return [*zip(asked, found, strict=True)]

    def check_uses_loss(self) -> None:
        """Refuses a step that would be the same under every plan.

        What an oracle does with steps is not known, so it is found out beforehand.

        Raises:
          UserError: The problem's step does not call the loss that it is given.
        """
        calls: list[None] = []
        loss = _noted(self.problem.loss, lambda: calls.append(None))
        step = step_of(self.problem, loss)
        lower_step(step.function, step.specs, self.target, donate=step.donate)
        if not calls:
            raise UserError(_LOSS_UNUSED)

    def step(
        self, key: ProbeKey | ProgramKey, note: Callable[[], None] = lambda: None
    ) -> Step:
        """What is compiled.

        Args:
          key: Which program.
          note: Called when a whole program's loss is.
        """
        return dataclasses.replace(self._step(key, note), key=repr(key))

    def _step(self, key: ProbeKey | ProgramKey, note: Callable[[], None]) -> Step:
        if isinstance(key, ProgramKey):
            if (plan := key.plan(self.graph)) is None:
                return step_of(self.problem, self.problem.loss)
            loss = _noted(apply_quietly(self.problem.loss, plan), note)
            return dataclasses.replace(step_of(self.problem, loss), plan=plan)
        barrier = key.gradient_barrier
        if key.is_isolated:
            found = isolate(self.traced, self.graph, key.unit, key.actions, barrier)
            return Step(*found, name=self.problem.name)
        units = [self.graph[name] for name in key.recomputed]
        chosen = {u.name: (RECOMPUTE,) * u.num_layers for u in units}
        chosen[key.unit] = key.actions
        loss = shorten(self.problem.loss, self.graph, chosen, barrier)
        return step_of(self.problem, loss)


def once[T](
    requests: Iterable[Request],
    program_of: Callable[[ProbeKey | ProgramKey], Program],
    known: Callable[[Program], T | None],
    measure: Callable[[Iterator[Request]], Iterable[tuple[Request, T]]],
) -> list[tuple[Program, T]]:
    """What becomes of each request; no program is measured twice.

    Args:
      requests: In order; the next is taken when its turn comes.
      program_of: What is compiled for a request.
      known: What was measured of a program before, if anything.
      measure: Of the others.

    Returns:
      Of each request its program, and what became of it.
    """
    programs: list[Program] = []
    found: dict[Program, T | None] = {}

    def new() -> Iterator[Request]:
        for request in requests:
            programs.append(program := program_of(request.key))
            if program in found:
                continue
            found[program] = known(program)
            if found[program] is None:
                yield request

    for request, one in measure(new()):
        found[program_of(request.key)] = one
    outcomes = ((program, found[program]) for program in programs)
    return [(program, one) for program, one in outcomes if one is not None]


_LOSS_UNUSED = (
    "Problem.step does not use the loss it is given, so no plan changes anything: "
    "write `lambda loss: (step, specs)` with a step that differentiates this loss, not "
    "one it closes over"
)


def _is_plan(request: Request) -> bool:
    return isinstance(request.key, ProgramKey) and request.key != BASELINE


def step_of(problem: Problem, loss: Callable[..., Any]) -> Step:
    """The step of a problem with another loss."""
    step, specs = problem.make_step(loss)
    return Step(step, tuple(specs), problem.donate, problem.name)


def _noted(loss: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
    """The same loss; it is told when it is called."""

    @functools.wraps(loss)
    def noted(*args: Any, **kwargs: Any) -> Any:
        note()
        return loss(*args, **kwargs)

    return noted
