"""Makes the plans that a card is given, without a card.

    python -m experiments.calibrate.make_plans            # all that are missing or old
    python -m experiments.calibrate.make_plans --again gpt2_xl_24

Each program is compiled ahead of time for one H100 as its baseline, with its loops
unrolled and under the uniform presets; some are searched. A plan that was searched
before is kept and compiled anew, as results of a card are of that plan; `--search`
searches once more. Compiles take what autotuning chose in the last run on such a card,
and each says how many kernels are not among that.
In the tiny scale, for tests, it is compiled for a CPU. Run it with the JAX that the
card's machine has, since bytes differ a little from version to version; the file says
which one it was. Every program is a file of its own, written at once, and one that was
made by this JAX with this tuning is not made a second time.
"""

import argparse
import contextlib
import json
import os
import re
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

import revremat as rr
from experiments.calibrate import plan_files, programs
from experiments.calibrate.plan_files import PLANS, Json
from experiments.calibrate.programs import Scale
from experiments.calibrate.runner import TUNING
from experiments.files import write_whole
from revremat.policies import PRESETS, preset

TARGETS: dict[Scale, str] = {"quick": "cpu:1", "card": "h100:1"}

RUN = Path(__file__).parents[1] / "results" / "cards" / "h100"
"""The run on a card whose tuning compiles for it take."""

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

_MOST_UNITS = 2
"""Of a program that has plans in the tiny scale."""


def main(arguments: list[str] | None = None) -> int:
    """Makes the files; 1 where a program failed."""
    options = _options(arguments)
    failed = False
    for scale in options.scales:
        by = options.tuning if scale == "card" else None
        with _tuning(by) as tuning:
            for name in options.programs or programs.NAMES:
                if scale == "card" and name in LEFT_OUT and not options.programs:
                    continue
                failed |= not _made(name, scale, tuning, options)
    return int(failed)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    about = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=about)
    parser.add_argument("programs", nargs="*", choices=[[], *programs.NAMES])
    parser.add_argument("--scales", nargs="*", choices=TARGETS, default=[*TARGETS])
    parser.add_argument("--again", action="store_true", help="those there are, too")
    parser.add_argument(
        "--search", action="store_true", help="plans that are kept, too"
    )
    parser.add_argument("--compiles", type=int, default=40, help="of a search")
    parser.add_argument("--tuning", type=Path, default=RUN, help="a run on the card")
    parser.add_argument("--out", type=Path, default=PLANS)
    return parser.parse_args(arguments)


@contextlib.contextmanager
def _tuning(run: Path | None) -> Iterator[str | None]:
    """Compiles take what autotuning chose in a run; its name, None where it has none.

    Of the run's measured factors nothing is taken: estimates are by the data sheet.
    """
    packed = run / TUNING if run else None
    before = os.environ.get("REVREMAT_CARDS")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REVREMAT_CARDS"] = folder
        try:
            if run is None or packed is None or not packed.exists():
                yield None
                return
            key = TARGETS["card"].split(":")[0]
            with tarfile.open(packed) as tar:
                tar.extractall(Path(folder, f"{key}.tuning"), filter="data")
            yield run.name
        finally:
            os.environ.pop("REVREMAT_CARDS")
            if before is not None:
                os.environ["REVREMAT_CARDS"] = before


def _made(
    name: str, scale: Scale, tuning: str | None, options: argparse.Namespace
) -> bool:
    """Makes one program's file in one scale, unless it is there; whether it could."""
    path = options.out / f"{name}.json"
    known = _known(path)
    there = known.get(scale, {})
    of = (there.get("jax"), there.get("tuning", "not said"))
    is_there = of == (jax.__version__, tuning)
    if is_there and not options.again and not options.search:
        return True
    began = time.monotonic()
    try:
        kept = None if options.search else plan_files.searched(there)
        known[scale] = make(name, scale, options.compiles, tuning, kept)
    except Exception as error:
        print(f"{name}, {scale}: {type(error).__name__}: {error}"[:400], flush=True)
        return False
    text = json.dumps({"program": name, "scales": known}, indent=1)
    write_whole(path, text + "\n")
    print(f"{name}, {scale}: {time.monotonic() - began:.0f} s", flush=True)
    return True


def _known(path: Path) -> dict[Scale, Json]:
    """What a file holds by now."""
    if not path.exists():
        return {}
    return json.loads(path.read_text(encoding="utf-8"))["scales"]


def make(
    name: str,
    scale: Scale,
    most_compiles: int,
    tuning: str | None = None,
    kept: Json | None = None,
) -> Json:
    """All variants of one program, compiled ahead of time.

    Args:
      name: Of the program.
      scale: Its size.
      most_compiles: Of a search.
      tuning: The run whose tuning compiles take; None for none.
      kept: The variant that was searched before; None to search.
    """
    target = rr.target(TARGETS[scale])
    problem = programs.make(name, target, scale)
    graph = rr.trace(problem)
    found: list[Json] = []
    planned = [*_plans(graph if name in IN_A_RACE else None, scale)]
    if kept:
        planned.append((kept["name"], rr.Plan.from_json(json.dumps(kept["plan"]))))
    for label, plan in planned:
        try:
            loss = problem.loss if plan is None else rr.apply(problem.loss, plan)
        except rr.UserError as error:
            print(f"{name}, {scale}, {label}: left out: {error}")
            continue
        step, specs = problem.make_step(loss)
        m = rr.measure(step, *specs, target=target, donate=problem.donate, name=name)
        print(f"  {label}: {rr.format_bytes(m.memory.total_bytes)}", flush=True)
        found.append(_row(label, plan, m))
    if scale == "card" and name in BUDGETS and not kept:
        budget = BUDGETS[name]
        fit = rr.fit(problem, budget=budget, target=target, most_compiles=most_compiles)
        found.append(_row(f"searched {budget}", fit.plan, fit.measurement))
    return {
        "target": target.spec,
        "jax": jax.__version__,
        "tuning": tuning,
        "command": "python -m experiments.calibrate.make_plans --again --search "
        f"--compiles {most_compiles} {name}",
        "fingerprint": graph.fingerprint,
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
    # A dry run compiles few variants, and those of many units take long.
    if scale == "quick" and len(units) > _MOST_UNITS:
        return
    ways: dict[str, Any] = {
        label: {unit.name: preset(unit, label).action for unit in units}
        for label in PRESETS
        if label != "save all" and (scale == "card" or label == "recompute all")
    }
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
        "untuned": untuned(measured.notes),
        "plan": None if plan is None else json.loads(plan.to_json()),
    }


def untuned(notes: Iterable[str]) -> str:
    """How many kernels a compile did not find in the tuning; "" for none.

    >>> untuned(["2 of 30 kernels that XLA tunes are not in the tuning of h100"])
    '2 of 30'
    """
    told = (re.match(r"(.+) kernels that XLA tunes are not in", n) for n in notes)
    return next((match[1] for match in told if match), "")


if __name__ == "__main__":
    sys.exit(main())
