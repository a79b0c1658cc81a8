"""search and fit: candidates are priced, a mix is chosen, the compiler decides."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from rich.console import Console
from rich.text import Text

from revremat import policies, xla
from revremat._apply import apply
from revremat._bytes import format_bytes, format_us, parse_bytes
from revremat._errors import UserError
from revremat._graph import Graph
from revremat._measure import measure
from revremat._measurement import Measurement
from revremat._plan import RECOMPUTE, Action, Plan
from revremat._prices import REFERENCE, UnitPrices
from revremat._problem import Problem
from revremat._render import new_table, print_noun
from revremat._trace import trace
from revremat.policies import Candidate, Choice, Menu
from revremat.xla import Target

Progress = Callable[[str, int, int], None]
"""Told what is compiled next, how many compiles are done, and how many there may be."""

_MOST_TIGHTENINGS = 5
_NUM_RIVALS = 2
_WORTH_ANOTHER_COMPILE = 0.003
_NEAR = 1.02
_UNKNOWN = float("nan")


class DoesNotFit(UserError):
    """No plan that was found stays within the budget."""


@dataclass(frozen=True)
class Row:
    """One whole program that was compiled on the way.

    Attributes:
      name: What it does, layers counted: `12 x none, 12 x full`.
      plan: Its plan; None for the program as it was written.
      measurement: What the target's compiler says.
      predicted_bytes: What was expected of it; nothing of the program as written.
    """

    name: str
    plan: Plan | None
    measurement: Measurement
    predicted_bytes: float = _UNKNOWN

    @property
    def bytes(self) -> int:
        """Per device."""
        return self.measurement.memory.total_bytes

    @property
    def time_us(self) -> float:
        """Estimated time of a step."""
        return self.measurement.time.step_us


@dataclass(frozen=True)
class Fit:
    """A program that was made to fit.

    Attributes:
      loss: The loss with the plan applied.
      plan: The plan; `plan.fits` says whether it stays within its budget.
      measurement: The chosen program on the target.
      rows: Every whole program compiled on the way, the chosen one included.
      menus: What a layer costs under each candidate.
      bound_us: The estimated time that no mix of the candidates can beat.
      num_compiles: Programs compiled or read from the cache, cut ones included.
    """

    loss: Callable[..., Any]
    plan: Plan
    measurement: Measurement
    rows: tuple[Row, ...]
    menus: tuple[Menu, ...]
    bound_us: float
    num_compiles: int


def search(
    problem: Problem | Callable[..., Any],
    *specs: Any,
    budget: int | str,
    target: str | Target,
    strict: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """A plan that stays within a budget, proven by the target's own compiler.

    Args:
      problem: A `Problem`, or a loss whose gradient is the step.
      *specs: The loss's arguments, if it is not a `Problem`.
      budget: Bytes on each device: an int, `"60GiB"`, or `"75%"` of what is usable.
      target: Where it will run.
      strict: Raise where no plan fits; else the smallest found is returned, whose
        `fits` is False and whose `held_by` says what holds the memory.
      progress: Told before each compile.

    Returns:
      A `Plan`, for `revremat.apply`.

    Raises:
      UserError: The budget is no number of bytes, or there is nothing to decide.
      DoesNotFit: With `strict`.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> w = jax.ShapeDtypeStruct((6, 64, 64), jnp.float32)
      >>> x = jax.ShapeDtypeStruct((512, 64), jnp.float32)
      >>> def loss(w, x):
      ...     return rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x).sum()
      >>> plan = rr.search(loss, w, x, budget="2MiB", target="cpu:1")
      >>> plan.fits
      True
    """
    return fit(
        problem,
        *specs,
        budget=budget,
        target=target,
        strict=strict,
        progress=progress,
    ).plan


def fit(
    problem: Problem | Callable[..., Any],
    *specs: Any,
    budget: int | str,
    target: str | Target,
    strict: bool = False,
    progress: Progress | None = None,
) -> Fit:
    """Search, and apply what was found.

    Takes what `search` takes.

    Returns:
      A `Fit`: the loss to train with, its plan, what the compiler says of it, and all
      that was compiled on the way.
    """
    if not isinstance(problem, Problem):
        problem = Problem(problem, specs)
    elif specs:
        raise UserError("a Problem has its own specs: write no arguments beside it")
    wanted = xla.target(target)
    limit = parse_bytes(budget, usable_bytes=wanted.usable_bytes)
    found = _Search(problem, wanted, limit, progress).run()
    if strict and not found.plan.fits:
        raise DoesNotFit(_sentence(found.plan))
    return found


def _sentence(plan: Plan) -> str:
    assert plan.budget_bytes is not None
    assert plan.total_bytes is not None
    return (
        f"no plan stays within {format_bytes(plan.budget_bytes)} on {plan.target}: the "
        f"smallest takes {format_bytes(plan.total_bytes)}, "
        f"{format_bytes(plan.shortfall_bytes)} more; most is held by {plan.held_by}"
    )


def presets(
    problem: Problem, *, target: str | Target, progress: Progress | None = None
) -> tuple[Row, ...]:
    """The program as written, and under every uniform preset, compiled.

    Args:
      problem: The program.
      target: Where it will run.
      progress: Told before each compile.
    """
    search = _Search(problem, xla.target(target), 2**62, progress)
    search.expected = 1 + len(policies.PRESETS)
    search.add("as written", None)
    for name in policies.PRESETS:
        search.add(
            name,
            {
                u.name: (policies.preset(u, name).action,) * u.num_layers
                for u in search.units
            },
        )
    return tuple(search.rows.values())


class _Search:
    """One search; everything compiled whole is kept as a row."""

    def __init__(
        self,
        problem: Problem,
        target: Target,
        budget_bytes: int,
        progress: Progress | None,
    ):
        self.problem, self.target, self.budget = problem, target, budget_bytes
        self.progress = progress
        self.done, self.expected = 0, 0
        self.rows: dict[Any, Row] = {}
        self.graph: Graph = trace(problem.loss, *problem.specs)
        self.candidates: dict[str, tuple[Candidate, ...]] = {
            u.name: policies.candidates(
                u,
                offload=target.platform != "cpu",
                ahead=target.num_devices > 1,
            )
            for u in self.graph.units
        }
        self.units = [u for u in self.graph.units if len(self.candidates[u.name]) > 1]
        if not self.units:
            raise UserError(
                "there is nothing to decide: every way back keeps the same values for "
                "the backward pass"
            )

    def run(self) -> Fit:
        self.prices = [
            UnitPrices(
                self.problem.loss,
                self.graph,
                unit,
                self.candidates[unit.name],
                self.ask,
                self._share(),
            )
            for unit in self.units
        ]
        self.expected = sum(p.num_first_compiles for p in self.prices)
        self.expected += 2 + _NUM_RIVALS + 2 * len(self.units) + _MOST_TIGHTENINGS // 2
        self.add("as written", None)
        for prices in self.prices:
            prices.price_roughly()
        self._correct()
        choice = self._tighten()
        if choice is not None:
            self._rivals(choice)
        best = self._best()
        plan = dataclasses.replace(
            best.plan or self.graph.plan({}),
            target=self.target.spec,
            budget_bytes=self.budget,
            predicted_bytes=round(best.predicted_bytes) if best.plan else None,
            compiled_bytes=best.bytes,
            held_by=_held_by(best.measurement),
        )
        bound = best.time_us
        if choice is not None and best.plan is not None:
            bound = min(bound, choice.bound_us + self._fixed_us(best))
        return Fit(
            loss=apply(self.problem.loss, plan) if plan.units else self.problem.loss,
            plan=plan,
            measurement=best.measurement,
            rows=tuple(self.rows.values()),
            menus=self.menus(),
            bound_us=bound,
            num_compiles=self.done,
        )

    def menus(self) -> tuple[Menu, ...]:
        """What is known of all prices."""
        return tuple(prices.menu() for prices in self.prices)

    # Compiles -------------------------------------------------------------------------

    def ask(self, loss: Callable[..., Any], name: str) -> Measurement:
        """The step of a loss on the target, by its compiler."""
        if self.progress is not None:
            self.progress(name, self.done, max(self.done + 1, self.expected))
        step, specs = self.problem.make_step(loss)
        self.done += 1
        return measure(
            step,
            *specs,
            target=self.target,
            donate=self.problem.donate,
            name=self.problem.name,
        )

    def add(
        self,
        name: str,
        actions: Mapping[str, tuple[Action, ...]] | None,
        predicted: float = _UNKNOWN,
    ) -> Row:
        """Compiles a whole program, unless it has been."""
        key = None if actions is None else tuple(sorted(actions.items()))
        if key not in self.rows:
            if actions is None:
                plan, loss = None, self.problem.loss
            else:
                plan = self.graph.plan(actions)
                loss = apply(self.problem.loss, plan)
            self.rows[key] = Row(name, plan, self.ask(loss, name), predicted)
        return self.rows[key]

    # Prices ---------------------------------------------------------------------------

    def _correct(self) -> None:
        """Sets the constant of all prices right by one whole program."""
        full = {u.name: ((REFERENCE, u.num_layers),) for u in self.units}
        predicted = policies.predict_bytes(self.menus(), full)
        actions = {u.name: (RECOMPUTE,) * u.num_layers for u in self.units}
        row = self.add(_summary(full), actions, predicted)
        for prices in self.prices:
            prices.correction = row.bytes - predicted

    def _share(self) -> float:
        """Part of an activation that lies on one device, judging by the data."""
        leaves = jax.tree.leaves(self.problem.specs[1:])
        whole = sum(leaf.size for leaf in leaves)
        here = 0
        for leaf in leaves:
            sharding = getattr(leaf, "sharding", None)
            shape = sharding.shard_shape(leaf.shape) if sharding else leaf.shape
            size = 1
            for n in shape:
                size *= n
            here += size
        return here / whole if whole else 1.0

    def _fixed_us(self, row: Row) -> float:
        """Time of a compiled program beside its layers, by their prices."""
        if row.plan is None:
            return 0.0
        layers = 0.0
        for menu in self.menus():
            times = {p.name: p.time_us for p in menu.prices}
            names = {c.action: c.name for c in self.candidates[menu.unit]}
            actions = row.plan.actions.get(menu.unit, ())
            layers += sum(times[names[action]] for action in actions)
        return row.time_us - layers

    # Choice ---------------------------------------------------------------------------

    def _tighten(self) -> Choice | None:
        """The best mix by its prices, compiled; the limit moves until it fits."""
        limit, first = float(self.budget), None
        for _ in range(_MOST_TIGHTENINGS):
            choice = self._choose(limit)
            if choice is None:
                break
            first = first or choice
            row = self._try(choice)
            error = row.bytes - choice.bytes
            if row.bytes > self.budget:
                limit = min(limit, self.budget - error) - 1e-4 * self.budget
            elif -error > _WORTH_ANOTHER_COMPILE * self.budget and limit < (
                self.budget - error
            ):
                limit = self.budget - error  # it came out smaller: use what is left
            else:
                break
        return first

    def _rivals(self, choice: Choice) -> None:
        """The nearest competitors, and the best that treats all layers alike."""
        over = [r.bytes - r.predicted_bytes for r in self.rows.values() if r.plan]
        limit = self.budget - max(0.0, *over)
        pure = self._choose(limit, pure=True)
        if pure is not None:
            self._try(pure)
        seen = [choice.support]
        for _ in range(_NUM_RIVALS):
            rival = self._choose(limit, excluding=seen)
            if rival is None:
                return
            seen.append(rival.support)
            best = self._best()
            expected = rival.time_us + self._fixed_us(best)
            if best.plan is not None and expected > _NEAR * best.time_us:
                return
            self._try(rival)

    def _choose(self, limit: float, **how: Any) -> Choice | None:
        """A choice all of whose prices come from two compiles."""
        while True:
            choice = policies.choose(
                self.menus(), limit, host_budget_bytes=self.target.host_bytes, **how
            )
            if choice is None:
                return None
            by_unit = {p.unit.name: p for p in self.prices}
            used = sorted(choice.support)
            if not any([by_unit[unit].refine(name) for unit, name in used]):
                return choice

    def _try(self, choice: Choice) -> Row:
        actions = {}
        for unit, runs in choice.counts.items():
            by_name = {c.name: c.action for c in self.candidates[unit]}
            actions[unit] = tuple(by_name[name] for name, n in runs for _ in range(n))
        return self.add(_summary(choice.counts), actions, choice.bytes)

    def _best(self) -> Row:
        """The fastest row that fits, or else the smallest."""
        rows = list(self.rows.values())
        fitting = [r for r in rows if r.bytes <= self.budget]
        if fitting:
            return min(fitting, key=lambda r: (r.time_us, r.bytes))
        return min(rows, key=lambda r: r.bytes)


def _summary(counts: Mapping[str, Sequence[tuple[str, int]]]) -> str:
    parts = []
    for unit, runs in counts.items():
        text = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in runs)
        parts.append(f"{unit}: {text}" if len(counts) > 1 else text)
    return "; ".join(parts)


def _held_by(m: Measurement) -> str:
    parts = list(m.memory.by("phase", "module").items())[:3]
    return ", ".join(
        f"{'/'.join(filter(None, key))} {format_bytes(size)}" for key, size in parts
    )


@print_noun.register
def _(noun: Fit, console: Console) -> None:
    plan, best = noun.plan, noun.measurement
    table = new_table("program", "bytes", "predicted", "step", "fits", "")
    for row in sorted(noun.rows, key=lambda r: r.time_us):
        chosen = row.measurement is best
        table.add_row(
            Text(row.name),
            format_bytes(row.bytes),
            format_bytes(row.predicted_bytes) if row.plan else "",
            format_us(row.time_us),
            "yes" if row.bytes <= (plan.budget_bytes or 0) else "no",
            "chosen" if chosen else "",
            style="bold" if chosen else "",
        )
    console.print(table)
    console.print()
    if not plan.fits:
        console.print(Text(_sentence(plan)))
    gap = 100 * (best.time.step_us / noun.bound_us - 1) if noun.bound_us > 0 else 0.0
    console.print(
        f"at most {gap:.1f} % slower than any mix of these candidates; "
        f"{noun.num_compiles} programs compiled or read from the cache"
    )
    for unit in plan.units:
        console.print(Text(str(unit)))
