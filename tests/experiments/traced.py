"""From a printed summary back to the raw lines of a run, by the text alone.

Nothing of what makes the tables is used: a row is cut at the heads of its columns, its
last cell names lines of `results.jsonl`, and each figure of the other cells has to be a
number of these lines in its unit, or one of the quotients and differences that its
column stands for.
"""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

UNITS = {
    "s": 1.0, "ms": 1e-3, "us": 1e-6, "%": 1e-2, "": 1.0,
    "GiB": 2.0**30, "MiB": 2.0**20, "KiB": 2.0**10,
}  # fmt: skip
FIGURE = re.compile(
    r"(?<![\w.])([-+]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?) ?(GiB|MiB|KiB|ms|us|s|%)?(?!\w)"
)
_NAMES = ("job", "variant", "program", "kernel", "group", "dtype", "target", "field")
_SAID = ("error", "why", "sentence", "in_stage")

MEASURED, SAID_AHEAD = frozenset({"measured"}), frozenset({"predicted"})
ANY = frozenset({"begun", "ended", "skipped", "measured", "derived", "failed"})

COLUMNS: dict[str, tuple[frozenset[str], tuple[str, ...]]] = {
    "job": (ANY | {"checked", "predicted", "compiled"}, ()),
    "of": (frozenset({"checked"}), ()),
    "variant": (ANY | {"predicted", "compiled"}, ()),
    "state": (ANY, ()),
    "took": (frozenset({"ended"}), ("seconds",)),
    "why not": (ANY, ()),
    "step, measured": (MEASURED, ("median_s",)),
    "spread": (MEASURED, ()),
    "step, estimate": (SAID_AHEAD | MEASURED, ("estimate_us",)),
    "estimate by measured card": (SAID_AHEAD | MEASURED, ("estimate_us",)),
    "compiled": (frozenset({"compiled"}), ("bytes",)),
    "predicted": (SAID_AHEAD, ("bytes",)),
    "peak": (MEASURED, ("peak_bytes_in_use",)),
    "not finite": (MEASURED, ("not_finite",)),
    "order, measured": (MEASURED, ()),
    "order, estimate": (SAID_AHEAD, ()),
    "pairs in one order": (SAID_AHEAD | MEASURED, ()),
    "verdict": (frozenset({"checked"}), ()),
    "sentence": (frozenset({"checked"}), ()),
    "share of the card": (frozenset({"begun"}), ("memory_fraction",)),
    "limit": (MEASURED, ("bytes_limit",)),
    "what happened": (MEASURED, ("steps",)),
    "maps in": (MEASURED, ()),
    "depth": (MEASURED, ("depth",)),
    "numbers": (MEASURED, ("numbers",)),
    "wrong after inverse": (MEASURED, ("wrong_after_inverse",)),
    "after pull back": (MEASURED, ("wrong_after_pull_back",)),
    "in one step": (MEASURED, ("wrong_after_step",)),
    "largest error": (MEASURED, ("largest_error_after_step",)),
    "gradients differ by": (MEASURED, ("gradient_error_to_saved",)),
    "program": (MEASURED, ()),
    "plan": (MEASURED, ()),
    "largest relative error": (MEASURED, ("worst_relative_error",)),
    "copying": (MEASURED, ("copying_s",)),
    "of it beside no kernel": (MEASURED, ("exposed_s",)),
    "device busy": (MEASURED, ("busy_s",)),
    "group": (MEASURED, ()),
    "kernel": (MEASURED, ()),
    "time, measured": (MEASURED, ("seconds",)),
    "TFLOP/s": (MEASURED, ()),
    "GB/s": (MEASURED, ()),
    "after": (MEASURED, ()),
    "outside of the pool": (MEASURED, ()),
    "pool": (MEASURED, ("pool_bytes",)),
    "in use": (MEASURED, ("bytes_in_use",)),
    "fact of the card": (frozenset({"derived"}), ()),
    "without it": (frozenset({"derived"}), ("data_sheet",)),
    "measured": (frozenset({"derived"}), ("value",)),
}
"""The kinds of records that a column is made of, and by which names its figures stand
there. What else it says is in `_derived`."""


@dataclass(frozen=True)
class Row:
    """One row of a table of the text.

    Attributes:
      title: Of the table.
      cells: By column, without the lines.
      records: The raw records that the row names.
    """

    title: str
    cells: dict[str, str]
    records: tuple[dict[str, Any], ...]


def rows(text: str, lines: list[str]) -> Iterator[Row]:
    """All rows of all tables of a summary.

    Args:
      text: The summary.
      lines: Of the file of results.
    """
    blocks = re.split(r"\n\n+", text)
    for title, block in itertools.pairwise(blocks):
        heads, *body = block.splitlines()
        if not heads.endswith(" lines"):
            continue
        starts = [m.start() for m in re.finditer(r"(?<!\S )(?<!\S)\S", heads)]
        ends = [*starts[1:], None]
        names = [heads[a:b].strip() for a, b in zip(starts, ends, strict=True)]
        for line in body[1:]:
            cells = [line[a:b].strip() for a, b in zip(starts, ends, strict=True)]
            numbers = map(int, cells.pop().split())
            found = tuple(json.loads(lines[n - 1]) for n in numbers)
            yield Row(title, dict(zip(names, cells, strict=False)), found)


def untraced(row: Row) -> list[str]:
    """Figures of a row that are in none of its records, with their columns."""
    return [
        f"{column}: {figure}"
        for column, cell in row.cells.items()
        for figure in _untraced(row, column, cell)
    ]


def _untraced(row: Row, column: str, cell: str) -> list[str]:
    kinds, keys = COLUMNS[column]
    records = [r for r in row.records if r["kind"] in kinds]
    if _is_said(cell, records):
        return []
    for name in sorted(_names(records), key=len, reverse=True):
        cell = cell.replace(name, " ")
    numbers = [n for r in records for n in _numbers(r, keys)]
    numbers += _derived(column, records)
    return [
        m[0].strip()
        for m in FIGURE.finditer(cell)
        if not any(_shows(m[1], m[2] or "", number) for number in numbers)
    ]


def _is_said(cell: str, records: list[dict[str, Any]]) -> bool:
    """Whether a cell is a sentence of a record, or the beginning of one."""
    return any(
        cell and " ".join(str(r[key]).split()).startswith(cell)
        for r in records
        for key in _SAID
        if r.get(key)
    )


def _names(records: list[dict[str, Any]]) -> set[str]:
    return {r[key] for r in records for key in _NAMES if isinstance(r.get(key), str)}


def _shows(text: str, unit: str, number: float) -> bool:
    """Whether a figure is a number, as far as its digits go."""
    shown = float(text.replace(",", ""))
    digits = text.split("e")[0].replace(",", "")
    place = 10.0 ** -len(digits.partition(".")[2])
    if "e" in text:
        place *= 10.0 ** int(text.split("e")[1])
    elif "." not in digits and unit == "" and shown >= 1000 and "," not in text:
        place = 1.0
    half = 0.5 * place * UNITS[unit] * (1 + 1e-9)
    return abs(shown * UNITS[unit] - number) <= half + 1e-12 * abs(number)


def _numbers(
    record: dict[str, Any], keys: tuple[str, ...], is_below: bool = False
) -> Iterator[float]:
    """Numbers of a record by their names, times in seconds: names end in their unit."""
    for name, value in record.items():
        is_asked = is_below or name in keys
        if isinstance(value, dict):
            yield from _numbers(value, keys, is_asked)
        elif is_asked and isinstance(value, list):
            yield len(value)
        elif is_asked and isinstance(value, int | float):
            yield value * 1e-6 if name.endswith("_us") else value


def _derived(column: str, records: list[dict[str, Any]]) -> list[float]:
    """What a column says that is no raw number: of how many numbers it is which."""
    steps = [r["median_s"] for r in records if r.get("what") == "steps"]
    said = [r["estimate_us"] * 1e-6 for r in records if r["kind"] == "predicted"]
    found: list[float] = []
    match column:
        case "step, estimate" | "estimate by measured card":
            found = [estimate / median for estimate in said for median in steps]
        case "spread" if len(steps) == 2:
            found = [abs(steps[0] / steps[1] - 1)]
        case "TFLOP/s":
            found = [r["flops"] / r["seconds"] * 1e-12 for r in records]
        case "GB/s":
            found = [r["bytes"] / r["seconds"] * 1e-9 for r in records]
        case "pairs in one order":
            found = _pairs(records)
        case "state":
            found = [len([r for r in records if r["kind"] == "failed"])]
        case "outside of the pool":
            found = [_outside(r["memory"]) for r in records]
    return found


def _outside(memory: dict[str, Any]) -> float:
    used = memory["driver_total_bytes"] - memory["driver_free_bytes"]
    return used - memory["allocator"].get("pool_bytes", 0)


def _pairs(records: list[dict[str, Any]]) -> list[float]:
    """How many pairs have one order by time and by estimate, and how many there are."""
    measured = {r["variant"]: r["median_s"] for r in records if "median_s" in r}
    said = {r["variant"]: r["estimate_us"] for r in records if "estimate_us" in r}
    names = sorted(measured)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
    alike = [
        (measured[a] < measured[b]) == (said[a] < said[b])
        for a, b in pairs
        if a in said and b in said
    ]
    return [float(sum(alike)), float(len(pairs))]
