"""What a search found, as text: a fit's programs and its plan, a frontier's points."""

from collections import Counter

from rich.console import Console
from rich.text import Text

from revremat._format import format_bytes, format_us
from revremat._frontier import Frontier
from revremat._measure import REMAT_PASS_OFF, remarks
from revremat._report._text import new_table, print_noun
from revremat._search import Fit, Heuristics, why_it_does_not_fit

_NEGLIGIBLE = Heuristics().negligible_budget


@print_noun.register
def _(noun: Fit, console: Console) -> None:
    plan, best = noun.plan, noun.measurement
    table = new_table("program", "bytes", "predicted", "step", "fits", "status")
    for row in sorted(noun.rows, key=lambda r: r.time_us):
        chosen = row.measurement is best
        table.add_row(
            Text(row.name),
            format_bytes(row.bytes),
            "" if row.predicted_bytes is None else format_bytes(row.predicted_bytes),
            format_us(row.time_us),
            "yes" if row.bytes <= (plan.budget_bytes or 0) else "no",
            "chosen" if chosen else "",
            style="bold" if chosen else "",
        )
    for one in noun.dropped:
        table.add_row(Text(one.name), "", "", "", "dropped", Text(one.reason))
    console.print(table)
    console.print()
    if noun.dropped:
        console.print(
            f"{len(noun.dropped)} programs could not be compiled, so their actions "
            "were "
            "dropped"
        )
    if not plan.fits:
        console.print(Text(why_it_does_not_fit(noun)))
    if noun.greedy_us is not None and noun.bound_us > 0:
        console.print(
            f"estimated from per-layer costs: a greedy assignment takes "
            f"{format_us(noun.greedy_us)}, and none less than "
            f"{format_us(noun.bound_us)}"
        )
    gap = ""
    if noun.bound_us > 0:
        slower = 100 * (best.time.step_us / noun.bound_us - 1)
        gap = (
            f"at most {slower:.1f} % slower than any assignment of these actions to "
            "layers, estimated from per-layer costs; "
        )
    allowed = f" of {noun.most_compiles}" if noun.most_compiles else ""
    console.print(
        f"{gap}{noun.num_compiles}{allowed} programs compiled or read from the cache"
    )
    for one in noun.skipped:
        console.print(
            f"the limit of compiles cut {one.what} short, which needed at least "
            f"{one.num_compiles} more"
        )
    budget = plan.budget_bytes or 0
    left, negligible = budget - best.memory.total_bytes, _NEGLIGIBLE * budget
    if noun.filled and left >= negligible > 0:
        console.print(
            f"{format_bytes(left)} of the budget are left: no similar plan that uses "
            "them is faster, as compiled or as estimated from per-layer costs"
        )
    if noun.left:
        console.print(
            f"{len(noun.left)} units with less than 0.5 % of all residual bytes were "
            "left unchanged"
        )
    if noun.not_sent:
        console.print(
            f"the compiler leaves {format_bytes(noun.not_sent)} on the device of what "
            "the plan sends to the host"
        )
    unusual = Counter(n for row in noun.rows for n in remarks(row.measurement))
    for remark, number in unusual.items():
        console.print(Text(f"{number} of {len(noun.rows)} programs: {remark}"))
    for unit in plan.units:
        console.print(Text(str(unit)))
    if plan.gradient_barrier:
        console.print(
            "an optimization barrier holds the gradients of each layer outside of "
            "loops "
            "together"
        )
    if plan.remat_pass_percent is not None:
        console.print(
            "measured with XLA's own remat pass on, with a limit of "
            f"{plan.remat_pass_percent} %: compile and run in "
            "`with fit.as_measured():`, or give fit.compiler_options to jax.jit"
        )
    if REMAT_PASS_OFF in best.notes:
        console.print(
            "measured with XLA's own remat pass off: compile and run in "
            "`with fit.as_measured():`, or give fit.compiler_options to jax.jit"
        )


@print_noun.register
def _(noun: Frontier, console: Console) -> None:
    best = set(noun.best)
    table = new_table("program", "bytes", "step", "kind", "on the frontier")
    for point in noun.points:
        kind = point.kind
        if point.budget_bytes is not None:
            kind = f"{kind}, up to {format_bytes(point.budget_bytes)}"
        table.add_row(
            Text(point.name),
            format_bytes(point.bytes),
            format_us(point.step_us),
            kind,
            "yes" if point in best else "",
            style="bold" if point in best else "",
        )
    console.print(table)
    console.print(f"{noun.num_compiles} programs compiled or read from the cache")
