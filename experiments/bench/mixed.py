"""A plan of several actions against plans that know one beside SAVE.

    python -m experiments.bench.mixed
    python -m experiments.bench.mixed --program gpt_4096

At each budget: the searched plan, and the best plans of the same candidates whose
layers may only be kept or recomputed, kept or offloaded, kept or inverted; every one
chosen by the same integer program and compiled whole until it fits. Writes
`experiments/results/mixed-PROGRAM.json`, in which other budgets stay; 1 if no budget
has an assignment of three ways that is faster than every one of those.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

import revremat as rr
from experiments.bench.searching import Row, Searching
from experiments.configs import gpt
from experiments.files import write_whole
from revremat import format_bytes, format_us, policies

RESULTS = Path(__file__).parents[1] / "results"
ALONE = ("recompute", "offload", "invert")
_MOST_TRIES = 12


@dataclass(frozen=True)
class Options:
    """Which program, and which budgets, as shares of what the baseline takes."""

    program: Literal["gpt_8192", "gpt_4096"] = "gpt_8192"
    budgets: tuple[float, ...] | None = None
    out: Path = RESULTS


@dataclass(frozen=True)
class Program:
    """A program, the machine it is for, and budgets where something must give."""

    target: str
    budgets: tuple[float, ...]
    overrides: dict[str, Any]


PROGRAMS = {
    "gpt_4096": Program(
        "h100:1",
        (0.65, 0.5, 0.42),
        {
            "num_layers": 12,
            "batch_size": 4,
            "width": 4096,
            "mlp_width": 16_384,
            "num_heads": 32,
            "seq_len": 2048,
            "vocab_size": 32_768,
            "model.dtype": "bfloat16",
        },
    ),
    "gpt_8192": Program(
        "h100:8",
        (0.25, 0.21, 0.18),
        {
            "num_layers": 24,
            "batch_size": 32,
            "width": 8192,
            "mlp_width": 32_768,
            "num_heads": 64,
            "seq_len": 2048,
            "vocab_size": 32_768,
            "model.dtype": "bfloat16",
            "sharding.data": 1,
            "sharding.fsdp": None,
        },
    ),
}


def main(options: Options) -> int:
    """Runs all of it and prints a table."""
    program = PROGRAMS[options.program]
    target = rr.target(program.target)
    problem = gpt.problem(target, **program.overrides)
    search = Searching(problem, target)
    plain = search.baseline()
    print(f"baseline: {format_bytes(plain.bytes)}, {format_us(plain.time_us)}")
    results = []
    for share in options.budgets or program.budgets:
        budget = int(share * plain.bytes)
        one = search.fit(budget)
        used = ways(one.plan)
        rows = {way: alone(search, way, budget) for way in ALONE}
        times = {way: row.time_us if row else None for way, row in rows.items()}
        baselines = [t for t in times.values() if t is not None]
        mine = one.measurement.time.step_us
        results.append(
            {
                "budget_bytes": budget,
                "fits": one.plan.fits,
                "bytes": one.plan.compiled_bytes,
                "host_bytes": one.measurement.memory.host_bytes,
                "step_us": mine,
                "ways": sorted(used),
                "plan": [str(unit) for unit in one.plan.units],
                "alone_us": times,
                "alone": {way: row.name for way, row in rows.items() if row},
                "gain": min(baselines) / mine - 1 if baselines else None,
            }
        )
        told = ", ".join(
            f"{way} alone {format_us(t) if t else 'does not fit'}"
            for way, t in times.items()
        )
        print(f"{format_bytes(budget)}: {format_us(mine)} ({', '.join(used)}); {told}")
        print(f"  {'; '.join(results[-1]['plan'])}", flush=True)
    record: dict[str, Any] = {
        "program": options.program,
        "target": program.target,
        "versions": plain.measurement.versions,
        "plain_bytes": plain.bytes,
        "plain_us": plain.time_us,
        "results": results,
    }
    path = options.out / f"mixed-{options.program}.json"
    rows = [*results, *of_other_budgets(path, record)]
    rows.sort(key=lambda row: -row["budget_bytes"])
    write_whole(path, json.dumps(record | {"results": rows}, indent=1) + "\n")
    held = any(len(r["ways"]) >= 3 and (r["gain"] or 0) > 0 for r in results)
    print("held" if held else "NOT held")
    return 0 if held else 1


def of_other_budgets(path: Path, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Results in a file that a run at a few budgets leaves as they are.

    Args:
      path: The file; it need not be there.
      record: What such a run found.
    """
    if not path.exists():
        return []
    before = json.loads(path.read_text())
    if any(before[name] != record[name] for name in ("target", "versions")):
        return []
    asked = {row["budget_bytes"] for row in record["results"]}
    return [row for row in before["results"] if row["budget_bytes"] not in asked]


def ways(plan: rr.Plan) -> list[str]:
    """The actions that a plan uses."""
    found = set()
    for actions in plan.actions.values():
        for action in actions:
            found |= _ways(action)
    return sorted(found)


def _ways(action: rr.Action) -> set[str]:
    found = {action.kind}
    if action.save:
        found.add("save")
    if action.offload:
        found.add("offload")
    return found


def _knows_only(action: rr.Action, way: str) -> bool:
    """What is offloaded alone: some values, and the others are made from those."""
    if way == "offload":
        return action.kind == "save" or bool(action.offload and not action.save)
    return _ways(action) <= {"save", way}


def _choose(search: Searching, way: str, limit: float) -> policies.Assignment | None:
    """An assignment of one action beside SAVE, all of whose costs are exact."""
    while True:
        all_options = []
        for unit_options in search.options:
            choices = search.choices[unit_options.unit]
            costs = [
                p
                for p in unit_options.costs
                if _knows_only(choices[p.name].action, way)
            ]
            all_options.append(dataclasses.replace(unit_options, costs=tuple(costs)))
        if not all(unit_options.costs for unit_options in all_options):
            return None
        assignment = search.assign(all_options, limit)
        if assignment is None or not search.refine(assignment.support):
            return assignment


def alone(search: Searching, way: str, budget: int) -> Row | None:
    """The fastest plan that fits and knows only one action beside SAVE."""
    limit = float(budget)
    for _ in range(_MOST_TRIES):
        assignment = _choose(search, way, limit)
        if assignment is None:
            break
        row = search.try_assignment(assignment)
        if row is None or row.bytes <= budget:
            break
        limit -= row.bytes - budget + 1e-3 * budget
    fitting = [
        row
        for row in search.rows
        if row.bytes <= budget
        and row.plan is not None
        and all(_knows_only(a, way) for few in row.plan.actions.values() for a in few)
    ]
    return min(fitting, key=lambda row: row.time_us, default=None)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
