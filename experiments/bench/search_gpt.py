"""Searched plans of a 24-layer GPT against every preset and every split of two.

    python -m experiments.bench.search_gpt

At 75, 50 and 30 % of what the baseline takes, on `h100:8` (tensor parallel 4,
data parallel 2, bfloat16, AdamW): does the plan fit, how long did the search take, and
is any uniform preset, or any split of the layers between two presets, faster and small
enough? Of each pair's splits the one is compiled that the measured costs call best.
Then: bytes predicted before the last compile against compiled ones, at 24 and 96
layers. Writes `experiments/results/search-gpt.json`.
"""

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

import revremat as rr
from experiments.bench.baselines import Splits
from experiments.bench.comparison import comparison_of
from experiments.bench.searching import Searching
from experiments.configs import gpt_24
from experiments.files import write_whole
from revremat import format_bytes, format_us

RESULT = Path(__file__).parents[1] / "results" / "search-gpt.json"
_EVERY_PAIR = 12


@dataclass(frozen=True)
class Options:
    """Which program, where, and how deep."""

    target: str = "h100:8"
    batch_size: int = 16
    num_layers: int = 24
    deep: int = 96
    budgets: tuple[float, ...] = (0.75, 0.50, 0.30)
    out: Path = RESULT


def main(options: Options) -> int:
    """Runs all of it and prints a table; 1 if anything did not hold."""
    target = rr.target(options.target)
    problem = gpt_24.problem(
        target, batch_size=options.batch_size, num_layers=options.num_layers
    )
    shared = Searching(problem, target)
    rows = [shared.baseline(), *shared.presets()]
    plain = rows[0].bytes
    print(f"baseline: {format_bytes(plain)}, {format_us(rows[0].time_us)}")
    shared.prepare()
    baseline = Splits(comparison_of(shared), most=_EVERY_PAIR)
    found = []
    for share in options.budgets:
        budget = int(share * plain)
        start = time.perf_counter()
        one = rr.fit(problem, budget=budget, target=target)
        seconds = time.perf_counter() - start
        baseline.ask(budget)
        best = baseline.best(budget)
        found.append(
            {
                "share": share,
                "budget_bytes": budget,
                "fits": one.plan.fits,
                "compiled_bytes": one.plan.compiled_bytes,
                "predicted_bytes": one.plan.predicted_bytes,
                "step_us": one.measurement.time.step_us,
                "seconds": seconds,
                "compiles": one.num_compiles,
                "plan": [str(unit) for unit in one.plan.units],
                "best_baseline": best and {"name": best.name, "step_us": best.time_us},
                "baselines_compiled": len(baseline.rows),
            }
        )
        print(json.dumps(found[-1], indent=1))
    predictions = [
        *_predictions(options.num_layers, one),
        *_predictions(options.deep, _deep(options, target)),
    ]
    worst = max(abs(p["error"]) for p in predictions)
    print(f"predicted before the last compile: worst error {100 * worst:.2f} %")
    result = {
        "program": "gpt_24",
        **{k: str(v) for k, v in dataclasses.asdict(options).items() if k != "out"},
        "versions": one.measurement.versions,
        "plain_bytes": plain,
        "presets": [(r.name, r.bytes, r.time_us) for r in rows],
        "budgets": found,
        "predictions": predictions,
    }
    write_whole(options.out, json.dumps(result, indent=1) + "\n")
    held = worst <= 0.02 and all(
        f["fits"]
        and (
            f["best_baseline"] is None
            or f["step_us"] <= f["best_baseline"]["step_us"] * (1 + 1e-9)
        )
        for f in found
    )
    print("held" if held else "NOT held")
    return 0 if held else 1


def _deep(options: Options, target: rr.Target) -> rr.Fit:
    problem = gpt_24.problem(
        target, batch_size=options.batch_size, num_layers=options.deep
    )
    plain = rr.measure(problem, target=target).memory.total_bytes
    return rr.fit(problem, budget=int(0.5 * plain), target=target)


def _predictions(num_layers: int, one: rr.Fit) -> list[dict[str, Any]]:
    return [
        {
            "num_layers": num_layers,
            "name": row.name,
            "predicted_bytes": round(row.predicted_bytes),
            "compiled_bytes": row.bytes,
            "error": row.predicted_bytes / row.bytes - 1,
        }
        for row in one.rows
        if row.predicted_bytes is not None
    ]


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Options, description=__doc__)))
