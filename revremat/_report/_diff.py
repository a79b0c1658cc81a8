"""diff: what grew between two reports, as data and as text."""

from collections.abc import Mapping

from rich.text import Text

from revremat._errors import UserError
from revremat._format import format_bytes, format_us
from revremat._measurement import Measurement
from revremat._printable import printable
from revremat._report._text import new_table, render

DIFF_SCHEMA = 1
_TOTALS = ("total", "argument", "output", "alias", "temp", "host", "fragmentation")


def diff(
    before: Measurement,
    after: Measurement,
    *,
    by: tuple[str, ...] = ("phase", "module"),
    rules: Mapping[str, str] | None = None,
) -> dict:
    """What grew, as the JSON of `revremat diff`: totals, categories, time.

    Categories are what is alive at each report's own peak; what grew most comes first.
    """
    pair = (before, after)

    def sums(m: Measurement) -> dict[tuple[str, ...], int]:
        if not rules:
            return m.memory.by(*by)
        return {(name,): size for name, size in m.memory.by_rule(rules).items()}

    try:
        old, new = sums(before), sums(after)
    except ValueError as error:
        raise UserError(f"--rule: {error}") from None
    rows = sorted(
        ((key, old.get(key, 0), new.get(key, 0)) for key in old.keys() | new.keys()),
        key=lambda row: (row[1] - row[2], row[0]),
    )
    return {
        "schema": DIFF_SCHEMA,
        "before": {"program": before.program, "target": before.target},
        "after": {"program": after.program, "target": after.target},
        "bytes": {
            name: [getattr(m.memory, f"{name}_bytes") for m in pair] for name in _TOTALS
        },
        "step_us": [m.time.step_us for m in pair],
        "step_measured": [m.time.measured for m in pair],
        "headroom_bytes": [m.headroom_bytes for m in pair],
        "categories": [
            {"key": list(key), "bytes": [a, b]} for key, a, b in rows if a or b
        ],
    }


def diff_text(data: dict) -> str:
    table = new_table("on each device", "before", "after", "change")
    for name, (a, b) in data["bytes"].items():
        if a or b:
            table.add_row(name, format_bytes(a), format_bytes(b), _change(b - a))
    a, b = data["step_us"]
    change = f"{100 * (b / a - 1):+.1f} %" if a else ""
    how = {"measured" if one else "estimated": None for one in data["step_measured"]}
    table.add_row(f"{' and '.join(how)} step", format_us(a), format_us(b), change)
    categories = new_table("alive at the peak", "before", "after", "change")
    changed = [c for c in data["categories"] if c["bytes"][0] != c["bytes"][1]]
    for row in changed:
        a, b = row["bytes"]
        categories.add_row(
            Text(" ".join(row["key"]) or "(unnamed)"),
            format_bytes(a),
            format_bytes(b),
            _change(b - a),
        )
    names = [
        printable(f"{data[side]['program']} on {data[side]['target']}")
        for side in ("before", "after")
    ]
    head = f"before: {names[0]}\nafter:  {names[1]}\n\n"
    if not changed:
        return head + render(table) + "\nnothing alive at the peak has changed\n"
    return head + render(table) + "\n" + render(categories)


def _change(size: int) -> str:
    return ("+" if size > 0 else "") + format_bytes(size)
