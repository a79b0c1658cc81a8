"""What revremat does, in under ten minutes: `make run`.

Every step prints the command that it runs; each can be run by itself.
"""

import ctypes
import json
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

import revremat as rr
from experiments.configs import gpt
from experiments.step import build, mesh_axes
from revremat import UserError, format_bytes, format_us, sharding

ROOT = Path(__file__).parents[1]
RUN = ROOT / "runs" / "demo"
PLAN = ROOT / "runs" / "demo-plan.json"
PROGRAM = "experiments/configs/gpt.py:problem"
BUDGET = "100MiB"
NUM_STEPS = 200
NUM_PLANNED_STEPS = 40
NUM_WARMUP_STEPS = 20


def main() -> int:
    """Runs all steps; 1 at the first that fails."""
    began = time.perf_counter()
    for number, step in enumerate(STEPS, 1):
        heading = (step.__doc__ or "").splitlines()[0]
        print(f"\n\033[1m{number}. {heading}\033[0m", flush=True)
        try:
            step()
        except (UserError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
    print(f"\ndone in {time.perf_counter() - began:.0f} s")
    return 0


def report_here() -> None:
    """A small GPT on this machine: what one training step takes, and who holds it."""
    run(f"revremat report {PROGRAM}")


def train() -> None:
    """The same GPT, trained on the source of Python's standard library."""
    shutil.rmtree(RUN, ignore_errors=True)
    run(
        f"python experiments/train.py gpt --train.num-steps {NUM_STEPS} "
        f"--train.valid-every {NUM_STEPS} --train.dir {RUN.relative_to(ROOT)}"
    )
    rows = [json.loads(line) for line in (RUN / "metrics.jsonl").open()]
    losses = [row["loss"] for row in rows]
    first, last = (sum(part) / len(part) for part in (losses[:10], losses[-10:]))
    print(f"loss of the first ten steps {first:.3f}, of the last ten {last:.3f}")
    if not last < 0.75 * first:
        raise UserError(f"the loss did not fall: {first:.3f} to {last:.3f}")


def compare_bytes() -> None:
    """Measured against compiled: the bytes that a step really takes here."""
    run("python -m experiments.demo bytes")


def which_machine() -> None:
    """Which machine for 7B parameters? Three, none of them here."""
    targets = " ".join(f"--target {card}:8" for card in ("h100", "a100", "h200"))
    run(f"revremat report experiments/configs/gpt_7b.py:problem {targets}")


def search() -> None:
    """A plan for the same GPT in half of its memory, found by asking the compiler."""
    run(f"revremat search {PROGRAM} --budget {BUDGET} --out {PLAN.relative_to(ROOT)}")


def train_by_plan() -> None:
    """Training by the plan: the same losses, other memory."""
    folder = RUN.with_name("demo-plan")
    shutil.rmtree(folder, ignore_errors=True)
    run(
        f"python experiments/train.py gpt --plan {PLAN.relative_to(ROOT)} "
        f"--train.num-steps {NUM_PLANNED_STEPS} --train.valid-batches 0 "
        f"--train.dir {folder.relative_to(ROOT)}"
    )
    plain, planned = (
        [json.loads(line)["loss"] for line in (f / "metrics.jsonl").open()]
        for f in (RUN, folder)
    )
    # Beyond the warm-up the learning rate depends on how long a run is.
    pairs = list(zip(plain, planned, strict=False))[:NUM_WARMUP_STEPS]
    apart = max(abs(a - b) for a, b in pairs)
    print(f"losses of the first {len(pairs)} steps differ by at most {apart:.1e}")


def compare_planned_bytes() -> None:
    """Predicted, compiled and measured: the bytes of a step by the plan."""
    run(f"python -m experiments.demo bytes {PLAN.relative_to(ROOT)}")


def compare_times() -> None:
    """Plain against planned: the times of their steps, run in turn in one process."""
    run(f"python -m experiments.demo times {PLAN.relative_to(ROOT)}")


STEPS: tuple[Callable[[], None], ...] = (
    report_here,
    train,
    compare_bytes,
    search,
    train_by_plan,
    compare_planned_bytes,
    compare_times,
    which_machine,
)


def run(command: str) -> None:
    """Runs a command of this environment, as it is typed."""
    print(f"$ {command}\n", flush=True)
    program, *arguments = shlex.split(command)
    start = [sys.executable, *(["-m", program] if program == "revremat" else [])]
    done = subprocess.run([*start, *arguments], cwd=ROOT)
    if done.returncode:
        raise UserError(f"{command!r} ended with exit code {done.returncode}")


@dataclass(frozen=True)
class Ready:
    """The GPT's step, compiled, with what it runs on.

    Attributes:
      step: `step(state, batch) -> (state, metrics)`; the state is donated.
      state: A fresh one.
      batch: Of zeros.
      predicted_bytes: What the plan's search expected; None without a plan.
    """

    step: jax.stages.Compiled
    state: Any
    batch: Any
    predicted_bytes: int | None = None


def ready(plan_file: str = "") -> Ready:
    """Compiles the GPT's step, by a plan if one is named, and makes its arguments."""
    jax.config.update("jax_compiler_enable_remat_pass", False)
    mesh = sharding.make_mesh(mesh_axes(gpt.config, 1), jax.devices()[:1])
    program = build(gpt.config, mesh)
    plan = rr.Plan.load(plan_file) if plan_file else None
    loss = program.loss if plan is None else rr.apply(program.loss, plan)
    step = jax.jit(program.make_step(loss), donate_argnums=0)
    compiled = step.lower(program.state, program.batch).compile()
    key = jax.random.key_data(jax.random.key(0))
    state = sharding.init_sharded(program.init, program.state, key)
    batch = jax.tree.map(
        lambda s: jax.device_put(jax.numpy.zeros(s.shape, s.dtype), s.sharding),
        program.batch,
    )
    return Ready(compiled, state, batch, plan.predicted_bytes if plan else None)


def print_times(plan_file: str) -> None:
    """Runs the plain and the planned step in turn and prints their times."""
    plain, planned = (_stepper(ready(file)) for file in ("", plan_file))
    pairs = paired_seconds(plain, planned)
    print(times_text(pairs))


def _stepper(one: Ready) -> Callable[[], None]:
    state = one.state

    def step() -> None:
        nonlocal state
        state, _ = one.step(state, one.batch)
        jax.block_until_ready(state)

    return step


def paired_seconds(
    plain: Callable[[], None],
    planned: Callable[[], None],
    *,
    clock: Callable[[], float] = time.perf_counter,
    least: int = 8,
    most: int = 40,
    seconds: float = 20.0,
) -> list[tuple[float, float]]:
    """Times of two functions run in turn, so that both meet the same busy machine.

    Args:
      plain: Run first in every other pair, to be fair to both.
      planned: Run first in the others.
      clock: Seconds.
      least: Pairs that are timed in any case; one more before them is not.
      most: No more pairs than that.
      seconds: No further pair once so much has passed.

    Returns:
      Seconds of each pair, plain and planned.
    """

    def timed(step: Callable[[], None]) -> float:
        began = clock()
        step()
        return clock() - began

    plain()
    planned()
    began, pairs = clock(), []
    while len(pairs) < least or (len(pairs) < most and clock() - began < seconds):
        if len(pairs) % 2:
            second, first = timed(planned), timed(plain)
        else:
            first, second = timed(plain), timed(planned)
        pairs.append((first, second))
    return pairs


def times_text(pairs: Sequence[tuple[float, float]]) -> str:
    """The fastest and the median step of each, and how many times as fast is planned.

    >>> print(times_text([(0.3, 0.2), (0.4, 0.2), (0.3, 0.25)]))
    step times of 3 pairs, run in turn in one process
    plain      fastest  300 ms, median  300 ms
    planned    fastest  200 ms, median  200 ms
    the planned step is 1.50 times as fast (pair by pair: median 1.50, 1.20 to 2.00)
    """
    lines = [f"step times of {len(pairs)} pairs, run in turn in one process"]
    columns = list(zip(*pairs, strict=True))
    for name, column in zip(("plain", "planned"), columns, strict=True):
        fastest, median = (
            format_us(1e6 * value) for value in (min(column), statistics.median(column))
        )
        lines.append(f"{name:8}   fastest {fastest:>7}, median {median:>7}")
    ratios = [plain / planned for plain, planned in pairs]
    gain = min(columns[0]) / min(columns[1])
    lines.append(
        f"the planned step is {gain:.2f} times as fast (pair by pair: median "
        f"{statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f})"
    )
    return "\n".join(lines)


def print_bytes(plan_file: str = "") -> None:
    """Runs the GPT's step and compares its memory with what the compiler stated."""
    one = ready(plan_file)
    if one.predicted_bytes is not None:
        print(f"a step:    predicted {format_bytes(one.predicted_bytes)}")
    stated: Any = one.step.memory_analysis()
    arguments = stated.argument_size_in_bytes
    beyond = (
        stated.output_size_in_bytes
        - stated.alias_size_in_bytes
        + stated.temp_size_in_bytes
    )
    found = sum(leaf.nbytes for leaf in jax.tree.leaves((one.state, one.batch)))
    step = _stepper(one)
    step()
    grown = _growth(step, jax.devices()[0])
    print(f"arguments: compiled {format_bytes(arguments)}, found {format_bytes(found)}")
    if grown is None:
        print("this system does not tell how far a process's memory rises in a step")
        return
    off = 100 * ((found + grown) / (arguments + beyond) - 1)
    print(f"beyond:    compiled {format_bytes(beyond)}, found {format_bytes(grown)}")
    print(
        f"a step:    compiled {format_bytes(arguments + beyond)}, "
        f"found {format_bytes(found + grown)} ({off:+.1f} %)"
    )


def _growth(action: Callable[[], None], device) -> int | None:
    """How far memory rises while something runs: the device's own count, or Linux's."""
    stats = device.memory_stats()
    if stats:
        action()
        after = device.memory_stats()
        return after["peak_bytes_in_use"] - stats["bytes_in_use"]
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = _status("VmRSS")
        action()
        return _status("VmHWM") - before
    except (OSError, AttributeError, TypeError):
        return None


def _status(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) * 1024  # pyright: ignore[reportOptionalSubscript]


if __name__ == "__main__":
    if sys.argv[1:2] == ["bytes"]:
        print_bytes(*sys.argv[2:3])
        sys.exit(0)
    if sys.argv[1:2] == ["times"]:
        print_times(*sys.argv[2:3])
        sys.exit(0)
    sys.exit(main())
