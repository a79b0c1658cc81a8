"""Plans chosen by running them, beside everything that anybody may do instead.

    python -m experiments.bench.timed [--programs vit_l_384] [--way 0.75]

Of each program, in sizes for one core, within one budget: half of the way, by ratio,
from what its baseline takes to what it takes with everything recomputed, or another
part of it (`--way`). A first process searches, without running anything and with
`timed=True`, both from an empty cache. A second one asks the baselines of
`experiments/bench/versus.py` for the same budget, and runs what they propose, too:
JAX's presets in plain JAX (on the loop, with 4 and 16 layers to an iteration, unrolled
and as a Python loop), splits of the layers between two presets, PyTorch's memory budget
and the others. Nobody unrolls loops that a timed search would not: they take minutes
and gigabytes to compile. Fresh ones run the plan in turn with the fastest of those.
What is the same program as the plan is not run twice. One thread's own time counts, and
of every program the fastest steps, as in `experiments/bench/step_time.py`. Of several
processes it is the median: where memory lies in one of them makes the same program up
to 8 % slower. Writes `experiments/results/timed.json` after each program; those that
are there are not run again.
"""

import dataclasses
import json
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
from experiments.bench.baselines import BASELINES, Baseline, PlainSplits
from experiments.bench.comparison import comparison_of
from experiments.bench.plain_jax import FORMS, Loops, written
from experiments.bench.programs import PROGRAMS, refusal, values
from experiments.bench.programs._entry import Entry, Size
from experiments.bench.searching import Row, Searching
from experiments.bench.step_time_programs import Policy
from experiments.bench.timed_tables import PLAIN, PLAN, markdown, table, verdict
from experiments.files import write_whole

RESULT = Path(__file__).parents[1] / "results" / "timed.json"
ON_CPU = (
    "elementwise_chain",
    "norm_chain",
    "softmax_chain",
    "tiny_matmuls",
    "mixer_l_16",
    "moe",
)
"""Others take longer: a GPT's presets in every form are half an hour of compiles."""
HALF = 0.5
"""How far most budgets are on the way to what everything recomputed takes."""
_NEAR, _MOST_RACED = 1.15, 4
"""Of what baselines proposed the fastest are raced, those in plain JAX and the others:
what took no more than so many times what the fastest of them did, and no more of each
than four."""


@dataclass(frozen=True)
class Options:
    """What is run.

    Attributes:
      programs: Which; by default six, in about half an hour.
      size: Of each.
      way: How far the budget is on its way, 0 to 1.
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
    way: float = HALF
    rounds: int = 24
    processes: int = 3
    again: bool = False
    out: Path = RESULT
    markdown: bool = False
    part: Literal["all", "search", "baselines", "race"] = "all"
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
        step_time.keep_freed_memory()  # before there are threads, with their own heaps
        step_time.start_with_one_thread()
        (name,) = options.programs
        parts = {"search": _search, "baselines": _baselines, "race": _race}
        parts[options.part](_with_values(PROGRAMS[name], options.size), options)
        return 0
    if not 0 <= options.way <= 1:
        print(f"--way {options.way}: write a number from 0 to 1")
        return 2
    if options.processes < 1:
        print(f"--processes {options.processes}: write one or more")
        return 2
    about = {"device": _device(), "jax": jax.__version__, "size": options.size}
    found = _known(options.out, about)
    for name in options.programs or ON_CPU:
        called = name if options.way == HALF else f"{name}, {options.way:g}"
        if called in found and not options.again:
            continue
        with tempfile.TemporaryDirectory() as folder:
            raced = Path(folder) / "race.json"
            _run("search", name, options, folder)
            _run("baselines", name, options, folder)
            races = []
            for _ in range(options.processes):
                raced.unlink(missing_ok=True)
                _run("race", name, options, folder)
                if raced.exists():
                    races.append(_read(raced)["raced"])
            if len(races) < options.processes:
                print(f"{called} is left out", flush=True)
                continue
            searched = _read(Path(folder) / "search.json")
            found[called] = searched | {"raced": median(races)}
        print(table(called, found[called]), flush=True)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        whole = {**about, "programs": found}
        write_whole(options.out, json.dumps(whole, indent=1) + "\n")
    print(verdict(found))
    return 0


def _with_values(entry: Entry, size: Size) -> rr.Problem:
    """A program with numbers as a training step has them, for whatever is run."""
    problem = entry.make(rr.target("cpu:1"), size)
    made = values(problem.make_step()[1], data_std=entry.data_std)
    step_of = lambda loss: (problem.make_step(loss)[0], made)
    return dataclasses.replace(problem, step=step_of)


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


_OF_A_DEVICE = {"family": "cpu family", "model": "model"}


def _device() -> str:
    """The processor: of some clouds' machines the name alone says little."""
    found = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        what, _, value = line.partition(":")
        found.setdefault(what.strip(), value.strip())
    about = [f"{what} {found[of]}" for what, of in _OF_A_DEVICE.items() if of in found]
    return ", ".join([found.get("model name", "cpu"), *about])


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
    command += ["--rounds", str(options.rounds), "--way", str(options.way)]
    surroundings = {**os.environ, "REVREMAT_CACHE": f"{folder}/cache"}
    surroundings.setdefault("JAX_PLATFORMS", "cpu")
    subprocess.run(command, env=surroundings, check=False)


# ---- The search ----------------------------------------------------------------------


def _search(problem: rr.Problem, options: Options) -> None:
    """Finds a plan, and writes down how long that took both ways."""
    target = rr.target("cpu:1")
    budget = _budget(problem, target, options.way)
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


def _budget(problem: rr.Problem, target: rr.Target, way: float) -> int:
    """So far on the way, by ratio, to what everything recomputed takes."""
    ends = []
    for loss in (problem.loss, written(problem.loss, Loops("scan", "recompute all"))):
        step, specs = problem.make_step(loss)
        one = rr.Step(step, tuple(specs), problem.donate, problem.name)
        ends.append(rr.measure(one, target=target).memory.total_bytes)
    return int(ends[0] * (min(ends) / ends[0]) ** way)


# ---- The others ----------------------------------------------------------------------


def _baselines(problem: rr.Problem, options: Options) -> None:
    """Asks every baseline, by what its proposals take here, and keeps the fastest."""
    budget = _read(options.folder / "search.json")["budget_bytes"]
    search = Searching(problem, rr.target("cpu:1"), timed=True)
    search.prepare()
    asked: dict[str, Loops | None] = {}
    bare = comparison_of(search)

    def write(loops: Loops | None, limit: int | None) -> Row | None:
        row = bare.write(loops, limit)
        if row is not None:
            asked[row.name] = loops
        return row

    comparison = dataclasses.replace(bare, write=write)
    kinds: tuple[type[Baseline], ...] = (*BASELINES, PlainSplits)
    if search.has_long_loops:  # unrolled, 64 layers of kinetics compile for minutes
        few = [way for way in bare.ways if FORMS[way.form] is not True]
        comparison = dataclasses.replace(comparison, ways=tuple(few))
        kinds = tuple(kind for kind in kinds if not kind.unroll)
    found: dict[str, tuple[float, dict[str, Any]]] = {}
    for kind in kinds:
        baseline = kind(comparison)
        baseline.ask(budget)
        for row in baseline.rows:
            if row.bytes <= budget and row.name not in found:
                loops = asked.get(row.name)
                told = {"name": row.name, "by": baseline.name, "loops": None}
                told["plan"] = None if row.plan is None else row.plan.to_json()
                if loops is not None:
                    told["loops"] = dataclasses.asdict(loops)
                found[row.name] = row.time_us, told
        print(f"{search.done} compiles: {baseline.name}", file=sys.stderr, flush=True)
    near = []
    for is_plain in (True, False):
        some = [one for one in found.values() if (one[1]["by"] in PLAIN) == is_plain]
        some.sort(key=lambda one: one[0])
        near += [one for us, one in some[:_MOST_RACED] if us <= _NEAR * some[0][0]]
    told = {"compiles": search.done, "proposals": near}
    write_whole(options.folder / "baselines.json", json.dumps(told))


def _loss_of(problem: rr.Problem, proposal: dict[str, Any]) -> Any:
    """What a baseline proposed: a plan of layers, or loops written in plain JAX."""
    if proposal["plan"] is not None:
        return rr.apply(problem.loss, rr.Plan.from_json(proposal["plan"]))
    if proposal["loops"] is not None:
        return written(problem.loss, Loops(**proposal["loops"]))
    return problem.loss


# ---- The race ------------------------------------------------------------------------


def _race(problem: rr.Problem, options: Options) -> None:
    """Runs the plan in turn with the others, on one thread by its own time."""
    plan = rr.Plan.from_json((options.folder / "plan.json").read_text())
    proposals = _read(options.folder / "baselines.json")["proposals"]
    budget = _read(options.folder / "search.json")["budget_bytes"]
    jax.config.update("jax_compiler_enable_remat_pass", False)
    losses = [(PLAN, "", rr.apply(problem.loss, plan))]
    losses += [(one["name"], one["by"], _loss_of(problem, one)) for one in proposals]
    programs: dict[str, tuple[Policy, dict[str, Any]]] = {}
    for name, by, loss in losses:
        step, specs = problem.make_step(loss)
        lowered = jax.jit(step, donate_argnums=problem.donate).lower(*specs)
        policy = Policy(name, step, specs, problem.donate)
        about = {"name": name, "by": [by], "also": []}
        _, first = programs.setdefault(lowered.as_text(), (policy, about))
        if first is not about:
            first["also"].append(name)
            first["by"].append(by)
    policies = [policy for policy, _ in programs.values()]
    given = lambda specs: specs  # they are numbers already
    rows = step_time.race(
        policies, options.rounds, options.folder / "race", fill=given, one_thread=True
    )
    raced = []
    for row, (policy, about) in zip(rows, programs.values(), strict=True):
        one = rr.Step(policy.step, tuple(policy.specs), policy.donate, policy.name)
        size = rr.measure(one, target="cpu:1").memory.total_bytes
        assert size <= budget, f"{policy.name} takes {size} bytes"
        raced.append({**about, "bytes": size, "measured_us": row["measured_us"]})
    write_whole(options.folder / "race.json", json.dumps({"raced": raced}))


if __name__ == "__main__":
    step_time.start_with_large_pages()
    sys.exit(main(tyro.cli(Options, description=__doc__)))
