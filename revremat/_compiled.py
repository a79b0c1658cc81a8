"""Compiled: whole programs of one problem, compiled as asked and kept."""

import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from revremat import xla
from revremat._apply import apply
from revremat._cut import step_of
from revremat._errors import UserError
from revremat._fitted import UNKNOWN, Dropped, Row
from revremat._graph import Graph
from revremat._measure import Failure, Request, try_each
from revremat._measurement import Measurement
from revremat._plan import Action, Plan
from revremat._problem import Problem
from revremat._trace import trace
from revremat.xla import Target

Progress = Callable[[str, int, int], None]
"""Told what is compiled next, how many compiles are done, and how many there may be."""

Actions = Mapping[str, Action | tuple[Action, ...]]
"""Of every unit: one for all of its layers, or one for each."""

IN_ORDER = "; gradients in order"
"""Marks such a program's name."""


class Compiled:
    """What the target's compiler said so far, and how often it may still be asked.

    Attributes:
      rows: Every whole program, by its actions; None is the program as written.
      failed: Those that could not be compiled.
      dropped: What could not be compiled, shortened programs included.
      in_order: Whether programs compute gradients in order, where nothing else is said.
      done: Programs compiled or read from the cache, cut ones included.
      expected: About how many there will be.
      is_cut_short: Whether anything was left out because no more are allowed.
    """

    def __init__(
        self,
        problem: Problem,
        target: Target,
        progress: Progress | None = None,
        most_compiles: int | None = None,
    ):
        self.problem, self.target, self.progress = problem, target, progress
        if type(most_compiles) not in (int, type(None)):
            raise UserError(
                f"most_compiles is {most_compiles!r}, which is no number of compiles: "
                "write one like 12, or None for as many as it takes"
            )
        self.most_compiles = most_compiles
        with xla.traced_for(target):
            self.graph: Graph = trace(problem.loss, *problem.specs)
        self.rows: dict[Any, Row] = {}
        self.failed: set[Any] = set()
        self.dropped: list[Dropped] = []
        self.in_order = False
        self.done, self.expected, self.is_cut_short = 0, 0, False
        self._used = False

    def room_for(self, number: int) -> bool:
        """Whether so many compiles more are allowed."""
        if self.most_compiles is None or self.done + number <= self.most_compiles:
            return True
        self.is_cut_short = True
        return False

    def ask(self, steps: Sequence[tuple[str, Request]]) -> list[Measurement | Failure]:
        """Steps on the target, by its compiler."""
        found = list(try_each(map(self._begun, steps), target=self.target))
        for (name, _), one in zip(steps, found, strict=True):
            if isinstance(one, Failure):
                self.dropped.append(Dropped(name, one.reason))
        return found

    def _begun(self, named: tuple[str, Request]) -> Request:
        name, request = named
        if self.progress is not None:
            self.progress(name, self.done, max(self.done + 1, self.expected))
        self.done += 1
        return request

    def written(self) -> Row:
        """The program as it was written.

        Raises:
          Exception: It does not compile; whatever JAX or XLA raises.
        """
        row = self.add("as written", None)
        assert row is not None
        return row

    def add(
        self,
        name: str,
        actions: Actions | None,
        predicted: float = UNKNOWN,
        in_order: bool | None = None,
    ) -> Row | None:
        """Compiles a whole program, unless it has been."""
        return self.add_all([(name, actions, predicted)], in_order)[0]

    def add_all(
        self,
        programs: Sequence[tuple[str, Actions | None, float]],
        in_order: bool | None = None,
    ) -> list[Row | None]:
        """Compiles whole programs, unless they have been; None for what does not."""
        ordered = self.in_order if in_order is None else in_order
        keys = [
            None if actions is None else (ordered, *sorted(self._listed(actions)))
            for _, actions, _ in programs
        ]
        missing: dict[Any, tuple[str, Plan | None, float]] = {}
        steps = []
        for key, (name, actions, predicted) in zip(keys, programs, strict=True):
            if (known := self.rows.get(key)) is not None:
                if math.isnan(known.predicted_bytes):
                    new = dataclasses.replace(known, predicted_bytes=predicted)
                    self.rows[key] = new
                continue
            if key in missing or key in self.failed:
                continue
            plan = None
            if actions is not None:
                plan = self.graph.plan(actions, in_order=ordered)
            missing[key] = (name, plan, predicted)
            loss = self.problem.loss
            changed = loss if plan is None else self._noted(apply(loss, plan))
            steps.append((name, step_of(self.problem, changed)))
        for (key, (name, plan, predicted)), m in zip(
            missing.items(), self.ask(steps), strict=True
        ):
            if isinstance(m, Failure):
                if plan is None:
                    raise m.error
                self.failed.add(key)
                continue
            marked = name + IN_ORDER if plan is not None and plan.in_order else name
            self.rows[key] = Row(marked, plan, m, predicted)
        planned = [k for k, (_, plan, _) in missing.items() if plan and k in self.rows]
        if planned and not self._used:
            raise UserError(
                "Problem.step does not use the loss it is given, so no plan changes "
                "anything: write `lambda loss: (step, specs)` with a step that "
                "differentiates this loss, not one it closes over"
            )
        return [self.rows.get(key) for key in keys]

    def _listed(self, actions: Actions) -> Iterator[tuple[str, tuple[Action, ...]]]:
        """Units, each with the actions of its layers."""
        for name, given in actions.items():
            alike = isinstance(given, Action)
            yield name, (given,) * self.graph[name].num_layers if alike else given

    def _noted(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """The same loss; it is seen whether it is called."""

        @functools.wraps(loss)
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._used = True
            return loss(*args, **kwargs)

        return noted

    def best(self, budget_bytes: int) -> Row:
        """The fastest program compiled so far that fits, or else the smallest."""
        return best_of(self.rows.values(), budget_bytes)


def best_of(rows: Collection[Row], budget_bytes: int) -> Row:
    """The fastest that fits, or else the smallest."""
    fitting = [row for row in rows if row.bytes <= budget_bytes]
    if fitting:
        return min(fitting, key=lambda row: (row.time_us, row.bytes))
    return min(rows, key=lambda row: row.bytes)
