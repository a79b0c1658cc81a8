"""What is told of timed plans: who is fastest, and what a search took."""

import math
from typing import Any

from experiments.bench.baselines import PlainJax, PlainSplits, RematPass
from revremat import format_bytes, format_us

PLAN = "the plan"
PLAIN = ("no remat", PlainJax.name, PlainSplits.name, RematPass.name)
"""What anybody may do with JAX alone; the others are plans that revremat runs."""


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """The plan against the fastest of the others, and one search against the other.

    Where a baseline proposed the same program, that is the fastest of the others unless
    another one is faster.
    """
    plan_us = next(
        (one["measured_us"] for one in found["raced"] if one["name"] == PLAN), math.inf
    )
    told = {}
    for what, is_meant in (("plain", PLAIN.__contains__), ("other", lambda by: True)):
        times = {
            name: one["measured_us"]
            for one in found["raced"]
            for name, by in zip([one["name"], *one["also"]], one["by"], strict=True)
            if name != PLAN and is_meant(by)
        }
        best = min(times, key=lambda name: times[name], default=None)
        told[f"fastest_{what}"] = best
        told[f"over_{what}"] = None if best is None else times[best] / plan_us
    timed, estimated = found["timed_search"], found["estimated_search"]
    ratio = timed["seconds"] / max(estimated["seconds"], 1e-9)
    return {**told, "search_ratio": ratio}


def table(name: str, found: dict[str, Any]) -> str:
    """One program."""
    lines = [f"{name}, within {format_bytes(found['budget_bytes'])}"]
    for one in sorted(found["raced"], key=lambda one: one["measured_us"]):
        lines.append(
            f"{format_us(one['measured_us']):>12} {format_bytes(one['bytes']):>12}  "
            f"{'; also '.join([one['name'], *one['also']])}"
        )
    timed, estimated = found["timed_search"], found["estimated_search"]
    lines.append(
        f"searched in {timed['seconds']} s, timed; in {estimated['seconds']} s by "
        f"estimates: {'; '.join(timed['plan'])}"
    )
    return "\n".join(lines)


def markdown(programs: dict[str, Any]) -> str:
    """The table of the documents."""
    lines = [
        "| program | budget | plan | takes | over plain JAX | over everything | "
        "search, timed | search, estimated |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in programs.items():
        told = summary(found)
        plan_us = {one["name"]: one["measured_us"] for one in found["raced"]}[PLAN]
        gains = (
            "nothing fits"
            if told[f"fastest_{what}"] is None
            else f"{told[f'over_{what}']:.3f} ({told[f'fastest_{what}']})"
            for what in ("plain", "other")
        )
        cells = [
            name,
            format_bytes(found["budget_bytes"]),
            "; ".join(found["timed_search"]["plan"]),
            format_us(plan_us),
            *gains,
            *(
                f"{found[f'{kind}_search']['seconds']:.0f} s"
                for kind in ("timed", "estimated")
            ),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict(programs: dict[str, Any]) -> str:
    """How many gain, and whether any is slower than what it is held against."""
    found = {name: summary(one) for name, one in programs.items()}
    lines = []
    for name, told in found.items():
        gains = (
            f"{told[f'over_{what}']:.3f} over {told[f'fastest_{what}']}"
            for what in ("plain", "other")
            if told[f"fastest_{what}"] is not None
        )
        ratio = f"the search took {told['search_ratio']:.2f} times as long"
        lines.append(f"{name}: {'; '.join([*gains, ratio])}")
    for what, against in (("plain", "plain JAX"), ("other", "everything")):
        gains = [told[f"over_{what}"] or math.inf for told in found.values()]
        ahead = sum(gain >= 1.03 for gain in gains)
        behind = sum(gain < 0.98 for gain in gains)
        lines.append(
            f"against {against} that fits {ahead} of {len(gains)} are 3 % faster or "
            f"more, and {behind} more than 2 % slower"
        )
    return "\n".join(lines)
