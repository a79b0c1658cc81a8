"""search and fit: a plan for a budget, proven by the target's own compiler."""

import dataclasses
from collections.abc import Callable
from typing import Any

from revremat import _search, policies, xla
from revremat._errors import DoesNotFit, UserError
from revremat._format import parse_bytes
from revremat._frontier import Frontier, Point
from revremat._measure import Oracle
from revremat._plan import Plan
from revremat._problem import Problem
from revremat._search import Effort as Effort
from revremat._search import Fit as Fit
from revremat._search import Progress as Progress
from revremat._search import Row as Row
from revremat.xla import Target


def search(
    problem: Problem | Callable[..., Any],
    *specs: Any,
    budget: int | str,
    target: str | Target,
    strict: bool = False,
    effort: Effort = "normal",
    most_compiles: int | None = None,
    unroll: bool = True,
    keep_checkpoints: bool = False,
    progress: Progress | None = None,
    oracle: Oracle | None = None,
    timed: bool = False,
) -> Plan:
    """A plan that stays within a budget, proven by the target's own compiler.

    Args:
      problem: A `Problem`, or a loss whose gradient is the step.
      *specs: The loss's arguments, if it is not a `Problem`.
      budget: Bytes on each device: an int, `"60GiB"`, or `"75%"` of what is usable.
      target: Where it will run.
      strict: Raise where no plan fits; else the smallest found is returned, whose
        `fits` is False and whose `held_by` says what holds the memory.
      effort: How long to search: `"quick"` compiles a handful of programs, `"normal"`
        two or three times as many, `"exhaustive"` as many as still promise to gain.
        Each begins as the one before, so more effort never gives a worse plan.
      most_compiles: Compile no more than so many programs, shortened ones included,
        whatever the effort.
      unroll: Whether layers of a loop may be unrolled, all or several to an iteration,
        which is often faster; a long program takes longer to compile, here and there.
      keep_checkpoints: Whether the program's own `jax.checkpoint` regions, and loops
        with one inside, stay as they are.
      progress: Called before each compile.
      oracle: Says what steps take, in place of the target's own compiler: a table, or
        times of this machine; see `Oracle`. The budget still is one of the target.
      timed: Run the programs that are compiled, on the devices of this machine, and
        choose by what they took. Arguments that are no arrays yet get made up numbers.

    Returns:
      A `Plan`, for `revremat.apply`.

    Raises:
      UserError: The budget is no number of bytes, there is nothing to decide, the
        effort is none of the three, or `most_compiles` is less than any search needs.
      DoesNotFit: With `strict`.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> w = jax.ShapeDtypeStruct((6, 64, 64), jnp.float32)
      >>> x = jax.ShapeDtypeStruct((512, 64), jnp.float32)
      >>> def loss(w, x):
      ...     return rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x).sum()
      >>> about = {"budget": "2MiB", "target": "cpu:1", "most_compiles": 6}
      >>> plan = rr.search(loss, w, x, **about)
      >>> plan.fits
      True
    """
    return fit(
        problem,
        *specs,
        budget=budget,
        target=target,
        strict=strict,
        effort=effort,
        most_compiles=most_compiles,
        unroll=unroll,
        keep_checkpoints=keep_checkpoints,
        progress=progress,
        oracle=oracle,
        timed=timed,
    ).plan


def fit(
    problem: Problem | Callable[..., Any],
    *specs: Any,
    budget: int | str,
    target: str | Target,
    strict: bool = False,
    effort: Effort = "normal",
    most_compiles: int | None = None,
    unroll: bool = True,
    keep_checkpoints: bool = False,
    progress: Progress | None = None,
    oracle: Oracle | None = None,
    timed: bool = False,
) -> Fit:
    """Search, and apply what was found.

    Takes what `search` takes.

    Args:
      problem: A `Problem`, or a loss whose gradient is the step.
      *specs: The loss's arguments, if it is not a `Problem`.
      budget: Bytes on each device: an int, `"60GiB"`, or `"75%"` of what is usable.
      target: Where it will run.
      strict: Raise where no plan fits.
      effort: How long to search: `"quick"`, `"normal"` or `"exhaustive"`.
      most_compiles: Compile no more than so many programs, whatever the effort.
      unroll: Whether layers of a loop may be unrolled.
      keep_checkpoints: As for `search`.
      progress: Called before each compile: with what, how many are done, and of how
        many.
      oracle: Says what steps take; see `search`.
      timed: Run what is compiled; see `search`.

    Returns:
      A `Fit`: the loss to train with, its plan, what the compiler says of it, and all
      that was compiled on the way. It was measured with XLA's own rematerialization
      pass off: compile and run it within `fit.as_measured()`, or give
      `fit.compiler_options` to `jax.jit`.

    Raises:
      UserError: As `search`.
      DoesNotFit: With `strict`.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> w, x = jnp.ones((4, 16, 16)), jnp.ones((256, 16))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> fit = rr.fit(loss, w, x, budget="1MiB", target="cpu:1", most_compiles=6)
      >>> with fit.as_measured():
      ...     gradient = jax.jit(jax.grad(fit.loss))(w, x)
      >>> gradient.shape
      (4, 16, 16)
    """
    problem = _as_problem(problem, specs)
    wanted = xla.target(target)
    limit = parse_bytes(budget, usable_bytes=wanted.usable_bytes)
    found = _search.run(
        problem,
        wanted,
        limit,
        effort=effort,
        most_compiles=most_compiles,
        unroll=unroll,
        keep_checkpoints=keep_checkpoints,
        progress=progress,
        oracle=oracle,
        timed=timed,
    )
    if strict and not found.plan.fits:
        raise DoesNotFit(_search.why_it_does_not_fit(found))
    return found


def presets(
    problem: Problem, *, target: str | Target, progress: Progress | None = None
) -> tuple[Row, ...]:
    """The baseline, and the program under every uniform preset, compiled.

    Args:
      problem: The program.
      target: Where it will run.
      progress: Called before each compile.
    """
    state, ask = _search.begin(problem, xla.target(target), progress=progress)
    ask = dataclasses.replace(ask, expected=1 + len(policies.PRESETS))
    keys = _presets(state)
    state = ask(state, [_search.Request(key, name) for name, key in keys.items()])
    # Presets that are one and the same here are compiled once, and each has its name.
    rows = {name: state.row(key) for name, key in keys.items()}
    return tuple(dataclasses.replace(r, name=n) for n, r in rows.items() if r)


def _presets(state: _search.State) -> dict[str, _search.ProgramKey]:
    """The baseline, and all units under each uniform preset."""
    found = {"baseline": _search.BASELINE}
    for name in policies.PRESETS:
        actions = {
            u.name: (policies.preset(u, name).action,) * u.num_layers
            for u in state.units
        }
        found[name] = state.key_of(actions, gradient_barrier=False)
    return found


def frontier(
    problem: Problem | Callable[..., Any],
    *specs: Any,
    target: str | Target,
    num_budgets: int = 8,
    unroll: bool = True,
    keep_checkpoints: bool = False,
    progress: Progress | None = None,
    oracle: Oracle | None = None,
) -> Frontier:
    """What less memory costs in time: plans for budgets from plain to the smallest.

    Args:
      problem: A `Problem`, or a loss whose gradient is the step.
      *specs: The loss's arguments, if it is not a `Problem`.
      target: Where it will run.
      num_budgets: How many budgets, evenly spaced by ratio, from just under what the
        baseline takes to the smallest that its per-layer costs allow.
      unroll: As for `search`.
      keep_checkpoints: As for `search`.
      progress: Called before each compile.
      oracle: As for `search`.

    Returns:
      A `Frontier`; `rr.write(frontier, "out.html")` draws it.

    Raises:
      UserError: There is nothing to decide, or fewer than two budgets.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> w, x = jnp.ones((2, 8, 8)), jnp.ones((64, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> found = rr.frontier(loss, w, x, target="cpu:1", num_budgets=2, unroll=False)
      >>> [point.kind for point in found.points].count("baseline")
      1
    """
    if num_budgets < 2:
        raise UserError(f"{num_budgets} budgets make no frontier: write 2 or more")
    problem = _as_problem(problem, specs)
    wanted = xla.target(target)
    state, ask = _search.begin(
        problem,
        wanted,
        oracle=oracle,
        unroll=unroll,
        keep_checkpoints=keep_checkpoints,
        progress=progress,
    )
    ask = dataclasses.replace(ask, expected=ask.expected + 4 * num_budgets)
    state = _search.profile_all(state, ask)
    presets = _presets(state)
    state = ask(state, [_search.Request(key, name) for name, key in presets.items()])
    plain = state.baseline.bytes
    # The costs may be a little low: the smallest is asked for with something to spare.
    if state.options:
        least = policies.smallest_bytes(state.options, state.host_bytes)
    else:  # nothing has costs, so the smallest is searched for
        tight = state.baseline.measurement.memory.argument_bytes
        state = _search.decide(state.within(tight), ask)
        least = min(row.bytes for row in state.rows.values())
    smallest = min(1.01 * least, 0.999 * plain)
    ratio = (smallest / (0.999 * plain)) ** (1 / (num_budgets - 1))
    budgets = [int(0.999 * plain * ratio**k) for k in range(num_budgets)]
    for budget in budgets:
        state = _search.decide(state.within(budget), ask)
    answers: dict[_search.ProgramKey, int] = {}
    for budget in budgets:  # what was found for one may be the best for others
        at = state.within(budget)
        if at.fits:
            answers.setdefault(at.key_of_row(at.best), budget)
    uniform = {*presets.values()}
    points = []
    for key, row in state.rows.items():
        kind = "searched" if key in answers else "compiled"
        if key in uniform:
            kind = "baseline" if row.plan is None else "preset"
        plan = ""
        if row.plan is not None:
            about = {"target": wanted.spec, "compiled_bytes": row.bytes}
            plan = dataclasses.replace(row.plan, **about).to_json()
        points.append(
            Point(row.name, kind, row.bytes, row.time_us, answers.get(key), plan)
        )
    points.sort(key=lambda p: (p.bytes, p.step_us))
    return Frontier(
        program=problem.name or getattr(problem.loss, "__name__", "loss"),
        target=wanted.spec,
        usable_bytes=wanted.usable_bytes,
        points=tuple(points),
        num_compiles=state.num_compiles,
    )


def _as_problem(problem: Any, specs: tuple[Any, ...]) -> Problem:
    if not isinstance(problem, Problem):
        return Problem(problem, specs)
    if specs:
        raise UserError("a Problem has its own specs: write no arguments beside it")
    return problem
