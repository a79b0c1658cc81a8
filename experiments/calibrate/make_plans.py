"""Makes the plans that a card is given, without a card.

    python -m experiments.calibrate.make_plans            # all that are missing
    python -m experiments.calibrate.make_plans --again gpt2_xl_24

Each program is compiled ahead of time for one H100 as its baseline, with its loops
unrolled and under the uniform presets; some are searched. In the tiny scale, for tests,
it is compiled for a CPU. Run it with the JAX that the card's machine has, since bytes
differ a little from version to version; the file says which one it was. Every program
is a file of its own, written at once.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

import revremat as rr
from experiments.calibrate import programs
from experiments.calibrate.plan_files import PLANS, Json
from experiments.calibrate.programs import Scale
from experiments.files import write_whole
from revremat.policies import PRESETS, preset

TARGETS: dict[Scale, str] = {"quick": "cpu:1", "card": "h100:1"}

BUDGETS = {
    "gpt2_xl_24": "24GiB",
    "tiny_matmuls": "36GiB",
    "t5_large": "24GiB",
}
"""Of the programs that are searched."""

LEFT_OUT = ("revbifpn_s0", "revbifpn_s2")
"""For the card: they are compiled for many minutes and then only on the device, where
their bytes stand without a prediction. Named on the command line they are made."""

IN_A_RACE = ("gpt2_xl_24", "tiny_matmuls", "t5_large", "vit_l_384", "efficientnet_b7")
"""Those that have plans. Of all others the baseline's bytes alone are predicted."""


def main(arguments: list[str] | None = None) -> int:
    """Makes the files; 1 where a program failed."""
    options = _options(arguments)
    failed = False
    for name in options.programs or programs.NAMES:
        path = options.out / f"{name}.json"
        known = _known(path)
        for scale in options.scales:
            of_this_jax = known.get(scale, {}).get("jax") == jax.__version__
            if of_this_jax and not options.again:
                continue
            if scale == "card" and name in LEFT_OUT and name not in options.programs:
                continue
            began = time.monotonic()
            try:
                known[scale] = make(name, scale, options.compiles)
            except Exception as error:
                print(f"{name}, {scale}: {type(error).__name__}: {error}"[:400])
                failed = True
                continue
            text = json.dumps({"program": name, "scales": known}, indent=1)
            write_whole(path, text + "\n")
            print(f"{name}, {scale}: {time.monotonic() - began:.0f} s", flush=True)
    return int(failed)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=about)
    parser.add_argument("programs", nargs="*", choices=[[], *programs.NAMES])
    parser.add_argument("--scales", nargs="*", choices=TARGETS, default=[*TARGETS])
    parser.add_argument("--again", action="store_true", help="those there are, too")
    parser.add_argument("--compiles", type=int, default=40, help="of a search")
    parser.add_argument("--out", type=Path, default=PLANS)
    return parser.parse_args(arguments)


def _known(path: Path) -> dict[Scale, Json]:
    """What a file holds by now."""
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))["scales"]


def make(name: str, scale: Scale, most_compiles: int) -> Json:
    """All variants of one program, compiled ahead of time.

    Args:
      name: Of the program.
      scale: Its size.
      most_compiles: Of a search.
    """
    target = rr.target(TARGETS[scale])
    problem = programs.make(name, target, scale)
    graph = rr.trace(problem) if name in IN_A_RACE else None
    found: list[Json] = []
    for label, plan in _plans(graph, scale):
        try:
            loss = problem.loss if plan is None else rr.apply(problem.loss, plan)
        except rr.UserError as error:
            print(f"{name}, {scale}, {label}: left out: {error}")
            continue
        step, specs = problem.make_step(loss)
        m = rr.measure(step, *specs, target=target, donate=problem.donate, name=name)
        print(f"  {label}: {rr.format_bytes(m.memory.total_bytes)}", flush=True)
        found.append(_row(label, plan, m))
    if scale == "card" and name in BUDGETS:
        budget = BUDGETS[name]
        fit = rr.fit(problem, budget=budget, target=target, most_compiles=most_compiles)
        found.append(_row(f"searched {budget}", fit.plan, fit.measurement))
    return {
        "target": target.spec,
        "jax": jax.__version__,
        "command": "python -m experiments.calibrate.make_plans --again --compiles "
        f"{most_compiles} {name}",
        "fingerprint": graph.fingerprint if graph else None,
        "variants": found,
    }


def _plans(
    graph: rr.Graph | None, scale: Scale
) -> Iterator[tuple[str, rr.Plan | None]]:
    """The baseline, and what every unit that stands in no other can do uniformly."""
    yield "baseline", None
    if graph is None:
        return
    units = [unit for unit in graph.units if not unit.enclosing]
    ways: dict[str, Any] = {
        label: {unit.name: preset(unit, label).action for unit in units}
        for label in PRESETS
        if label != "save all" and (scale == "card" or label == "recompute all")
    }
    # A dry run compiles few variants, and those of many loops take long.
    if scale == "quick" and len(units) > 1:
        units = []
    ways["unrolled"] = {u.name: rr.SAVE(unroll=True) for u in units if u.is_loop}
    for label, actions in ways.items():
        if actions:
            yield label, graph.plan(actions)


def _row(label: str, plan: rr.Plan | None, measured: rr.Measurement) -> Json:
    return {
        "name": label,
        "bytes": measured.memory.total_bytes,
        "estimate_us": round(measured.time.step_us, 1),
        "plan": None if plan is None else json.loads(plan.to_json()),
    }


if __name__ == "__main__":
    sys.exit(main())
