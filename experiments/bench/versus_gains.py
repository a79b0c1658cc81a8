"""What a comparison's records say: gains over each baseline, and what they are made of.

A record is what `experiments.bench.versus` writes of one program.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.bench.programs import PROGRAMS

RESULTS = Path(__file__).parents[1] / "results" / "versus"


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """All programs that are done, in the order of the table of programs."""
    done = {
        path.stem: json.loads(path.read_text())
        for path in sorted(folder.glob("*.json"))
        if not path.stem.startswith("batch-")
    }
    return dict(sorted(done.items(), key=lambda one: _place(one[0])))


def _place(name: str) -> tuple[int, str]:
    names, plain = list(PROGRAMS), name.removesuffix("-cudnn")
    return (names.index(plain) if plain in names else len(names), name)


def gains(found: Mapping[str, Any], baseline: str) -> list[float | None]:
    """At each budget the search's throughput over a baseline's; nothing if not run.

    None where the baseline has no plan that fits; not a number where the search has
    none, which no promise allows.
    """
    listed: list[float | None] = []
    for at in found["budgets"]:
        if baseline not in at["baselines"]:
            continue
        mine, theirs = at["search"], at["baselines"][baseline]
        if mine is None and theirs is not None:
            listed.append(math.nan)
        elif mine is None or theirs is None:
            listed.append(None)
        else:
            listed.append(theirs["step_us"] / mine["step_us"])
    return listed


def best_baseline(at: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The fastest of all baselines at a budget; None where none fits."""
    fitting = [one for one in at["baselines"].values() if one is not None]
    return min(fitting, key=lambda one: (one["step_us"], one["bytes"]), default=None)


def gains_over_best(found: Mapping[str, Any], below: float = math.inf) -> list[float]:
    """At each budget where any baseline fits, the search's throughput over the best.

    Args:
      found: A program's figures.
      below: Only at budgets below this share of what plain unrolled loops take, or the
        program itself where it has none.
    """
    return [
        theirs["step_us"] / mine["step_us"] if mine else math.nan
        for mine, theirs in _beside_best(found, below)
    ]


def ceilings(found: Mapping[str, Any], below: float = math.inf) -> list[float]:
    """At each budget where any baseline fits, the gain if memory cost nothing.

    Args:
      found: A program's figures.
      below: As in `gains_over_best`.
    """
    first_us = least_us(found)
    return [theirs["step_us"] / first_us for _, theirs in _beside_best(found, below)]


def attainable(found: Mapping[str, Any], below: float = math.inf) -> list[float]:
    """At each budget where any baseline fits, the gain of a plan that is at its bound.

    Where no bound is known, the gain if memory cost nothing.

    Args:
      found: A program's figures.
      below: As in `gains_over_best`.
    """
    first_us = least_us(found)
    listed = []
    for mine, theirs in _beside_best(found, below):
        bound_us = (mine.get("bound_us") if mine else None) or first_us
        listed.append(theirs["step_us"] / max(first_us, bound_us))
    return listed


def least_us(found: Mapping[str, Any]) -> float:
    """What the fastest of a program's plans takes, whatever its bytes."""
    plans = [found.get("unrolled"), found["baseline"]]
    for at in found["budgets"]:
        plans += [at["search"], *at["baselines"].values()]
    return min(plan["step_us"] for plan in plans if plan is not None)


def _beside_best(
    found: Mapping[str, Any], below: float
) -> Iterator[tuple[Mapping[str, Any] | None, Mapping[str, Any]]]:
    """The search's answer and the best baseline, where one fits."""
    plain = found.get("unrolled") or found["baseline"]
    for at in found["budgets"]:
        theirs = best_baseline(at)
        if theirs is not None and at["budget_bytes"] <= below * plain["bytes"]:
            yield at["search"], theirs


def shares(at: Mapping[str, Any]) -> dict[str, float] | None:
    """What of a gain over presets in a scan is unrolling, which sets, and mixing.

    Step by step, as logarithms: from the best preset on the loop as it is, to the best
    on any form of it, to the best set that all layers share, to the plan. None where
    one of those does not fit, or nothing was gained.
    """
    of = at["baselines"]
    forms = [of.get(name) for name in ("uniform preset", "plain JAX", "no remat")]
    fitting = [one for one in forms if one is not None]
    scan, alike, mine = of.get("uniform preset"), at.get("alike"), at["search"]
    if scan is None or alike is None or mine is None:
        return None
    unrolled_us = min(one["step_us"] for one in fitting)
    alike_us = min(alike["step_us"], unrolled_us)
    whole = math.log(scan["step_us"] / mine["step_us"])
    if whole <= 0:
        return None
    return {
        "unrolling": math.log(scan["step_us"] / unrolled_us) / whole,
        "sets": math.log(unrolled_us / alike_us) / whole,
        "mixing": math.log(alike_us / mine["step_us"]) / whole,
    }


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are numbers at all; None if there are none.

    >>> geometric_mean([2.0, None, 8.0])
    4.0
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    return math.exp(sum(map(math.log, known)) / len(known))


def means(
    done: Mapping[str, Mapping[str, Any]], baseline: str
) -> dict[str, float | None]:
    """The search's throughput over a baseline's, over all that is done.

    A program that was run at more budgets weighs no more than another; or else every
    budget weighs the same.
    """
    listed = [gains(found, baseline) for found in done.values()]
    return {
        "mean of programs": geometric_mean(map(geometric_mean, listed)),
        "mean of budgets": geometric_mean(gain for row in listed for gain in row),
    }
