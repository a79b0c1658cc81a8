"""The search against checkpoints by hand, on programs without equal layers.

    python -m experiments.bench.without_layers
    python -m experiments.bench.without_layers --programs "U-Net"

Of every program four checkpointings that a person would write: around each block,
around a larger region, around both, and around each block with products kept. Each
takes so many bytes, and the search gets as many as its budget. Then it gets a budget
that nothing meets, for the smallest there is. Estimates of the target's compiler.
A search may take 30 compiles. Those of one program share what is known of it, and still
count all they ask. Writes `experiments/results/without-layers.json`, in which other
programs stay; 1 if the search is worse anywhere than the best by hand.
"""

import functools
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import tyro

import revremat as rr
from experiments.bench.columns import columns
from experiments.bench.programs.without_layers import PROGRAMS, Program, plain
from experiments.records import write_whole
from revremat import format_bytes, format_us

RESULTS = Path(__file__).parents[1] / "results"
MOST_COMPILES = 30
_PRODUCTS = functools.partial(
    jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable
)
BY_HAND = {
    "each block": (jax.checkpoint, plain),
    "region": (plain, jax.checkpoint),
    "both": (jax.checkpoint, jax.checkpoint),
    "each block, products kept": (_PRODUCTS, plain),
}
_EQUAL = 1.001
"""A time or size that is no more than that times another is no worse."""


@dataclass(frozen=True)
class Options:
    """Which programs, and where they would run."""

    programs: tuple[str, ...] = tuple(program.name for program in PROGRAMS)
    target: str = "h100:1"
    out: Path = RESULTS


def main(options: Options) -> int:
    """Runs all of it and prints a table."""
    path = options.out / "without-layers.json"
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    known.setdefault("programs", {})
    for program in PROGRAMS:
        if program.name in options.programs:
            known["programs"][program.name] = compared(program, options.target)
            known["target"] = options.target
            write_whole(path, json.dumps(known, indent=1) + "\n")
    rows = known["programs"].values()
    print("held" if all(row["held"] for row in rows) else "NOT held")
    return 0 if all(row["held"] for row in rows) else 1


def compared(program: Program, target: str) -> dict[str, Any]:
    """One program by hand and by the search."""
    measured = {
        name: rr.measure(program.problem(*around), target=target)
        for name, around in {"baseline": (plain, plain), **BY_HAND}.items()
    }
    by_hand = {
        name: {"bytes": m.memory.total_bytes, "step_us": m.time.step_us}
        for name, m in measured.items()
    }
    print(program.name)
    for name, row in by_hand.items():
        print(f"  {name}: {format_bytes(row['bytes'])}, {format_us(row['step_us'])}")
    written = by_hand.pop("baseline")
    few = {row["bytes"] for row in by_hand.values() if row["bytes"] < written["bytes"]}
    searched, oracle = [], remembering(target)
    smallest = measured["baseline"].memory.argument_bytes + 1
    for budget in [*sorted(few, reverse=True), smallest]:
        fit = rr.fit(
            program.problem(plain, plain),
            budget=budget,
            target=target,
            most_compiles=MOST_COMPILES,
            oracle=oracle,
        )
        best = [r["step_us"] for r in by_hand.values() if r["bytes"] <= budget]
        least = min(row["bytes"] for row in by_hand.values())
        size, step_us = fit.measurement.memory.total_bytes, fit.measurement.time.step_us
        no_worse = size <= _EQUAL * least
        if budget > smallest:
            no_worse = fit.plan.fits and step_us <= _EQUAL * min(best)
        searched.append(
            {
                "budget_bytes": budget,
                "bytes": size,
                "step_us": step_us,
                "best_by_hand_us": min(best, default=None),
                "num_compiles": fit.num_compiles,
                "held": bool(no_worse) and fit.num_compiles <= MOST_COMPILES,
                "plan": [str(unit) for unit in fit.plan.units],
            }
        )
        of = format_bytes(budget) if budget > smallest else "smallest"
        against = format_us(min(best)) if best else format_bytes(least)
        print(
            f"  search, {of}: {format_bytes(size)}, {format_us(step_us)} against "
            f"{against}, {fit.num_compiles} compiles"
            f"{'' if searched[-1]['held'] else ' (worse)'}",
            flush=True,
        )
    return {
        "baseline": written,
        "by_hand": by_hand,
        "searched": searched,
        "held": all(one["held"] for one in searched),
    }


def read(folder: Path = RESULTS) -> dict[str, Any]:
    """What was found so far."""
    return json.loads((folder / "without-layers.json").read_text())


def table(known: dict[str, Any]) -> str:
    """Every program at every budget; then the smallest sizes.

    Budgets are what a checkpointing by hand takes. Beside the search stands the fastest
    of those by hand that fit, and at last the smallest of them.
    """
    heads = ("program", "budget", "searched", "by hand", "time", "compiles")
    lines: list[tuple[str, ...]] = [heads]
    for name, row in known["programs"].items():
        by_hand = [(one["bytes"], one["step_us"]) for one in row["by_hand"].values()]
        for one in row["searched"]:
            fitting = [hand for hand in by_hand if hand[0] <= one["budget_bytes"]]
            best = min(fitting, key=lambda hand: hand[1]) if fitting else min(by_hand)
            of = 1 if fitting else 0
            ratio = (one["bytes"], one["step_us"])[of] / best[of]
            fits = one["bytes"] <= one["budget_bytes"]
            told = f"{ratio:.3f}" if fits else "does not fit"
            lines.append(
                (
                    name,
                    format_bytes(one["budget_bytes"]) if fitting else "smallest",
                    f"{format_bytes(one['bytes'])}, {format_us(one['step_us'])}",
                    f"{format_bytes(best[0])}, {format_us(best[1])}",
                    told if fitting else f"bytes {ratio:.3f}",
                    str(one["num_compiles"]),
                )
            )
    return columns(lines)


def remembering(target: str) -> Callable[[rr.Step], rr.Measurement]:
    """The target's compiler, which compiles each program once."""
    known: dict[str, rr.Measurement] = {}

    def measure(step: rr.Step) -> rr.Measurement:
        if step.key not in known:
            (known[step.key],) = rr.measure_each([step], target=target)
        return known[step.key]

    return measure


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
