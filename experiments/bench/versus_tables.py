"""Tables of what a comparison's records say, for the terminal and for the documents."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from experiments.bench.baselines import BASELINES
from experiments.bench.versus_gains import (
    attainable,
    best_baseline,
    ceilings,
    gains,
    gains_over_best,
    geometric_mean,
    least_us,
    means,
    shares,
)
from revremat import format_bytes, format_us

PROMISED = {0.8: 1.05, 0.6: 1.10}
"""Over the best baseline, at budgets below a share of what plain unrolled loops take:
geometric means over all programs that are to be reached."""
MOST_BEHIND = 0.003
"""Of a step, by which a plan may be slower than the best baseline at any budget."""

_LEVEL = 0.9995
_LEAST_LEFT = 0.003
"""Of a budget: with less than that left it is closely met."""
_LEAST_GAIN = 0.002
"""Of a step: plans closer to one another than that are equally good."""


def rows_of(name: str, found: Mapping[str, Any]) -> str:
    """One program, budget by budget: the search's time, and gains.

    Beside the time: how much of the budget is left, and by how much any assignment of
    the same candidates could be faster at most.
    """
    baseline = found["baseline"]
    lines = [
        f"{name} on {found['target']}, baseline {format_bytes(baseline['bytes'])} "
        f"and {format_us(baseline['step_us'])}"
    ]
    names = [r.name for r in BASELINES[1:] if gains(found, r.name)]
    lines.append(
        f"{'budget':>11} {'search':>10} {'left':>6} {'bound':>6} "
        + " ".join(f"{n:>16}" for n in names)
    )
    columns = [gains(found, n) for n in names]
    for k, at in enumerate(found["budgets"]):
        mine = at["search"]
        took = format_us(mine["step_us"]) if mine else "none fits"
        cells = " ".join(f"{_cell(column[k]):>16}" for column in columns)
        beside = f"{_left(at):>6} {_bound(mine):>6}"
        budget = format_bytes(at["budget_bytes"])
        lines.append(f"{budget:>11} {took:>10} {beside} {cells}")
    total = sum(found["compiles"].values())
    lines.append(f"{total} compiles, {sum(found['seconds'].values()):.0f} s")
    return "\n".join(lines)


def _left(at: Mapping[str, Any]) -> str:
    mine = at["search"]
    return f"{1 - mine['bytes'] / at['budget_bytes']:.1%}" if mine else "-"


def _bound(mine: Mapping[str, Any] | None) -> str:
    if mine is None or not mine.get("bound_us"):
        return "-"  # Where nothing is known it is 0.
    return f"{max(0.0, mine['step_us'] / mine['bound_us'] - 1):.1%}"


def _cell(gain: float | None) -> str:
    return "none fits" if gain is None else f"{gain:.3f}"


def summary(done: Mapping[str, Mapping[str, Any]]) -> str:
    """Geometric means, program by program and over all of them."""
    if not done:
        return "no program is done"
    names = [r.name for r in BASELINES[1:]]
    lines = [f"{'throughput over':20} " + " ".join(f"{n:>18}" for n in names)]
    for program, found in done.items():
        cells = [_mean_cell(gains(found, n)) for n in names]
        lines.append(f"{program:20} " + " ".join(f"{c:>18}" for c in cells))
    overall = {n: means(done, n) for n in names}
    for kind in overall[names[0]]:
        cells = [_mean_cell([overall[n][kind]]) for n in names]
        lines.append(f"{kind:20} " + " ".join(f"{c:>18}" for c in cells))
    lines.append("(in brackets: budgets at which a baseline has no plan that fits)")
    lines += fair(done)
    lines += [*_against_the_baseline(done), *closely_met(done)]
    for program, found in done.items():
        below = [n for n in names if (geometric_mean(gains(found, n)) or 1) < _LEVEL]
        if below:
            lines.append(f"{program} is below {', '.join(below)}")
    return "\n".join(lines)


def fair(done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The plans against the best of all baselines, budget by budget."""
    lines = []
    for below, promised in PROMISED.items():
        listed = [gains_over_best(found, below) for found in done.values()]
        mean = geometric_mean(gain for row in listed for gain in row)
        if mean is not None:
            most, bounds = (
                geometric_mean(
                    gain for found in done.values() for gain in gains_of(found, below)
                )
                for gains_of in (ceilings, attainable)
            )
            held = "held" if mean >= promised else "NOT held"
            lines.append(
                f"{mean:.3f} x the best baseline at budgets below {below:.0%} of plain "
                f"unrolled loops, {promised:.2f} promised: {held}; "
                f"{most:.3f} if memory cost nothing, {bounds:.3f} if all plans were "
                "at their bounds"
            )
    behind = [
        f"  {program}, {format_bytes(at['budget_bytes'])}: {gain:.4f}"
        for program, found in done.items()
        for at, gain in zip(_with_baseline(found), gains_over_best(found), strict=True)
        if not gain >= 1 - MOST_BEHIND
    ]
    lines.append(f"budgets at which a baseline is {MOST_BEHIND:.1%} faster or more: ")
    lines[-1] += str(len(behind))
    return [*lines, *behind]


def _with_baseline(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [at for at in found["budgets"] if best_baseline(at) is not None]


def budgets_table(done: Mapping[str, Mapping[str, Any]]) -> str:
    """For the documents: every budget, the best baseline there, and what gains are of.

    Bound: by how much any assignment of the same candidates could be faster at most.
    Ceiling: the gain if memory cost nothing. Gains over the best preset in a scan are
    unrolling, sets and mixing in turn.
    """
    head = ["program", "budget", "of plain unrolled", "searched", "bound"]
    head += ["best baseline", "gain", "ceiling", "over presets in a scan", *_SHARES]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for program, found in done.items():
        plain = found.get("unrolled") or found["baseline"]
        first_us = least_us(found)
        for at in found["budgets"]:
            mine = at["search"]
            cells = [program, format_bytes(at["budget_bytes"])]
            cells.append(f"{at['budget_bytes'] / plain['bytes']:.0%}")
            cells += [_plan_cell(mine), _bound(mine)]
            cells += [*_best_cells(at, first_us), *_shares_cells(at)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


_SHARES = ("unrolling", "sets", "mixing")


def _best_cells(at: Mapping[str, Any], first_us: float) -> list[str]:
    theirs, mine = best_baseline(at), at["search"]
    if theirs is None:
        return ["none fits", "-", "-"]
    name = next(name for name, one in at["baselines"].items() if one == theirs)
    gain = f"{theirs['step_us'] / mine['step_us']:.3f}" if mine else "-"
    ceiling = f"{theirs['step_us'] / first_us:.3f}"
    return [f"{name}, {format_us(theirs['step_us'])}", gain, ceiling]


def _shares_cells(at: Mapping[str, Any]) -> list[str]:
    if (parts := shares(at)) is None:
        return ["-"] * (1 + len(_SHARES))
    scan = at["baselines"]["uniform preset"]
    gain = scan["step_us"] / at["search"]["step_us"]
    return [f"{gain:.3f}", *(f"{round(parts[name], 2) + 0.0:.0%}" for name in _SHARES)]


def closely_met(done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How budgets are met: closely, or nothing known says that more would help.

    What is left helps nobody where no plan at any budget, a baseline's or a searched
    one, is faster, where the plan's kinds of layers and one more, held to what it
    really took, make nothing faster that fits, or where no assignment of all that has a
    cost can be.
    """
    kinds = {
        f"within {_LEAST_LEFT:.1%}": 0,
        "the fastest plan there is takes no more": 0,
        "nothing near that fits is faster": 0,
        f"no assignment of the candidates is {_LEAST_GAIN:.1%} faster": 0,
    }
    near, fastest, filled, bounded = kinds
    exceeded, rest = 0, []
    for program, found in done.items():
        plans = [p for at in found["budgets"] for p in [at["search"], *_baselines(at)]]
        first_us = min((p["step_us"] for p in plans if p), default=math.inf)
        for place, at in enumerate(found["budgets"], 1):
            if (mine := at["search"]) is None:
                continue
            left = 1 - mine["bytes"] / at["budget_bytes"]
            least_us = mine["step_us"] / (1 + _LEAST_GAIN)
            bound_us = mine.get("bound_us") or 0.0
            beaten = any(p and p["step_us"] < least_us for p in _baselines(at))
            exceeded += left < 0
            if left <= _LEAST_LEFT:
                kinds[near] += 1
            elif first_us >= least_us:
                kinds[fastest] += 1
            elif mine.get("filled") and not beaten:
                kinds[filled] += 1
            elif bound_us >= least_us and not beaten:
                kinds[bounded] += 1
            else:
                rest.append(f"{program} {place}: {left:.1%} left, {_bound(mine)} bound")
    listed = ", ".join(f"{what} {number}" for what, number in kinds.items())
    lines = [f"budgets exceeded {exceeded}; {listed}; other ones {len(rest)}"]
    return [*lines, *(f"  {line}" for line in rest)]


def _baselines(at: Mapping[str, Any]) -> Iterable[Mapping[str, Any] | None]:
    return at["baselines"].values()


def markdown(done: Mapping[str, Mapping[str, Any]]) -> str:
    """The documents' table: a program, the searched plans, and gains over the rest."""
    names = [r.name for r in BASELINES[1:]]
    head = ["program", "baseline", "searched", "with least memory", *names]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for program, found in done.items():
        plans = [at["search"] for at in found["budgets"] if at["search"] is not None]
        fastest = min(plans, key=lambda p: (p["step_us"], p["bytes"]), default=None)
        least = min(plans, key=lambda p: p["bytes"], default=None)
        cells = [_plan_cell(p) for p in (found["baseline"], fastest, least)]
        cells += [_mean_cell(gains(found, n)) for n in names]
        loops = "" if all(p.get("unroll", True) for p in plans) else ", loops"
        label = f"{program} ({found['target']}, {len(found['budgets'])}{loops})"
        lines.append(f"| {label} | {' | '.join(cells)} |")
    overall = {n: means(done, n) for n in names}
    for kind in overall[names[0]]:
        cells = [_mean_cell([overall[n][kind]]) for n in names]
        lines.append(f"| {kind} | | | | {' | '.join(cells)} |")
    return "\n".join(lines)


def _plan_cell(plan: Mapping[str, Any] | None) -> str:
    if plan is None:
        return "none fits"
    return f"{format_bytes(plan['bytes'])}, {format_us(plan['step_us'])}"


def _mean_cell(listed: list[float | None]) -> str:
    mean, none = geometric_mean(listed), sum(gain is None for gain in listed)
    text = "-" if mean is None else f"{mean:.3f}"
    return f"{text} ({none})" if none else text


def _against_the_baseline(done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The fastest plans that take no more memory than the baseline."""
    lines = []
    for group in ("standard", "novel"):
        chosen = [found for found in done.values() if found["group"] == group]
        for kind in ("fusion-aware", "search"):
            values = [
                found["baseline"]["step_us"] / best["step_us"]
                for found in chosen
                if (best := found["no_more_memory"][kind]) is not None
            ]
            mean = geometric_mean(values)
            if mean is not None:
                lines.append(
                    f"{group} programs, {kind} against the baseline, at no more "
                    "memory: "
                    f"{mean:.3f} ({min(values):.3f} to {max(values):.3f})"
                )
    return lines
