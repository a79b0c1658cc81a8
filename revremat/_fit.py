"""search and fit: a plan for a budget, proven by the target's own compiler."""

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from revremat import policies, xla
from revremat._bytes import format_bytes, format_us, parse_bytes
from revremat._choose import Fit as Fit
from revremat._choose import Progress as Progress
from revremat._choose import Row as Row
from revremat._choose import Search
from revremat._errors import UserError
from revremat._plan import Plan
from revremat._problem import Problem
from revremat._render import new_table, print_noun
from revremat.xla import Target


class DoesNotFit(UserError):
    """No plan that was found stays within the budget."""


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
    found = Search(problem, wanted, limit, progress).run()
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
    search = Search(problem, xla.target(target), 2**62, progress)
    search.expected = 1 + len(policies.PRESETS)
    unknown = float("nan")
    uniform = [
        (
            name,
            {
                u.name: (policies.preset(u, name).action,) * u.num_layers
                for u in search.units
            },
            unknown,
        )
        for name in policies.PRESETS
    ]
    search.add_all([("as written", None, unknown), *uniform])
    return tuple(search.rows.values())


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
