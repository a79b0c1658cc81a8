"""The command `revremat export`: a plan as policies, code or flags of other systems."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from revremat import xla
from revremat._cli._options import Overrides, Program
from revremat._cli._program import load, read_override, start_targets, users_errors
from revremat._cli._progress import progress
from revremat._export import export
from revremat._printable import say
from revremat._saved import load_plan
from revremat._trace import trace


@dataclass(frozen=True)
class Export:
    """Writes a plan as JAX policies, as `nnx.remat`, or as MaxText flags.

    PROGRAM is `package.module:problem` or `file.py:problem`, as for `report`. PLAN is
    what `revremat search --out` wrote for it.
    """

    program: Program
    """What the plan was made for."""
    plan: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PLAN")]
    """The plan's file."""
    form: Literal["jax", "nnx", "maxtext"] = "jax"
    """Whose words to use."""
    set: tyro.conf.UseAppendAction[Overrides] = ()
    """An argument for the problem, as in `--set num_layers=24`."""

    def run(self) -> int:
        plan = load_plan(self.plan)
        if plan.version_note:
            say(f"revremat: {plan.version_note}", error=True)
        (target,) = start_targets([plan.target or "local"])
        with users_errors(f"export {self.program} failed"), progress("export"):
            problem = load(self.program, target, dict(map(read_override, self.set)))
            problem = dataclasses.replace(problem, name=problem.name or self.program)
            with xla.traced_for(target):
                graph = trace(
                    problem.loss, *problem.specs, keep_checkpoints=plan.keep_checkpoints
                )
        say(str(export(plan, graph, self.form)))
        return 0
