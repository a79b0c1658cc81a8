"""The command that compares two reports or two plans: `revremat diff`."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from revremat._cli._options import OptionalFile, Rules
from revremat._errors import UserError
from revremat._io._files import check_place, write_text
from revremat._measurement import Measurement
from revremat._plan import Plan
from revremat._report._diff import diff, diff_text
from revremat._report._diff_plans import diff_plans, plans_text
from revremat._saved import load, what_is

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
            if self.json.suffix != ".json":
                raise UserError(f"cannot write {str(self.json)!r}: write *.json")
            check_place(self.json)
        rules = read_rules(self.rule)
        before, after = self._pair()
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
            text = diff_text(data)
        sys.stdout.write(text)
        if self.json is not None:
            write_text(self.json, json.dumps(data, indent=1) + "\n")
        return 0

    def _pair(self) -> tuple[Measurement | Plan, Measurement | Plan]:
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
    kind = what_is(path)
    if kind and kind not in ("a report", "several reports", "a plan"):
        raise UserError(
            f"{str(path)!r} is {kind}, and diff compares reports or plans: "
            "'revremat report PROGRAM --json FILE' writes a report"
        )
    if path.is_file() and not kind:
        raise UserError(
            f"{str(path)!r} holds no report and no plan, or only a part of one: "
            "'revremat report PROGRAM --json FILE' writes a report, "
            "'revremat search PROGRAM --budget BYTES --out FILE' a plan"
        )
    found = load(path)
    if isinstance(found, list):
        raise UserError(f"{str(path)!r} holds several reports: write one target each")
    assert isinstance(found, Measurement | Plan)
    return found
