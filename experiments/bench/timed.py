"""Plans chosen by running them, beside everything that anybody may write instead.

    python -m experiments.bench.timed [--programs vit_l_384 recurrence]

Of each program, in sizes for one core, within one budget: half of the way, by ratio,
from what its baseline takes to what it takes with everything recomputed. A first
process searches, without running anything and with `timed=True`, both from an empty
cache. Fresh ones run the plan in turn with each of JAX's presets that fits, on the
loop, with 4 and 16 layers to an iteration, unrolled and as a Python loop, all of it in
plain JAX; where there is no loop, around every layer. One thread's own time counts, and
of every program the fastest steps, as in `experiments/bench/step_time.py`. Of several
processes it is the median: where memory lies in one of them makes the same program up
to 8 % slower. Writes
`experiments/results/timed.json` after each program; those that are there are not run
again.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import tyro

import revremat as rr
from experiments.bench import step_time
from experiments.bench.plain_jax import FORMS, POLICIES, Loops, has_loops, written
from experiments.bench.programs import PROGRAMS, refusal, values
from experiments.bench.programs._entry import Size
from experiments.bench.step_time_programs import Policy
from experiments.files import write_whole
from revremat import format_bytes, format_us
from revremat.policies import PRESETS, preset

RESULT = Path(__file__).parents[1] / "results" / "timed.json"
ON_CPU = (
    "recurrence",
    "tiny_matmuls",
    "elementwise_chain",
    "norm_chain",
    "softmax_chain",
    "physics_rollout",
    "kinetics",
    "mixer_l_16",
    "vit_l_384",
    "gpt2_xl",
)
_PLAN = "the plan"


@dataclass(frozen=True)
class Options:
    """What is run.

    Attributes:
      programs: Which; by default ten.
      size: Of each.
      rounds: How often each is run at the end, in each process.
      processes: In how many processes, one after the other.
      again: Programs that are there are run again.
      out: The file of the results.
      markdown: Only prints the table of the documents.
      part: What the command's own processes do.
      folder: Where they find one another's files.
    """

    programs: tuple[str, ...] = ()
    size: Size = "cpu"
    rounds: int = 24
    processes: int = 3
    again: bool = False
    out: Path = RESULT
    markdown: bool = False
    part: Literal["all", "search", "race"] = "all"
    folder: Path = Path()


def main(options: Options) -> int:
    """Runs all of it; 1 if a program is slower than what it is held against."""
    if unknown := refusal(options.programs, PROGRAMS):
        print(unknown)
        return 2
    if options.markdown:
        print(markdown(_read(options.out)["programs"]))
        return 0
    if options.part != "all":
        (name,) = options.programs
        problem = PROGRAMS[name].make(rr.target("cpu:1"), options.size)
        part = _search if options.part == "search" else _race
        part(problem, options)
        return 0
    if options.processes < 1:
        print(f"--processes {options.processes}: write one or more")
        return 2
    about = {"device": _device(), "jax": jax.__version__, "size": options.size}
    found = _known(options.out, about)
    for name in options.programs or ON_CPU:
        if name in found and not options.again:
            continue
        with tempfile.TemporaryDirectory() as folder:
            raced = Path(folder) / "race.json"
            _run("search", name, options, folder)
            races = []
            for _ in range(options.processes):
                raced.unlink(missing_ok=True)
                _run("race", name, options, folder)
                if raced.exists():
                    races.append(_read(raced)["raced"])
            if len(races) < options.processes:
                print(f"{name} is left out", flush=True)
                continue
            found[name] = _read(Path(folder) / "search.json") | {"raced": median(races)}
        print(table(name, found[name]), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        whole = {**about, "programs": found}
        write_whole(options.out, json.dumps(whole, indent=1) + "\n")
    print(verdict(found))
    return 0


def median(races: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The same programs as each process raced them, with the median of their times.

    Args:
      races: Of every process, its programs in the same order.
    """
    found = []
    for runs in zip(*races, strict=True):
        times = [one["measured_us"] for one in runs]
        found.append(
            {**runs[0], "measured_us": statistics.median(times), "processes_us": times}
        )
    return found


def _device() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "cpu"


def _known(file: Path, about: dict[str, Any]) -> dict[str, Any]:
    """What a file holds of the same machine."""
    if not file.exists():
        return {}
    before = _read(file)
    programs = before.pop("programs", {})
    return programs if before == about else {}


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


def _run(part: str, name: str, options: Options, folder: str) -> None:
    """One part in a process of its own, with a cache of its own."""
    command = [sys.executable, "-m", "experiments.bench.timed", "--part", part]
    command += ["--programs", name, "--size", options.size, "--folder", folder]
    command += ["--rounds", str(options.rounds)]
    surroundings = {**os.environ, "REVREMAT_CACHE": f"{folder}/cache"}
    surroundings.setdefault("JAX_PLATFORMS", "cpu")
    subprocess.run(command, env=surroundings, check=False)


# ---- The search ----------------------------------------------------------------------


def _search(problem: rr.Problem, options: Options) -> None:
    """Finds a plan, and writes down how long that took both ways."""
    _as_raced()
    target = rr.target("cpu:1")
    budget = _budget(problem, target)
    found: dict[str, Any] = {"budget_bytes": budget}
    for timed in (False, True):
        wall, own = time.perf_counter(), time.process_time()
        fit = rr.fit(problem, budget=budget, target=target, timed=timed)
        kind = "timed" if timed else "estimated"
        found[f"{kind}_search"] = {
            "seconds": round(time.perf_counter() - wall, 2),
            "processor_seconds": round(time.process_time() - own, 2),
            "compiles": fit.num_compiles,
            "plan": [str(unit) for unit in fit.plan.units],
            "step_us": fit.measurement.time.step_us,
        }
    fit.plan.save(options.folder / "plan.json")
    write_whole(options.folder / "search.json", json.dumps(found))


def _budget(problem: rr.Problem, target: rr.Target) -> int:
    """Half of the way, by ratio, to what everything recomputed takes."""
    ends = []
    for loss in (problem.loss, written(problem.loss, Loops("scan", "recompute all"))):
        step, specs = problem.make_step(loss)
        one = rr.Step(step, tuple(specs), problem.donate, problem.name)
        ends.append(rr.measure(one, target=target).memory.total_bytes)
    return int(math.sqrt(ends[0] * min(ends)))


def _as_raced() -> None:
    """What a search runs is run as it is in the race."""
    step_time.start_with_one_thread()
    step_time.keep_freed_memory()


# ---- The race ------------------------------------------------------------------------


def _race(problem: rr.Problem, options: Options) -> None:
    """Runs the plan in turn with whatever fits, on one thread by its own time."""
    plan = rr.Plan.from_json((options.folder / "plan.json").read_text())
    budget = _read(options.folder / "search.json")["budget_bytes"]
    losses = {_PLAN: rr.apply(problem.loss, plan), "baseline": problem.loss}
    if has_loops(problem.loss, problem.specs):
        for form in FORMS:
            for policy in POLICIES:
                loops = Loops(form, policy)
                losses[str(loops)] = written(problem.loss, loops)
    else:
        losses |= _uniform(problem)
    _as_raced()
    jax.config.update("jax_compiler_enable_remat_pass", False)
    policies, sizes = [], []
    for name, loss in losses.items():
        step, specs = problem.make_step(loss)
        one = rr.Step(step, tuple(specs), problem.donate, name)
        try:
            size = rr.measure(one, target="cpu:1").memory.total_bytes
        except (rr.UserError, jax.errors.JaxRuntimeError):
            continue
        if size <= budget:
            policies.append(Policy(name, step, specs, problem.donate))
            sizes.append(size)
    rows = step_time.race(
        policies, options.rounds, options.folder / "race", fill=values, one_thread=True
    )
    raced = [
        {"name": row["policy"], "bytes": size, "measured_us": row["measured_us"]}
        for row, size in zip(rows, sizes, strict=True)
    ]
    write_whole(options.folder / "race.json", json.dumps({"raced": raced}))


def _uniform(problem: rr.Problem) -> dict[str, Any]:
    """Each of JAX's presets around every layer of a program that has no loop."""
    graph = rr.trace(problem)
    found = {}
    for name in PRESETS:
        actions = {u.name: preset(u, name).action for u in graph.units}
        found[f"{name}, each layer"] = rr.apply(problem.loss, graph.plan(actions))
    return found


# ---- What is told --------------------------------------------------------------------


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """The plan against the fastest of the others, and one search against the other."""
    by_name = {one["name"]: one["measured_us"] for one in found["raced"]}
    plan_us = by_name.pop(_PLAN, math.inf)
    best = min(by_name, key=lambda name: by_name[name], default=None)
    timed, estimated = found["timed_search"], found["estimated_search"]
    seconds = "processor_seconds"
    return {
        "fastest_other": best,
        "gain": None if best is None else by_name[best] / plan_us,
        "search_ratio": timed[seconds] / max(estimated[seconds], 1e-9),
    }


def table(name: str, found: dict[str, Any]) -> str:
    """One program."""
    lines = [f"{name}, within {format_bytes(found['budget_bytes'])}"]
    for one in sorted(found["raced"], key=lambda one: one["measured_us"])[:6]:
        lines.append(
            f"{format_us(one['measured_us']):>12} {format_bytes(one['bytes']):>12}  "
            f"{one['name']}"
        )
    timed, estimated = found["timed_search"], found["estimated_search"]
    lines.append(
        f"searched in {timed['processor_seconds']} s of processor time, timed; in "
        f"{estimated['processor_seconds']} s by estimates: {'; '.join(timed['plan'])}"
    )
    return "\n".join(lines)


def markdown(programs: dict[str, Any]) -> str:
    """The table of the documents."""
    lines = [
        "| program | budget | plan | fastest of the others | plan takes | gain | "
        "search, timed | search, estimated |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, found in programs.items():
        told = summary(found)
        plan_us = {one["name"]: one["measured_us"] for one in found["raced"]}[_PLAN]
        searches = (
            f"{found[f'{kind}_search']['processor_seconds']:.0f} s"
            for kind in ("timed", "estimated")
        )
        cells = [
            name,
            format_bytes(found["budget_bytes"]),
            "; ".join(found["timed_search"]["plan"]),
            told["fastest_other"] or "none fits",
            format_us(plan_us),
            "" if told["gain"] is None else f"{told['gain']:.3f}",
            *searches,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict(programs: dict[str, Any]) -> str:
    """How many gain, and whether any is slower than what it is held against."""
    found = {name: summary(one) for name, one in programs.items()}
    gains = {n: s["gain"] for n, s in found.items() if s["gain"] is not None}
    lines = [
        f"{name}: {gain:.3f} over {found[name]['fastest_other']}; the search took "
        f"{found[name]['search_ratio']:.2f} times as long"
        for name, gain in gains.items()
    ]
    ahead = sum(gain >= 1.03 for gain in gains.values())
    behind = sum(gain < 0.98 for gain in gains.values())
    lines.append(
        f"{ahead} of {len(gains)} are 3 % faster or more than anything else that fits; "
        f"{behind} are more than 2 % slower"
    )
    return "\n".join(lines)


if __name__ == "__main__":
    step_time.start_with_large_pages()
    sys.exit(main(tyro.cli(Options, description=__doc__)))
