"""What revremat does, in under five minutes: `make run`.

Every step prints the command that it runs; each can be run by itself.
"""

import ctypes
import json
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import revremat as rr
from revremat import UserError
from revremat._bytes import format_bytes

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


STEPS: tuple[Callable[[], None], ...] = (
    report_here,
    train,
    compare_bytes,
    search,
    train_by_plan,
    compare_planned_bytes,
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


def print_bytes(plan_file: str = "") -> None:
    """Runs the GPT's step and compares its memory with what the compiler stated."""
    import jax

    from experiments.configs import gpt
    from experiments.step import build, mesh_axes
    from revremat import sharding

    jax.config.update("jax_compiler_enable_remat_pass", False)
    device = jax.devices()[0]
    mesh = sharding.make_mesh(mesh_axes(gpt.config, 1), [device])
    program = build(gpt.config, mesh)
    loss = program.loss
    if plan_file:
        plan = rr.Plan.load(plan_file)
        loss = rr.apply(loss, plan)
        if plan.predicted_bytes is not None:
            print(f"a step:    predicted {format_bytes(plan.predicted_bytes)}")
    step = jax.jit(program.make_step(loss), donate_argnums=0)
    compiled = step.lower(program.state, program.batch).compile()
    stated: Any = compiled.memory_analysis()
    arguments = stated.argument_size_in_bytes
    beyond = (
        stated.output_size_in_bytes
        - stated.alias_size_in_bytes
        + stated.temp_size_in_bytes
    )
    key = jax.random.key_data(jax.random.key(0))
    state = sharding.init_sharded(program.init, program.state, key)
    batch = jax.tree.map(
        lambda s: jax.device_put(jax.numpy.zeros(s.shape, s.dtype), s.sharding),
        program.batch,
    )
    found = sum(leaf.nbytes for leaf in jax.tree.leaves((state, batch)))
    state, _ = compiled(state, batch)
    jax.block_until_ready(state)

    def more() -> None:
        jax.block_until_ready(compiled(state, batch))

    grown = _growth(more, device)
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
    sys.exit(main())
