"""The command that compares two reports or two plans: `revremat diff`."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.text import Text

from revremat._bytes import format_bytes, format_us
from revremat._cli_diff_plans import diff_plans, plans_text
from revremat._cli_words import OptionalFile, Rules
from revremat._errors import UserError
from revremat._files import check_place, write_text
from revremat._measurement import Measurement
from revremat._plan import Plan
from revremat._printable import printable
from revremat._render import new_table, render
from revremat._saved import load, what_is

DIFF_SCHEMA = 1
_TOTALS = ("total", "argument", "output", "alias", "temp", "host", "fragmentation")
_KEYS = ("phase", "module", "scope", "op", "source", "dtype")


_By = Annotated[tuple[str, ...], tyro.conf.arg(metavar="KEY")]
_Before = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="BEFORE")]
_After = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="AFTER")]


@dataclass(frozen=True)
class Diff:
    """What grew between two reports, by who holds it at the peak.

    BEFORE and AFTER are files that `revremat report --json` wrote: of two plans, two
    commits, two targets. Of two files with plans: in which layers they differ.
    """

    before: _Before
    """The older report or plan."""
    after: _After
    """The newer one."""
    by: tyro.conf.UseAppendAction[_By] = ()
    """Add up by phase, module (default both), scope, op, source or dtype."""
    rule: tyro.conf.UseAppendAction[Rules] = ()
    """Add up by your own categories, as in `--rule attention=attn`."""
    json: OptionalFile = None
    """Also write everything as JSON to this file."""

    def run(self) -> int:
        if self.by and self.rule:
            raise UserError("--by and --rule both say how to add up: write one of them")
        if unknown := set(self.by) - set(_KEYS):
            raise UserError(f"--by {unknown.pop()!r}: write one of {', '.join(_KEYS)}")
        if self.json is not None:
            check_place(self.json)
        rules = read_rules(self.rule)
        before, after = self._nouns()
        if isinstance(before, Plan) and isinstance(after, Plan):
            if self.by or self.rule:
                raise UserError(
                    "--by and --rule add up the bytes of reports, and these are plans: "
                    "leave them out"
                )
            data = diff_plans(before, after)
            text = plans_text(data)
        else:
            assert isinstance(before, Measurement)
            assert isinstance(after, Measurement)
            data = diff(before, after, by=self.by or ("phase", "module"), rules=rules)
            text = _text(data)
        sys.stdout.write(text)
        if self.json is not None:
            write_text(self.json, json.dumps(data, indent=1) + "\n")
        return 0

    def _nouns(self) -> tuple[Measurement | Plan, Measurement | Plan]:
        """Two reports or two plans, whatever the files are."""
        before, after = (_read(path) for path in (self.before, self.after))
        if isinstance(before, Plan) != isinstance(after, Plan):
            plan, report = self.before, self.after
            if isinstance(after, Plan):
                plan, report = report, plan
            raise UserError(
                f"{str(plan)!r} is a plan and {str(report)!r} is a report: compare two "
                "of a kind; 'revremat report PROGRAM --plan FILE --json FILE' writes a "
                "plan's report"
            )
        return before, after


def read_rules(texts: tuple[str, ...]) -> dict[str, str]:
    """Rules of the command line, `category=regular expression` each."""
    rules = {}
    for text in texts:
        name, equals, rule = text.partition("=")
        if not (name and equals and rule):
            raise UserError(
                f"--rule {text!r} is no rule: write --rule category=expression"
            )
        rules[name] = rule
    return rules


def _read(path: Path) -> Measurement | Plan:
    """One report that `--json` wrote, or one plan.

    Raises:
      UserError: There is none, it holds several, or it is something else.
    """
    found = load(path)
    if isinstance(found, list):
        raise UserError(f"{str(path)!r} holds several reports: write one target each")
    if not isinstance(found, Measurement | Plan):
        raise UserError(
            f"{str(path)!r} is {what_is(path)}, and diff compares reports or plans: "
            "write 'revremat report PROGRAM --json FILE' for a report"
        )
    return found


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
        "headroom_bytes": [m.headroom_bytes for m in pair],
        "categories": [
            {"key": list(key), "bytes": [a, b]} for key, a, b in rows if a or b
        ],
    }


def _text(data: dict) -> str:
    table = new_table("on each device", "before", "after", "change")
    for name, (a, b) in data["bytes"].items():
        if a or b:
            table.add_row(name, format_bytes(a), format_bytes(b), _change(b - a))
    a, b = data["step_us"]
    change = f"{100 * (b / a - 1):+.1f} %" if a else ""
    table.add_row("estimated step", format_us(a), format_us(b), change)
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
