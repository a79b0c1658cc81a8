"""What the search gains when it is run, beside what it was estimated to gain.

    python -m experiments.bench.measured_gain [--no-timed]

Programs in sizes for one core (on a GPU: all that fit it), each at three budgets
between what its baseline takes and the least there is: the searched plan against
the fastest uniform preset that fits. The machine is calibrated first and the search
uses those figures; on a CPU it also runs every program that it has compiled, presets
too, and the times of those kernels take their place (`timed_search.py`), unless
`--no-timed` is written. Plans and presets of a program then run in turn, round after
round, on one thread and by its own time, and the fastest step of each counts, as in
`experiments/bench/step_time.py`. Writes `experiments/results/measured-gain-timed.json`
(`measured-gain.json` with `--no-timed`) after each program; by the same card (`--card`)
others are added to those there.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import tyro

import revremat as rr
from experiments.bench import step_time
from experiments.bench.baselines import Uniform
from experiments.bench.comparison import budgets_of, comparison_of
from experiments.bench.programs import PROGRAMS, refusal, values
from experiments.bench.programs._entry import Size
from experiments.bench.searching import Row, Searching
from experiments.bench.step_time_programs import Policy
from experiments.bench.timed_search import Retiming, TimedOracle
from experiments.bench.versus_gains import geometric_mean
from experiments.files import write_whole
from revremat import format_bytes
from revremat.xla import with_changes

RESULTS = Path(__file__).parents[1] / "results"
ON_CPU = (
    "elementwise_chain",
    "tiny_matmuls",
    "kinetics",
    "unrolled_optimizer",
    "moe",
    "softmax_chain",
    "norm_chain",
    "recurrence",
    "physics_rollout",
    "gpt2_xl",
    "vit_l_384",
    "mixer_l_16",
)
PROMISED = 0.7
_TOO_LITTLE = 1.01


@dataclass(frozen=True)
class Options:
    """What is run, and for how long.

    Attributes:
      programs: Which; default: twelve on a CPU, all on a GPU.
      size: Of each; default: `cpu` on a CPU, `real` on a GPU.
      budgets: Of each program.
      rounds: Of each plan.
      one_thread: On a CPU (Linux): one core, whichever is free.
      card: A measured card's file, instead of calibrating now.
      timed: On a CPU: every program of a search is run as well, and the times of its
        kernels count; else they follow from the calibration.
      keep: Where compiled modules are kept.
      out: The file of the results, if it is to be another.
    """

    programs: tuple[str, ...] = ()
    size: Size | None = None
    budgets: int = 3
    rounds: int = 30
    one_thread: bool = True
    card: Path | None = None
    timed: bool = True
    keep: Path = step_time.KEPT.parent / "measured-gain"
    out: Path | None = None


def main(options: Options) -> int:
    """Runs all of it; 1 if any program gains less than is promised."""
    unknown = refusal(options.programs, PROGRAMS)
    if unknown:
        print(unknown)
        return 2
    if options.rounds < 2:
        print(f"--rounds {options.rounds}: two or more, one half is held to the other")
        return 2
    try:
        changes = step_time.read_card(options.card)
    except rr.UserError as error:
        print(error)
        return 2
    cpu = os.environ.get("JAX_PLATFORMS", "cpu") == "cpu"
    if options.one_thread and cpu:
        step_time._start_with_one_thread()  # pyright: ignore[reportPrivateUsage]
    step_time._keep_freed_memory()  # pyright: ignore[reportPrivateUsage]
    jax.config.update("jax_compiler_enable_remat_pass", False)
    cpu = jax.devices()[0].platform == "cpu"
    target = rr.target("local")
    changes = changes or step_time.calibrate(target.card)
    sheet = dataclasses.replace(target.card, curves={}, measured=False)
    target = dataclasses.replace(target, card=with_changes(sheet, changes))
    timed = options.timed and cpu
    label = "measured-gain-timed" if timed else "measured-gain"
    out = options.out or RESULTS / f"{label}.json"
    names = options.programs or (ON_CPU if cpu else tuple(PROGRAMS))
    size = options.size or ("cpu" if cpu else "real")
    result = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "size": size,
        "timed": timed,
        "card": changes,
    }
    found = _programs_of(out, result)
    for name in names:
        problem = PROGRAMS[name].make(target, size)
        oracle = TimedOracle(target) if timed else None
        search = Searching(problem, target, oracle=oracle)
        search.prepare()
        settle = _settled if oracle is None else Retiming(search)
        try:
            rows = gains(
                search,
                options.budgets,
                lambda policies, name=name: step_time.race(
                    policies,
                    options.rounds,
                    options.keep / name,
                    fill=values,
                    one_thread=cpu and options.one_thread,
                ),
                settle,
            )
        except step_time.NotFiniteError as error:
            print(f"{name} is left out: {error}", flush=True)
            continue
        found[name] = {"budgets": rows, **summary(rows)}
        found[name]["load"] = round(os.getloadavg()[0], 2)
        print(table(name, found[name]), flush=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        whole = json.dumps(result | {"programs": found}, indent=1)
        write_whole(out, whole + "\n")
    print(verdict({name: found[name] for name in names if name in found}))
    return 0 if all(name in found and found[name]["held"] for name in names) else 1


def verdict(found: dict[str, Any]) -> str:
    """Which programs gain what was estimated, of those where that is anything."""
    gaining = [name for name, one in found.items() if one["share"] is not None]
    held = [name for name in gaining if found[name]["held"]]
    of = f"{len(gaining)} programs with a gain to hold"
    slower = [n for n in found if n not in gaining and not found[n]["held"]]
    more = f"; slower than the preset: {', '.join(slower)}" if slower else ""
    return f"held: {len(held)} of {of} ({', '.join(held) or 'none'}){more}"


def _programs_of(file: Path, result: dict[str, Any]) -> dict[str, Any]:
    """What a file holds already of the same machine, measured by the same card."""
    if not file.exists():
        return {}
    before = json.loads(file.read_text())
    programs = before.pop("programs", {})
    return programs if before == json.loads(json.dumps(result)) else {}


def gains(
    search: Searching,
    num_budgets: int,
    race: Callable[[list[Policy]], list[dict[str, Any]]],
    settle: Callable[[list[Row]], bool],
) -> list[dict[str, Any]]:
    """At every budget where both have a plan: estimated and measured gain.

    Args:
      search: Prepared, of a program that can be run here, by a calibrated target.
      num_budgets: Evenly spaced by ratio between plain and the smallest, which are
        themselves left out.
      race: Measures policies.
      settle: Looks at the programs chosen once more; whether any time has changed.
    """
    budgets = budgets_of(search, num_budgets + 2)[1:-1]
    for budget in budgets:
        search.fit(budget)
    pairs = _pairs(search, budgets)
    while settle([row for _, *both in pairs for row in both]):
        pairs = _pairs(search, budgets)
    key_of = search.state.key_of_row
    rows = {key_of(row): row for _, *both in pairs for row in both}
    measured = race([_policy(search.problem, row) for row in rows.values()])
    times = {k: one["measured_us"] for k, one in zip(rows, measured, strict=True)}
    return [
        {
            "budget_bytes": budget,
            "plan": answer.name,
            "preset": best.name,
            "estimated_us": [answer.time_us, best.time_us],
            "measured_us": [times[key_of(answer)], times[key_of(best)]],
            "estimated_gain": best.time_us / answer.time_us,
            "measured_gain": times[key_of(best)] / times[key_of(answer)],
        }
        for budget, answer, best in pairs
    ]


def _settled(rows: list[Row]) -> bool:
    """Estimates of the step time do not change."""
    return False


def _pairs(search: Searching, budgets: list[int]) -> list[tuple[int, Row, Row]]:
    """At each budget the fastest program of all and the fastest uniform preset."""
    presets = Uniform(comparison_of(search))
    for budget in budgets:
        presets.ask(budget)
    found = [(b, search.best(b), presets.best(b)) for b in budgets]
    return [
        (budget, answer, best)
        for budget, answer, best in found
        if best is not None and answer.bytes <= budget
    ]


def _policy(problem: rr.Problem, row: Row) -> Policy:
    loss = problem.loss if row.plan is None else rr.apply(problem.loss, row.plan)
    step, specs = problem.make_step(loss)
    return Policy(row.name, step, specs, problem.donate)


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means, and how much of what was estimated was there.

    Where less than a percent was estimated there is nothing to hold it against, but it
    may not be a percent slower than the preset.
    """
    estimated, measured = (
        geometric_mean(row[f"{kind}_gain"] for row in rows)
        for kind in ("estimated", "measured")
    )
    if estimated is None or measured is None:
        share, held = None, True
    elif estimated < _TOO_LITTLE:
        share, held = None, measured > 1 / _TOO_LITTLE
    else:
        share = (measured - 1) / (estimated - 1)
        held = share >= PROMISED
    return {
        "estimated_gain": estimated,
        "measured_gain": measured,
        "share": share,
        "held": held,
    }


def table(name: str, found: dict[str, Any]) -> str:
    """One program's budgets."""
    lines = [f"{name:>14} {'estimated':>10} {'measured':>10}  plan against preset"]
    for row in found["budgets"]:
        lines.append(
            f"{format_bytes(row['budget_bytes']):>14} {row['estimated_gain']:10.3f} "
            f"{row['measured_gain']:10.3f}  {row['plan']} against {row['preset']}"
        )
    if found["share"] is not None:
        lines.append(f"{100 * found['share']:.0f} % of what was estimated")
    else:
        lines.append("next to nothing was estimated")
    return "\n".join(lines)


if __name__ == "__main__":
    step_time.start_with_large_pages()
    sys.exit(main(tyro.cli(Options, description=__doc__)))
