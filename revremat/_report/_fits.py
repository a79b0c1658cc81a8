"""What a search found, as text: a fit's programs and its plan, a frontier's points."""

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from revremat._format import format_bytes, format_us
from revremat._frontier import Frontier
from revremat._measure import REMAT_PASS_OFF, remarks
from revremat._plan import Plan
from revremat._report._text import line, new_table, note, print_result
from revremat._saved import FitRecord
from revremat._search import Fit, Heuristics, why_it_does_not_fit

_NEGLIGIBLE = Heuristics().negligible_budget
_LEAST_GAIN = Heuristics().least_gain_settled
ESTIMATES = "bytes are per device; steps are estimates"
_MEASURED = "bytes are per device; steps were measured on this machine"


@print_result.register
def _(result: Fit, console: Console) -> None:
    plan, best = result.plan, result.measurement
    budget = plan.budget_bytes or 0
    line(
        console,
        f"{best.program} on {plan.target}",
        f"within {format_bytes(budget)} on each device",
    )
    console.print()
    columns = ("program", "bytes", "predicted bytes", "step", "fits", "status")
    table = new_table(*columns)
    for row in sorted(result.rows, key=lambda r: r.time_us):
        chosen = row.measurement is best
        table.add_row(
            Text(row.name),
            format_bytes(row.bytes),
            "" if row.predicted_bytes is None else format_bytes(row.predicted_bytes),
            format_us(row.time_us),
            "yes" if row.bytes <= budget else "no",
            "chosen" if chosen else "",
            style="bold" if chosen else "",
        )
    for one in result.dropped:
        table.add_row(Text(one.name), "", "", "", "dropped", Text(one.reason))
    console.print(table)
    console.print()
    what = _MEASURED if best.time.measured else ESTIMATES
    for remark in (
        f"{what}; predicted: from per-layer costs, before the whole was compiled",
        *_how_good(result),
        *_what_was_left_out(result),
    ):
        note(console, remark)
    sentences = [
        *([] if plan.fits else [why_it_does_not_fit(result)]),
        *map(str, plan.units),
        *_how_to_run(plan, REMAT_PASS_OFF in best.notes),
    ]
    if sentences:
        console.print()
    for sentence in sentences:
        console.print(Text(sentence))


def _how_good(result: Fit) -> Iterator[str]:
    """How far from the best a plan may be."""
    budget = result.plan.budget_bytes or 0
    left = budget - result.measurement.memory.total_bytes
    if left >= 0 and not result.plan.units:
        yield _why_no_plan(result)
    if result.greedy_us is not None and result.bound_us > 0:
        yield (
            "estimated from per-layer costs: a greedy assignment takes "
            f"{format_us(result.greedy_us)}, and none takes less than "
            f"{format_us(result.bound_us)}"
        )
    if result.bound_us > 0:
        slower = 100 * (result.measurement.time.step_us / result.bound_us - 1)
        yield (
            f"the chosen program is at most {slower:.1f} % slower than any assignment "
            "of these actions to layers, as estimated from per-layer costs"
        )
    if result.filled and left >= _NEGLIGIBLE * budget > 0:
        yield (
            f"{format_bytes(left)} of the budget are left: no similar plan that uses "
            "them is faster, as compiled or as estimated"
        )


def _why_no_plan(result: Fit) -> str:
    """Why nothing is decided about units: as much as is known of what else there is."""
    step_us, bound_us = result.measurement.time.step_us, result.bound_us
    what, gain = "the baseline", "nothing to gain"
    if result.plan.gradient_barrier:
        what = "the program with a gradient barrier, which keeps all,"
        gain = "nothing more to gain"
    takes = f"{what} fits and takes {format_us(step_us)}"
    if bound_us > 0 and step_us <= (1 + _LEAST_GAIN) * bound_us:
        return (
            f"{gain}: {takes}, and by per-layer costs no assignment takes less than "
            f"{format_us(bound_us)}"
        )
    if number := len(result.rows) - 1:
        return f"{takes}: of {number} plans that were compiled none that fits is faster"
    if bound_us > 0:
        return (
            f"{takes}, so that no plan was tried, and by per-segment costs none takes "
            f"less than {format_us(bound_us)}"
        )
    return f"{takes}, so that no plan was tried"


def _what_was_left_out(result: Fit) -> Iterator[str]:
    """What was compiled, and what was not done or came out differently."""
    allowed = f" of {result.most_compiles}" if result.most_compiles else ""
    yield f"{result.num_compiles}{allowed} programs compiled or read from the cache"
    for one in result.skipped:
        yield (
            f"the limit of compiles cut the search's pass {one.what!r} short, which "
            f"needs at least {one.num_compiles} more: more effort goes on from there"
        )
    if result.dropped:
        yield (
            "could not be compiled, so that their actions were dropped: "
            f"{len(result.dropped)} of the programs above"
        )
    if result.left:
        yield (
            f"{len(result.left)} units with less than 0.5 % of all residual bytes were "
            "left unchanged"
        )
    if result.not_sent:
        yield (
            f"the compiler leaves {format_bytes(result.not_sent)} on the device of "
            "what the plan offloads to the host"
        )
    unusual = Counter(n for row in result.rows for n in remarks(row.measurement))
    for remark, number in unusual.items():
        yield f"{number} of {len(result.rows)} programs: {remark}"


def _how_to_run(plan: Plan, is_remat_pass_off: bool) -> Iterator[str]:
    """What the plan holds beside its units, and what a compile of it has to set."""
    if plan.gradient_barrier:
        yield (
            "an optimization barrier holds the gradients of each layer outside of "
            "loops together"
        )
    if plan.puts_gradients_off:
        yield (
            "the compiler may put off gradients of unrolled layers' weights to the end "
            "of the step, which hides more of what devices exchange"
        )
    limit = plan.remat_pass_percent
    if limit is not None or is_remat_pass_off:
        state = "off" if limit is None else f"on, with a limit of {limit} %"
        yield (
            f"measured with XLA's own remat pass {state}: compile and run in "
            "`with plan.compiling():` (of a fit, `with fit.as_measured():`), or give "
            "plan.compiler_options to jax.jit"
        )


@print_result.register
def _(result: FitRecord, console: Console) -> None:
    table = new_table("program", "bytes", "step")
    for row in sorted(result.rows, key=lambda r: r.step_us):
        table.add_row(Text(row.name), format_bytes(row.bytes), format_us(row.step_us))
    console.print(table)
    console.print()
    console.print(Text(str(result.plan)))


@print_result.register
def _(result: Frontier, console: Console) -> None:
    line(
        console,
        f"{result.program} on {result.target}",
        f"{format_bytes(result.usable_bytes)} usable on each device",
    )
    console.print()
    best = set(result.best)
    table = new_table("program", "bytes", "step", "kind", "on the frontier")
    for point in result.points:
        kind = point.kind
        if point.budget_bytes is not None:
            kind = f"{kind}, within {format_bytes(point.budget_bytes)}"
        table.add_row(
            Text(point.name),
            format_bytes(point.bytes),
            format_us(point.step_us),
            kind,
            "yes" if point in best else "",
            style="bold" if point in best else "",
        )
    console.print(table)
    console.print()
    for remark in (
        ESTIMATES,
        "searched: the answer for every budget from its bytes up to the given ones",
        "on the frontier: no other program takes less memory and less time",
        f"{result.num_compiles} programs compiled or read from the cache",
    ):
        note(console, remark)
