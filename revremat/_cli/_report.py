"""`revremat report`: what a training step takes on a target."""

import dataclasses
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import tyro

from revremat import xla
from revremat._apply import apply_quietly
from revremat._cli._diff import read_rules
from revremat._cli._exit import FAILED
from revremat._cli._options import (
    Budget,
    OptionalCount,
    OptionalFile,
    OptionalWord,
    Overrides,
    Program,
    Rules,
    Share,
    TargetNames,
)
from revremat._cli._program import (
    default_of,
    load,
    read_override,
    start_targets,
    users_errors,
)
from revremat._cli._progress import progress
from revremat._errors import UserError
from revremat._format import format_bytes
from revremat._io._files import check_place, write_text
from revremat._largest import largest
from revremat._measure import Step, measure, with_unexpected
from revremat._measurement import Measurement, categories
from revremat._plan import Plan
from revremat._printable import say
from revremat._problem import Problem
from revremat._read import is_dump, read
from revremat._report._lock import check_lock, lock_text, read_lock
from revremat._report._text import new_table, render
from revremat._report._write import write
from revremat._saved import load_plan
from revremat._trace import fixed_units
from revremat.xla import Target


@dataclass(frozen=True)
class Report:
    """What a training step takes on a target: bytes, who holds them, and time.

    PROGRAM is `package.module:problem` or `file.py:problem`: a function of a target
    and of what `--set` gives it. It returns a `revremat.Problem`. Or PROGRAM is what a
    compile left behind: the folder given to XLA's `--xla_dump_to`, or one HLO file.
    """

    program: Program
    """What to measure, or a dump."""
    target: tyro.conf.UseAppendAction[TargetNames] = ()
    """`local`, `cpu:8`, `h100:8`, `a100:280x8`, `v5e:4x4`; several make a table."""
    set: tyro.conf.UseAppendAction[Overrides] = ()
    """An argument for the problem, as in `--set num_layers=24`."""
    module: OptionalWord = ""
    """Part of a module's name, where a dump has several."""
    json: OptionalFile = None
    """Also write everything as JSON to this file."""
    html: OptionalFile = None
    """Also write a page to this file."""
    lock: OptionalFile = None
    """Write the bytes to this file, for `--check`."""
    check: OptionalFile = None
    """Fail (exit code 1) when bytes grew past this file's tolerance."""
    packing: bool = False
    """Also pack the temporaries anew, and say how much less they could take."""
    what_if: bool = False
    """Also say what a donation, an offload or a checkpoint would free."""
    rule: tyro.conf.UseAppendAction[Rules] = ()
    """Add up by your own categories, too, as in `--rule attention=attn`."""
    plan: OptionalFile = None
    """Apply the plan in this file first, one that `search --out` wrote."""
    largest_batch: OptionalWord = ""
    """Report the largest value of this argument that fits; `--set` is the start."""
    budget: Budget = ""
    """What the largest batch stays within: `60GiB`, `75%`; default all usable."""
    step: OptionalCount = None
    """The largest batch is a multiple of N; default the devices it is split over."""
    tolerance: Share = 0.01
    """Growth that the lock lets pass, as a share."""

    def run(self) -> int:
        self._check_places()
        found, refused = self._measure()
        if not found or (refused and (self.lock or self.check)):
            raise refused[0]
        result = found[0] if len(found) + len(refused) == 1 else found
        _out(result)
        for path in filter(None, (self.json, self.html)):
            write(result, path)
        if self.lock is not None:
            write_text(self.lock, lock_text(found, self.tolerance))
        grown = check_lock(found, self.check) if self.check is not None else []
        for sentence in (*refused, *grown):
            say(f"revremat: {sentence}", error=True)
        return FAILED if refused or grown else 0

    def _check_places(self) -> None:
        """Before anything is compiled: could the results be written at all?"""
        for path, suffix in ((self.json, ".json"), (self.html, ".html")):
            if path is not None and path.suffix != suffix:
                raise UserError(f"cannot write {str(path)!r}: write *{suffix}")
        for path in filter(None, (self.json, self.html, self.lock)):
            check_place(path)
        given = {"--budget": self.budget, "--step": self.step}
        for option, value in given.items():
            if value not in ("", None) and not self.largest_batch:
                raise UserError(
                    f"{option} {value} is for the largest batch: write --largest-batch "
                    "with an argument of the problem, or leave it out"
                )
        if self.check is not None:
            read_lock(self.check)
        if not 0 <= self.tolerance < float("inf"):
            raise UserError(
                f"a tolerance of {self.tolerance} is no share: write one such as 0.01"
            )

    def _measure(self) -> tuple[list[Measurement], list[UserError]]:
        """What is measured, and why the program is not on some targets."""
        if is_dump(self.program):
            return self._read(), []
        if self.module:
            raise UserError(
                f"--module {self.module!r} picks from a dump, but {self.program!r} is "
                "a program: leave it out"
            )
        rules = self._rules()
        plan = load_plan(self.plan) if self.plan is not None else None
        targets = start_targets(self.target or ("local",))
        overrides = dict(read_override(text) for text in self.set)
        found, refused = [], []
        for target in targets:
            try:
                found.append(self._measure_on(target, overrides, plan, rules))
            except UserError as error:
                refused.append(error)
        return found, refused

    def _measure_on(
        self,
        target: Target,
        overrides: dict[str, Any],
        plan: Plan | None,
        rules: dict[str, str],
    ) -> Measurement:
        if self.largest_batch:
            overrides = self._largest(target, overrides)
        failed = users_errors(f"{self.program} does not compile for {target}")
        with progress(f"report {self.program} on {target}") as report:
            report("making the problem", 0, 0)
            problem = load(self.program, target, overrides)
            told: list[str] = []
            if plan is not None:
                problem = planned(problem, plan, target)
                told = plan_notes(plan, target)
            report("tracing and compiling", 0, 0)
            with failed:
                step, specs = problem.make_step()
                name = problem.name or self.program
                m = measure(
                    Step(step, specs, problem.donate, name, plan),
                    target=target,
                    packing=self.packing,
                    what_if=self.what_if,
                    rules=rules,
                )
                m = with_unexpected(m, problem.layout)
                told += _fixed_units(problem, target)
                return dataclasses.replace(m, notes=(*m.notes, *told))

    def _read(self) -> list[Measurement]:
        if not self.target:
            raise UserError(
                "a dump does not say how much memory its device has: write --target, "
                "as "
                "in --target h100:8"
            )
        if self.set:
            raise UserError("--set changes a program, but a dump is compiled already")
        if self.plan is not None:
            raise UserError("--plan changes a program, but a dump is compiled already")
        if self.largest_batch:
            raise UserError(
                "--largest-batch compiles a program anew, but a dump is compiled "
                "already: leave it out"
            )
        rules = self._rules()
        return [
            read(
                self.program,
                target=t,
                module=self.module,
                packing=self.packing,
                what_if=self.what_if,
                rules=rules,
            )
            for t in self.target
        ]

    def _largest(self, target: Target, overrides: dict[str, Any]) -> dict[str, Any]:
        """Searches, prints what was tried, and sets the largest that fits."""
        name = self.largest_batch
        start = overrides.get(name, default_of(self.program, name))
        if not isinstance(start, int) or isinstance(start, bool):
            raise UserError(
                f"--largest-batch {name}: its value is {start!r}, no whole number; "
                f"write where to begin, as in --set {name}=8"
            )
        title = f"report {self.program} on {target}"
        failed = users_errors(f"{self.program} does not compile for {target}")
        with failed, progress(title) as report:

            def make(size: int) -> Problem:
                report(f"tracing and compiling {name}={size}", 0, 0)
                return load(self.program, target, {**overrides, name: size})

            found = largest(
                make,
                start=start,
                target=target,
                budget=self.budget or None,
                step=self.step,
            )
        table = new_table(name, "bytes", "fits")
        for trial in found.trials:
            told = "refused" if trial.bytes is None else format_bytes(trial.bytes)
            table.add_row(str(trial.size), told, "yes" if trial.fits else "no")
        sys.stdout.write(render(table, color=sys.stdout.isatty()) + "\n")
        limit = format_bytes(found.budget_bytes)
        if not found.size:
            raise UserError(
                f"no {name} fits {limit} on {target}, not even {found.trials[0].size}"
            )
        told = "is the largest that fits"
        if found.is_cut_short:
            told = f"is the largest of {len(found.trials)} that were compiled and fits"
        say(f"{name}={found.size} {told} {limit} on {target}\n")
        return {**overrides, name: found.size}

    def _rules(self) -> dict[str, str]:
        rules = read_rules(self.rule)
        try:
            categories(rules)
        except ValueError as error:
            raise UserError(f"--rule: {error}") from None
        return rules


def planned(problem: Problem, plan: Plan, target: Target) -> Problem:
    """The problem with a plan applied.

    Raises:
      UserError: The plan offloads to host memory, and the target has none apart, or it
        wants XLA's own remat pass, which cannot be told a limit there.
    """
    if plan.remat_pass_percent is not None:
        xla.remat_pass_options(target, plan.remat_pass_percent)
    if target.platform == "cpu":
        names = {n for unit in plan.units for layer in unit.host_names for n in layer}
        layers = sum(bool(layer) for unit in plan.units for layer in unit.host_names)
        if names:
            raise UserError(
                f"the plan offloads {', '.join(sorted(names))} of {layers} "
                f"layer{'s' * (layers > 1)} to host memory, and {target} has none "
                "apart from its own: choose a GPU or TPU target, or search again for "
                "this one"
            )
    return dataclasses.replace(problem, loss=apply_quietly(problem.loss, plan))


def plan_notes(plan: Plan, target: Target) -> list[str]:
    """What is to be known of a plan that was made elsewhere; it is measured here."""
    notes = (plan.version_note, plan.target_note(target.spec))
    return [note for note in notes if note]


def _fixed_units(problem: Problem, target: Target) -> list[str]:
    """What the program has decided by itself: a sentence for each stack or chain."""
    try:
        with xla.traced_for(target):
            found = fixed_units(problem.loss, *problem.specs)
    except UserError:  # no loss that can be traced, and a report needs none
        return []
    lines = []
    for label, group in groupby(found, lambda c: c.unit.name.split("/")[0]):
        alike = list(group)
        counts = Counter(a.kind.upper() for c in alike for a in c.actions)
        kept, plain = (
            format_bytes(sum(getattr(c, key) for c in alike))
            for key in ("kept_bytes", "plain_bytes")
        )
        where = " on each device" if target.num_devices > 1 else ""
        runs = ", ".join(f"{n} x {kind}" for kind, n in counts.items())
        lines.append(
            f"{label}: {runs} keeps {kept} of its layers' activations where plain "
            f"autodiff would have kept {plain}{where}"
        )
    return lines


def _out(result: Any) -> None:
    sys.stdout.write(render(result, color=sys.stdout.isatty()))
