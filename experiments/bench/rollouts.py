"""Long rollouts against binomial checkpointing's optimum in closed form.

    python -m experiments.bench.rollouts

Rollouts of 1,000 and 10,000 equal steps get budgets with room for a few states. A
search answers each with a plan. Beside it stand the states that fit (what a step takes
without any, by the compiler, and one state's size), how many steps revolve runs again
with as many (Griewank and Walther, 2000), and how long that takes. Writes
`experiments/results/rollouts.json`, in which others stay; 1 if a peak is more than 2 %
above the least for its slots, or if more than 1.05 times as many steps run again.
A plan that runs more of them may still be the faster one, of several layers to an
iteration.
"""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro

import revremat as rr
from experiments.bench.columns import columns
from experiments.records import write_whole

RESULT = Path(__file__).parents[1] / "results" / "rollouts.json"
MOST_BYTES, MOST_AGAIN = 1.02, 1.05
ROWS, WIDTH = 65_536, 64


@dataclass(frozen=True)
class Options:
    """How long the rollouts are, and how many states their budgets have room for."""

    lengths: tuple[int, ...] = (1000, 10_000)
    states: tuple[int, ...] = (10, 30, 60, 120, 300)
    target: str = "h100:1"
    out: Path = RESULT


def main(options: Options) -> int:
    """Runs all of it and prints a table."""
    rows = {}
    if options.out.exists():
        rows = json.loads(options.out.read_text())["rollouts"]
    for length in options.lengths:
        for states in options.states:
            row = compared(length, states, options.target)
            print(told(row), flush=True)
            rows[f"{length} steps, {states} states"] = row
            about = {"target": options.target, "rollouts": rows}
            write_whole(options.out, json.dumps(about, indent=1) + "\n")
    held = all(row["held"] for row in rows.values())
    print("held" if held else "NOT held")
    return 0 if held else 1


def rollout(length: int) -> rr.Problem:
    """So many steps of one state under a map whose weights are trained."""

    def loss(w: Any, x: Any) -> Any:
        step = lambda x, _: (x + 0.1 * jnp.tanh(jnp.sin(x @ w)), None)
        return jnp.square(jax.lax.scan(step, x, None, length=length)[0]).mean()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return rr.Problem(loss, (array(WIDTH, WIDTH), array(ROWS, WIDTH)))


def compared(length: int, states: int, target: str) -> dict[str, Any]:
    """One rollout, and a budget with room for so many states."""
    problem, one = rollout(length), 4 * ROWS * WIDTH
    fixed = in_slots(problem, 1, target).memory.total_bytes - one
    optimum_us = in_slots(problem, states, target).time.step_us
    budget = fixed + states * one
    fit = rr.fit(problem, budget=budget, target=target)
    size = fit.measurement.memory.total_bytes
    again = steps_again(fit.plan, length)
    least, step_us = least_again(length, states), fit.measurement.time.step_us
    return {
        "length": length,
        "states": states,
        "budget_bytes": budget,
        "bytes": size,
        "step_us": step_us,
        "optimum_us": optimum_us,
        "plan": "; ".join(map(str, fit.plan.units)) or "nothing recomputed",
        "num_compiles": fit.num_compiles,
        "again": again,
        "least_again": least,
        "held": fit.plan.fits
        and size <= MOST_BYTES * budget
        and again <= MOST_AGAIN * least,
    }


def least_again(length: int, slots: int) -> int:
    """Steps that revolve runs again (Griewank and Walther, 2000), in closed form.

    >>> [least_again(1000, slots) for slots in (10, 120, 999)]
    [2637, 879, 0]
    """
    times = 0
    while math.comb(slots + times, slots) < length:
        times += 1
    return times * length - math.comb(slots + times, times - 1) - (length - 1)


def in_slots(problem: rr.Problem, slots: int, target: str) -> rr.Measurement:
    """What a step takes by the binomial schedule for so many states."""
    plan = rr.trace(problem).plan({"scan_0": rr.RECOMPUTE(slots=slots)})
    step = rr.Problem(rr.apply(problem.loss, plan), problem.specs)
    return rr.measure(step, target=target)


def steps_again(plan: rr.Plan, length: int) -> int:
    """How many steps a plan runs again, beside those that it differentiates."""
    if not plan.units:
        return 0
    (unit,) = plan.units
    if number := unit.actions[0].slots:
        return least_again(length, number)
    return sum(action.segment_length > 1 for action in unit.actions)


def read(file: Path = RESULT) -> dict[str, Any]:
    """What was found so far."""
    return json.loads(file.read_text())


def table(known: dict[str, Any]) -> str:
    """Every rollout and budget, beside revolve's optimum for as many states."""
    heads = (
        "steps",
        "states",
        "peak",
        "of least",
        "again",
        "of revolve's",
        "time",
    )
    lines: list[tuple[str, ...]] = [heads]
    for row in known["rollouts"].values():
        lines.append(
            (
                str(row["length"]),
                str(row["states"]),
                rr.format_bytes(row["bytes"]),
                f"{row['bytes'] / row['budget_bytes']:.3f}",
                str(row["again"]),
                f"{row['again'] / row['least_again']:.3f}",
                rr.format_us(row["step_us"]),
            )
        )
    return columns(lines)


def told(row: dict[str, Any]) -> str:
    """One line on a rollout."""
    return (
        f"{row['length']} steps, room for {row['states']} states: {row['plan']}, "
        f"{rr.format_bytes(row['bytes'])} of {rr.format_bytes(row['budget_bytes'])}, "
        f"{row['again']} steps again against {row['least_again']}, "
        f"{rr.format_us(row['step_us'])} against "
        f"{rr.format_us(row['optimum_us'])}, {row['num_compiles']} compiles"
        f"{'' if row['held'] else ' (NOT held)'}"
    )


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
