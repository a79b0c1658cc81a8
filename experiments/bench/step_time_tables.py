"""Estimated and measured times of policies: how well they agree, and their table."""

import statistics
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]


def summary(rows: list[Row]) -> dict[str, float]:
    """How well the estimates order the measurements."""
    measured = [row["measured_us"] for row in rows]
    chosen = min(rows, key=lambda row: row["calibrated_us"])
    errors = [row["calibrated_us"] / row["measured_us"] - 1 for row in rows]
    return {
        "rank_correlation": spearman([r["calibrated_us"] for r in rows], measured),
        "measured_twice": spearman(*zip(*(r["halves_us"] for r in rows), strict=True)),
        "by_data_sheet": spearman([r["sheet_us"] for r in rows], measured),
        "choice_is_slower_by": chosen["measured_us"] / min(measured) - 1,
        "spread": max(measured) / min(measured) - 1,
        "median_error": statistics.median(map(abs, errors)),
    }


def spearman(one: Sequence[float], two: Sequence[float]) -> float:
    """Rank correlation; ties share their ranks.

    >>> spearman([1, 2, 3], [10, 30, 20])
    0.5
    """
    ranks = [_ranks(values) for values in (one, two)]
    if any(len(set(r)) < 2 for r in ranks):
        return float(len(one) < 2 or ranks[0] == ranks[1])
    return statistics.correlation(*ranks)


def _ranks(values: Sequence[float]) -> list[float]:
    return [
        sum(other < value for other in values)
        + (sum(other == value for other in values) + 1) / 2
        for value in values
    ]


def table(name: str, rows: list[Row]) -> str:
    """One program's policies, the fastest first."""
    lines = [f"{name:36} measured   median  calibrated  data sheet   temp MiB"]
    for row in sorted(rows, key=lambda row: row["measured_us"]):
        us = ("measured_us", "median_us", "calibrated_us", "sheet_us")
        m, d, c, s = (row[key] / 1e3 for key in us)
        temp = row["temp_bytes"] / 2**20
        lines.append(
            f"  {row['policy'][:34]:34} {m:8.2f} {d:8.2f}    {c:8.2f}    {s:8.2f} "
            f"{temp:10.1f}"
        )
    return "\n".join(lines)
