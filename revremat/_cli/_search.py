"""The commands that decide: `revremat search` and `revremat compare`."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.text import Text

from revremat._cli._options import (
    Budget,
    Budgets,
    OptionalCount,
    OptionalFile,
    Overrides,
    Program,
    TargetName,
)
from revremat._cli._program import load, read_override, start_targets, users_errors
from revremat._cli._progress import Report, progress
from revremat._errors import UserError
from revremat._fit import Effort, Fit, Row, fit, frontier, presets
from revremat._format import format_bytes, format_us, parse_bytes
from revremat._io._files import check_place
from revremat._printable import say
from revremat._problem import Problem
from revremat._report._fits import ESTIMATES
from revremat._report._text import new_table, render
from revremat._report._write import write
from revremat.xla import Target


@dataclass(frozen=True)
class Search:
    """Finds a plan that stays within a budget, proven by the target's compiler.

    PROGRAM is `package.module:problem` or `file.py:problem`, as for `report`. The exit
    code is 1 when no plan fits; the smallest one is written all the same.
    """

    program: Program
    """What to fit."""
    budget: Budget = ""
    """Bytes on each device: `60GiB`, or `75%` of what is usable."""
    target: TargetName = "local"
    """Where it will run: `local`, `cpu:8`, `h100:8`, `a100:280x8`, `v5e:4x4`."""
    pareto: OptionalFile = None
    """Search at eight budgets; draw (`*.html`) or write (`*.json`) all plans."""
    out: OptionalFile = None
    """Write the plan to this file, for `--plan`, `export` and `rr.load`."""
    effort: Effort = "normal"
    """How long to search; what quicker ones compile, the others compile first."""
    compiles: OptionalCount = None
    """Compile at most so many programs, whatever the effort."""
    timed: bool = False
    """Run the programs on this machine, and choose by what they took."""
    unroll: bool = True
    """Whether layers of a loop may be unrolled, which takes longer to compile."""
    keep_checkpoints: bool = False
    """Whether the program's own `jax.checkpoint` regions stay as they are."""
    set: tyro.conf.UseAppendAction[Overrides] = ()
    """An argument for the problem, as in `--set num_layers=24`."""

    def run(self) -> int:
        with progress(f"search {self.program}") as report:
            report("making the problem", 0, 0)
            target, problem = _load(self.program, self.target, self.set)
        if self.pareto is not None:
            return self._draw(target, problem, self.pareto)
        if not self.budget:
            raise UserError(
                "write a budget, as in --budget 60GiB, or --pareto out.html"
            )
        parse_bytes(self.budget, usable_bytes=target.usable_bytes)
        if self.out is not None:
            check_place(self.out)
        with _reporting(f"search {self.program} on {target}") as report:
            found = fit(
                problem,
                budget=self.budget,
                target=target,
                effort=self.effort,
                most_compiles=self.compiles,
                unroll=self.unroll,
                keep_checkpoints=self.keep_checkpoints,
                progress=report,
                timed=self.timed,
            )
        sys.stdout.write(render(found, color=sys.stdout.isatty()))
        if self.out is not None:
            found.plan.save(self.out)
            path = str(self.out)
            say(f"plan written to {path}: rr.apply(loss, rr.load({path!r})) applies it")
        return 0 if found.plan.fits else 1

    def _draw(self, target: Target, problem: Problem, path: Path) -> int:
        taken = {
            "--budget": self.budget or None,
            "--out": self.out,
            "--compiles": self.compiles,
            "--timed": self.timed or None,
            "--effort": None if self.effort == "normal" else self.effort,
        }
        if given := [flag for flag, value in taken.items() if value is not None]:
            raise UserError(
                "--pareto has budgets of its own, takes as many compiles as they need, "
                "goes by estimates and writes its plans to *.json: leave out "
                f"{' and '.join(given)}"
            )
        if path.suffix not in (".html", ".json"):
            raise UserError(f"cannot write {str(path)!r}: write *.html or *.json")
        check_place(path)
        with _reporting(f"search {self.program} on {target}") as report:
            found = frontier(
                problem,
                target=target,
                unroll=self.unroll,
                keep_checkpoints=self.keep_checkpoints,
                progress=report,
            )
        sys.stdout.write(render(found, color=sys.stdout.isatty()))
        say(f"written to {write(found, path)}")
        return 0


@dataclass(frozen=True)
class Compare:
    """The program without a plan, under every preset, and under searched plans.

    PROGRAM is `package.module:problem` or `file.py:problem`, as for `report`.
    """

    program: Program
    """What to compare."""
    budget: tyro.conf.UseAppendAction[Budgets] = ()
    """Search for a plan within these bytes, too: `60GiB`, `75%`."""
    target: TargetName = "local"
    """Where it will run: `local`, `cpu:8`, `h100:8`, `a100:280x8`, `v5e:4x4`."""
    set: tyro.conf.UseAppendAction[Overrides] = ()
    """An argument for the problem, as in `--set num_layers=24`."""

    def run(self) -> int:
        with progress(f"compare {self.program}") as report:
            report("making the problem", 0, 0)
            target, problem = _load(self.program, self.target, self.set)
        for budget in self.budget:
            parse_bytes(budget, usable_bytes=target.usable_bytes)
        with _reporting(f"compare {self.program} on {target}") as report:
            rows = list(presets(problem, target=target, progress=report))
            for budget in self.budget:
                found = fit(problem, budget=budget, target=target, progress=report)
                rows.append(_searched(found, budget))
        table = new_table("program", "bytes", "step", "fits the device")
        for row in rows:
            table.add_row(
                Text(row.name),
                format_bytes(row.bytes),
                format_us(row.time_us),
                "yes" if row.measurement.fits else "no",
            )
        sys.stdout.write(f"{problem.name} on {target}\n\n")
        sys.stdout.write(render(table, color=sys.stdout.isatty()))
        say(f"\n- {ESTIMATES}\n- {_PRESETS}")
        return 0


_PRESETS = (
    "dots, dots_no_batch: every layer saves what dots_saveable and\n"
    "  dots_with_no_batch_dims_saveable of jax.checkpoint_policies save"
)


def _searched(found: Fit, budget: str) -> Row:
    (row,) = (r for r in found.rows if r.measurement is found.measurement)
    verdict = "" if found.plan.fits else " (does not fit)"
    return dataclasses.replace(row, name=f"searched, {budget}{verdict}: {row.name}")


def _load(program: str, spec: str, texts: tuple[str, ...]) -> tuple[Target, Problem]:
    (target,) = start_targets([spec])
    problem = load(program, target, dict(read_override(text) for text in texts))
    return target, dataclasses.replace(problem, name=problem.name or program)


@contextlib.contextmanager
def _reporting(title: str) -> Iterator[Report]:
    """Shows what is compiled; what the user's program raises is its own traceback."""
    with users_errors(f"{title} failed"), progress(title) as report:
        yield report
