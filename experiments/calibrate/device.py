"""The device under a job: that it is the right one, its memory, and time on it."""

import ctypes
import gzip
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from experiments.calibrate.records import Json, Writer, in_one_line


class WrongPlatform(RuntimeError):
    """JAX runs on another platform than the one to be measured."""


@dataclass(frozen=True)
class Job:
    """What a job's code is given.

    Attributes:
      subject: Of which program; "" where there is but one.
      platform: `gpu` or `cpu`: what is here.
      scale: The size of programs.
      out: The folder of the run's files.
      hlo: Where compiled modules go.
      tell: Writes a record.
      cards: Where reports look for measured cards; None to leave them alone.
    """

    subject: str
    platform: str
    scale: Any
    out: Path
    hlo: Path
    tell: Writer
    cards: Path | None = None

    @property
    def is_quick(self) -> bool:
        """Tiny sizes, few rounds."""
        return self.scale == "quick"


def require(platform: str) -> None:
    """Raises where the first device is of another platform.

    JAX falls back to the CPU without a word, and minutes would go into measuring it.

    Raises:
      WrongPlatform: What is here, and what to write instead.
    """
    here = jax.devices()[0].platform
    if here != platform:
        raise WrongPlatform(
            f"this is a {here}, and a {platform} is to be measured: write "
            f"--platform {here} to measure this {here}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device's memory was too small."""
    return "RESOURCE_EXHAUSTED" in str(error) or "out of memory" in str(error).lower()


def told(error: BaseException) -> dict[str, str]:
    """An error in one line, and the end of all that it says."""
    return {"error": in_one_line(error), "tail": str(error)[-2000:]}


def memory(stage: str) -> Json:
    """The allocator's own figures, and the driver's, as they are.

    The peak is the process's: it only grows, so that it is recorded stage by stage.
    """
    stats = jax.devices()[0].memory_stats() or {}
    found: Json = {"stage": stage, "allocator": stats}
    try:
        free, total = driver_memory()
        found |= {"driver_free_bytes": free, "driver_total_bytes": total}
    except OSError:
        pass  # no NVIDIA card
    return found


def driver_memory() -> tuple[int, int]:
    """Free and total bytes of the first card, from its driver.

    Raises:
      OSError: There is no driver, or it answers with an error.
    """
    driver = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    for code in (
        driver.cuInit(0),
        driver.cuDeviceGet(ctypes.byref(device), 0),
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device),
        driver.cuCtxPushCurrent_v2(context),
        driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)),
        driver.cuCtxPopCurrent_v2(ctypes.byref(context)),
    ):
        if code:
            raise OSError(f"the CUDA driver answers with error {code}")
    return free.value, total.value


def keep_hlo(job: Job, name: str, compiled: Any) -> None:
    """The compiled module's text: with autotuning it is not what was compiled ahead."""
    _keep(job, f"{name}.txt", compiled.as_text() or "")


def keep_kernels(job: Job, name: str, rows: list[Json]) -> None:
    """What a profiled call ran, one kernel a line, beside the module's text."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    _keep(job, f"{name}.kernels.jsonl", text)


def _keep(job: Job, name: str, text: str) -> None:
    job.hlo.mkdir(parents=True, exist_ok=True)
    safe = "".join(c if c.isalnum() or c == "." else "_" for c in name)
    with gzip.open(job.hlo / f"{safe}.gz", "wt", compresslevel=6) as file:
        file.write(text)


def times(run: Callable[[], Any], number: int) -> list[float]:
    """Seconds of each of so many calls, each waited for."""
    found = []
    for _ in range(number):
        began = time.perf_counter()
        jax.block_until_ready(run())
        found.append(time.perf_counter() - began)
    return found


def seconds(run: Callable[[], Any], enough_s: float = 1.0, rounds: int = 20) -> float:
    """Seconds of one call: the fastest of many rounds, after a warm-up.

    What else runs on the machine only ever adds to a round, so the fastest is nearest
    to what the device can do.
    """
    for _ in range(2):
        jax.block_until_ready(run())
    once = max(1e-6, times(run, 1)[0])
    calls = max(1, min(1000, int(enough_s / rounds / once)))
    fastest = float("inf")
    start = time.perf_counter()
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(calls):
            out = run()
        jax.block_until_ready(out)
        fastest = min(fastest, (time.perf_counter() - began) / calls)
        if began - start > 10 * enough_s:  # slow programs: fewer rounds will do
            break
    return fastest


@jax.jit
def _not_finite(leaves: list[jax.Array]) -> jax.Array:
    return sum((jnp.sum(~jnp.isfinite(x)) for x in leaves), jnp.zeros((), int))


def not_finite(tree: Any) -> int:
    """How many numbers of a tree are infinite or none: NaN runs faster than data."""
    leaves = [x for x in jax.tree.leaves(tree) if jnp.issubdtype(x.dtype, jnp.inexact)]
    return int(_not_finite(leaves))
