"""What an answer costs, against one plain trace and compile of the same step.

    python -m experiments.bench.search_cost

A GPT of 6 layers on `h100:1` and one of 24 on `h100:8`, each part in a process of its
own with an empty cache: the plain step, a quick search, a normal one, and a second
budget after the normal one. The plain step is traced once and compiled once, as far as
XLA gets before it generates code, and with nothing left out before that: `rr.measure`
alone takes less. Prints seconds on the wall, processor seconds, compiles, and what the
plan takes; the wall's ratio is only good on an idle machine. Writes
`experiments/results/search-cost.json`.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

import revremat as rr
from experiments.configs import gpt, gpt_24
from experiments.files import write_whole
from revremat import format_bytes, format_us

RESULT = Path(__file__).parents[1] / "results" / "search-cost.json"
CASES: dict[str, tuple[str, Any, dict[str, int]]] = {
    "gpt_6": (
        "h100:1",
        gpt,
        {
            "num_layers": 6,
            "width": 1024,
            "mlp_width": 4096,
            "num_heads": 16,
            "vocab_size": 32_768,
            "seq_len": 1024,
            "batch_size": 16,
        },
    ),
    "gpt_24": ("h100:8", gpt_24, {"batch_size": 16}),
}
"""From case to target, experiment and what is set there."""

Part = Literal["plain", "quick", "normal", "all"]


@dataclass(frozen=True)
class Options:
    """What is searched.

    Attributes:
      cases: Which.
      share: The budget, as a part of what the plain step takes.
      second: The second budget, likewise.
      plain: Bytes that the plain step takes, as one process tells the next.
      part: What one of the command's own processes does.
      out: The file of the results.
    """

    cases: tuple[str, ...] = tuple(CASES)
    share: float = 0.5
    second: float = 0.4
    plain: int = 0
    part: Part = "all"
    out: Path = RESULT


def main(options: Options) -> int:
    """Runs all parts, and prints a line for each."""
    if unknown := [case for case in options.cases if case not in CASES]:
        print(f"no case {unknown[0]!r}; there are {', '.join(CASES)}")
        return 2
    if options.part != "all":
        (case,) = options.cases
        print(json.dumps(_part(case, options)))
        return 0
    found: dict[str, Any] = {}
    for case in options.cases:
        found[case] = parts = {}
        for part in ("plain", "quick", "normal"):
            plain = parts["plain"]["bytes"] if parts else 0
            parts[part] = _in_a_process(case, part, options, plain)
            print(line(case, part, parts), flush=True)
        whole = {"load": round(os.getloadavg()[0], 2), "cases": found}
        write_whole(options.out, json.dumps(whole, indent=1) + "\n")
    return 0


def _in_a_process(case: str, part: str, options: Options, plain: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "experiments.bench.search_cost"]
    command += ["--cases", case, "--part", part, "--plain", str(plain)]
    command += ["--share", str(options.share), "--second", str(options.second)]
    with tempfile.TemporaryDirectory() as folder:
        surroundings = {"JAX_PLATFORMS": "cpu", **os.environ, "REVREMAT_CACHE": folder}
        ran = subprocess.run(
            command, env=surroundings, check=True, stdout=subprocess.PIPE, text=True
        )
    return json.loads(ran.stdout.splitlines()[-1])


def _part(case: str, options: Options) -> dict[str, Any]:
    spec, config, sizes = CASES[case]
    target = rr.target(spec)
    problem = config.problem(target, **sizes)
    target.devices  # noqa: B018, made once in any case
    if options.part == "plain":
        return _timed(lambda: rr.measure(problem, target=target, cache=False))
    effort: Any = options.part
    search = lambda share: rr.fit(
        problem, budget=int(share * options.plain), target=target, effort=effort
    )
    found = _timed(lambda: search(options.share))
    if options.part == "normal":
        found["second"] = _timed(lambda: search(options.second))
    return found


def _timed(what: Callable[[], rr.Fit | rr.Measurement]) -> dict[str, Any]:
    wall, own = time.perf_counter(), time.process_time()
    done = what()
    about: dict[str, Any] = {
        "seconds": round(time.perf_counter() - wall, 2),
        "processor_seconds": round(time.process_time() - own, 2),
    }
    if isinstance(done, rr.Fit):
        about["compiles"] = done.num_compiles
        about["fits"] = done.plan.fits
        about["plan"] = [str(unit) for unit in done.plan.units]
        done = done.measurement
    return {**about, "bytes": done.memory.total_bytes, "step_us": done.time.step_us}


def line(case: str, part: str, parts: dict[str, Any]) -> str:
    """One part, against the plain step."""
    one, plain = parts[part], parts["plain"]
    text = (
        f"{case:>7} {part:>7} {one['seconds']:8.1f} s, {one['processor_seconds']:8.1f} "
        f"of the processor; {format_bytes(one['bytes'])}, {format_us(one['step_us'])}"
    )
    if part == "plain":
        return text
    ratios = [one[kind] / plain[kind] for kind in ("seconds", "processor_seconds")]
    text += f"; {one['compiles']} compiles; {ratios[0]:.1f} and {ratios[1]:.1f} times"
    if second := one.get("second"):
        share = second["seconds"] / one["seconds"]
        text += f"; a second budget {100 * share:.0f} % of that"
    return text


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
