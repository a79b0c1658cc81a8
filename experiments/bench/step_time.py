"""Estimated against measured step times, policy by policy.

    python -m experiments.bench.step_time

On a CPU (one thread of it, by the time that thread ran, so that a busy machine disturbs
less): ten policies of each of three programs, in turn, round after round; the fastest
step of each counts, because whatever else runs on the machine only adds, and of several
places in memory the median. Before it the card is calibrated. Prints the rank
correlation (Spearman) of estimates and measurements, and how much slower than the best
policy the one is the one estimated to be fastest. On a GPU: twelve programs, and the
median error before and after calibration.
Writes `experiments/results/step-time-cpu.json`, or `step-time-NAME.json` of a card.
"""

import ctypes
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import tyro

import revremat as rr
from experiments.bench import step_time_programs as programs
from experiments.bench.programs import refusal
from experiments.bench.step_time_tables import Row, summary, table
from experiments.calibrate import curves, facts, kernels
from experiments.calibrate.device import seconds as fastest_of
from experiments.calibrate.programs import Here
from experiments.calibrate.values import fill as values
from experiments.files import write_whole
from revremat import xla
from revremat.xla import MEASURABLE, Card, load_card, with_changes

RESULTS = Path(__file__).parents[1] / "results"
KEPT = Path(__file__).parents[2] / "runs" / "step-time"

# Parameters of `mallopt`, as malloc.h numbers them.
_TRIM_THRESHOLD, _MMAP_MAX, _HEAPS_MAX = -1, -4, -8

_IN_A_ROW = 5
"""Steps of one policy before it is the next one's turn; in training there is one."""

_ROUNDS_A_PLACE = 5
"""Rounds after which arguments lie elsewhere, so that no lucky place decides."""


class NotFiniteError(ValueError):
    """Steps ended in infinities or NaNs: what was timed is not training."""


@dataclass(frozen=True)
class Options:
    """What is run, and for how long.

    Attributes:
      programs: Which; default: three on a CPU, twelve on a GPU.
      policies: Of each program, on a CPU.
      rounds: Of each policy.
      one_thread: On a CPU (Linux): one core, whichever is free.
      card: A measured card's file, instead of calibrating now.
      again: Nothing is run: the last measurements are costed once more.
      keep: Where compiled modules and measurements are kept.
      quick: Tiny sizes, for tests.
      out: The folder of the results.
    """

    programs: tuple[str, ...] = ()
    policies: int = 10
    rounds: int = 15
    one_thread: bool = True
    card: Path | None = None
    again: bool = False
    keep: Path = KEPT
    quick: bool = False
    out: Path = RESULTS


def main(options: Options) -> int:
    """Runs all of it; 1 if a figure misses what is promised."""
    unknown = refusal(options.programs, programs.NAMES)
    if unknown:
        print(unknown)
        return 2
    if options.rounds < 2:
        print(f"--rounds {options.rounds}: two or more, one half is held to the other")
        return 2
    try:
        changes = read_card(options.card)
    except rr.UserError as error:
        print(error)
        return 2
    keep_freed_memory()  # before there are threads, each with a heap of its own
    if options.one_thread and os.environ.get("JAX_PLATFORMS", "cpu") == "cpu":
        start_with_one_thread()
    jax.config.update("jax_compiler_enable_remat_pass", False)
    device = jax.devices()[0]
    cpu = device.platform == "cpu"
    began = time.perf_counter()
    target = rr.target("local")
    sheet = dataclasses.replace(target.card, curves={}, measured=False)
    changes = changes or calibrate(target.card, options.quick)
    measured = with_changes(sheet, changes)
    names = options.programs or (programs.ON_CPU if cpu else programs.ON_GPU)
    found = {}
    for name in names:
        folder = options.keep / name
        if options.again:
            rows = json.loads((folder / "rows.json").read_text())
            if any("halves_us" not in row for row in rows):
                print(f"{folder} was measured by an older version: leave out --again")
                return 2
        else:
            size = "tiny" if options.quick else "cpu" if cpu else "gpu"
            problem = programs.make(name, Here(), size)
            chosen = programs.policies(problem, options.policies if cpu else 1)
            one_thread = cpu and options.one_thread
            rows = race(chosen, options.rounds, folder, one_thread=one_thread)
        found[name] = cost(rows, folder, target, sheet, measured)
        print(table(name, found[name]), flush=True)
    errors = {
        card: statistics.median(
            abs(row[f"{card}_us"] / row["measured_us"] - 1)
            for rows in found.values()
            for row in rows
        )
        for card in ("sheet", "calibrated")
    }
    result = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "threads": 1 if cpu and options.one_thread else os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "seconds": round(time.perf_counter() - began),
        "median_error": errors,
        "summary": {name: summary(rows) for name, rows in found.items()},
        "programs": found,
        "card": {k: v for k, v in changes.items() if k in MEASURABLE},
    }
    for name, one in result["summary"].items():
        print(f"{name}: {json.dumps(one)}")
    print(
        f"median error: {100 * errors['sheet']:.0f} % by the data sheet, "
        f"{100 * errors['calibrated']:.0f} % calibrated"
    )
    options.out.mkdir(parents=True, exist_ok=True)
    label = "cpu" if cpu else target.card.key
    path = options.out / f"step-time-{label}.json"
    print(f"written to {write_whole(path, json.dumps(result, indent=1) + chr(10))}")
    held = (
        all(
            s["rank_correlation"] >= 0.9 and s["choice_is_slower_by"] <= 0.03
            for s in result["summary"].values()
        )
        if cpu
        else errors["sheet"] <= 0.15 and errors["calibrated"] <= 0.08
    )
    print("held" if held else "NOT held")
    return 0 if held else 1


def keep_freed_memory() -> None:
    """The process keeps what it frees, as the pools of cards do.

    By default the C library gives large pieces back to the system, or not, by what lies
    around them: the same step of a ViT took 95 or 66 ms. And the heaps of further
    threads hold 64 MiB each: what is larger was given back after every step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    largest = 2**31 - 1
    settings = (_MMAP_MAX, 0), (_TRIM_THRESHOLD, largest), (_HEAPS_MAX, 1)
    for parameter, value in settings:
        mallopt(parameter, value)


def start_with_large_pages() -> None:
    """This command once more, its memory in pages of 2 MiB where the system has them.

    Which small pages a process is given decides which of them share a place in the
    caches: the same steps of a GPT took 66 to 79 ms, and 56 to 64 ms with large ones.
    """
    known = os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform == "linux" and "glibc.malloc.hugetlb" not in known:
        wanted = ":".join(filter(None, [known, "glibc.malloc.hugetlb=1"]))
        os.environ["GLIBC_TUNABLES"] = wanted  # of glibc 2.35 or later
        os.execv(sys.executable, sys.orig_argv)


def start_with_one_thread() -> None:
    """JAX with a pool of one thread, which may then run on any core.

    The pool has as many threads as the process may use cores when JAX starts.
    """
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    jax.devices()
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), allowed)


def read_card(file: Path | None) -> dict[str, Any]:
    """The measured fields of a file that has a card in it; nothing of no file.

    Raises:
      UserError: There is no such file, or no card in it.
    """
    if file is None:
        return {}
    try:
        found = json.loads(file.read_text())["card"]
        with_changes(load_card("cpu"), found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise rr.UserError(
            f"--card {file} cannot be read ({error!r}): write a file of results or one "
            "that 'make card' wrote, or leave it out to measure now"
        ) from None
    return found


def calibrate(card: Card, quick: bool = False) -> dict[str, Any]:
    """What is measured of this machine's first device: fields of its card."""
    if card.platform == "cpu":
        return {
            "curves": curves.measure(quick),
            "launch_us": curves.launch_us(quick),
        }
    timed = {}
    for group, members in kernels.suite("gpu", quick).items():
        timed[group] = []
        for kernel in members:
            run, arguments = kernel.make()
            lowered = jax.jit(run).lower(*arguments)
            compiled = lowered.compile(compiler_options=kernel.options or None)
            timed[group].append(
                {
                    "seconds": fastest_of(lambda c=compiled, a=arguments: c(*a)),
                    "flops": kernel.flops,
                    "bytes": kernel.bytes,
                    "dtype": kernel.dtype,
                }
            )
    return facts.card(timed, card.key, "gpu")


def race(
    policies: list[programs.Policy],
    rounds: int,
    folder: Path,
    *,
    fill: Callable[[Any], Any] = values,
    one_thread: bool,
) -> list[Row]:
    """Measures every policy of a program, in turn, and keeps what was compiled.

    Args:
      policies: Of one program.
      rounds: How often each is run.
      folder: Gets the compiled modules, and `rows.json`.
      fill: Makes numbers of abstract arguments.
      one_thread: Count the time that the process ran, not what the clock on the wall
        says.

    Returns:
      For each policy its name, the fastest step in microseconds (wherever its arguments
      lay; of those the median), the median of all, and the fastest ones of every other
      round.

    Raises:
      NotFiniteError: A policy's steps ended in infinities or NaNs, on which they are
        not as fast as in training: a sine of NaN takes a quarter of the time of others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # One thread's own time is the time of a step on an idle machine.
    watch = time.process_time if one_thread else time.perf_counter
    rows, running = [], []
    for number, policy in enumerate(policies):
        compiled, hlo = compile_once(policy)
        (folder / f"{number}.hlo.pb").write_bytes(hlo)
        running.append((compiled, policy.specs, []))
        temp_bytes = compiled.memory_analysis().temp_size_in_bytes
        rows.append({"policy": policy.name, "temp_bytes": temp_bytes})
        print(f"  compiled {policy.name}", file=sys.stderr, flush=True)
    made: dict[str, Any] = {}
    placed = [_copied(specs, fill, made) for _, specs, _ in running]
    for number in range(rounds + 1):
        if number > 1 and (number - 1) % _ROUNDS_A_PLACE == 0:
            # The old ones are given back after that, so that these lie elsewhere.
            placed = [_copied(specs, fill, made) for _, specs, _ in running]
        for (compiled, _, times), arguments in zip(running, placed, strict=True):
            for step in range(_IN_A_ROW):
                began = watch()
                first, *others = compiled(*arguments)
                jax.block_until_ready((first, others))
                took = watch() - began
                arguments[0] = first
                if number and step > 1:  # the first ones find other data in the caches
                    times.append((number, 1e6 * took))
    for row, (*_, times), arguments in zip(rows, running, placed, strict=True):
        if not _all_finite(arguments[0]):
            raise NotFiniteError(
                f"{row['policy']}: after {rounds + 1} rounds its state is not finite"
            )
        row["measured_us"] = fastest_by_place(times)
        row["median_us"] = statistics.median(us for _, us in times)
        row["halves_us"] = [
            fastest_by_place([one for one in times if one[0] % 2 == half])
            for half in (0, 1)
        ]
    write_whole(folder / "rows.json", json.dumps(rows, indent=1))
    return rows


def _copied(
    specs: tuple[Any, ...], fill: Callable[[Any], Any], made: dict[str, Any]
) -> list[Any]:
    """Arguments of one's own; what makes the numbers is compiled once for all."""
    key = str(specs)
    if key not in made:
        made[key] = fill(specs)
    return list(jax.tree.map(jnp.copy, made[key]))


def fastest_by_place(times: list[tuple[int, float]]) -> float:
    """The median, over places in memory, of the fastest step.

    Args:
      times: Each with the round it is of, from 1 on.
    """
    fastest: dict[int, float] = {}
    for number, us in times:
        place = (number - 1) // _ROUNDS_A_PLACE
        fastest[place] = min(us, fastest.get(place, us))
    return statistics.median(fastest.values())


def _all_finite(state: Any) -> bool:
    leaves = jax.tree.leaves(state)
    numbers = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return all(bool(jnp.isfinite(leaf).all()) for leaf in numbers)


def cost(
    rows: list[Row], folder: Path, target: rr.Target, sheet: Card, measured: Card
) -> list[Row]:
    """The rows with the estimates, by the data sheet and calibrated."""
    costed = []
    for number, row in enumerate(rows):
        module = xla.Module.from_bytes((folder / f"{number}.hlo.pb").read_bytes())
        by_card = {
            name: xla.estimate(module, dataclasses.replace(target, card=card))
            for name, card in (("sheet", sheet), ("calibrated", measured))
        }
        estimates = {f"{name}_us": t.step_us for name, t in by_card.items()}
        recompute = {"recompute_us": by_card["calibrated"].recompute_us}
        costed.append(row | estimates | recompute)
    return costed


def compile_once(policy: programs.Policy) -> tuple[Any, bytes]:
    """What runs, and the module that the compiler wrote down of the same compile."""
    lowered = jax.jit(policy.step, donate_argnums=policy.donate).lower(*policy.specs)
    with tempfile.TemporaryDirectory() as folder:
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_proto": True}
        compiled = lowered.compile(compiler_options=options)
        dumps = Path(folder).glob("*after_optimizations.hlo.pb")
        largest = max(dumps, key=lambda path: path.stat().st_size)
        return compiled, largest.read_bytes()


if __name__ == "__main__":
    start_with_large_pages()
    sys.exit(main(tyro.cli(Options)))
