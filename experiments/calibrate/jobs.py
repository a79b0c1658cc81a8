"""One job, in a process of its own; its result is the last line of standard output."""

import argparse
import ctypes
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import revremat as rr
from experiments.calibrate import curves, kernels, programs

Json = dict[str, Any]


def probe(_: argparse.Namespace) -> Json:
    """Which device is here, and whether it can be compiled for ahead of time."""
    device = jax.devices()[0]
    cpu = device.platform == "cpu"
    found: Json = {
        "platform": "cpu" if cpu else "gpu",
        "kind": device.device_kind,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    try:
        key = "cpu" if cpu else rr.target("local").card.key
        missing = rr.target(f"{key}:1").missing()
    except rr.UserError:
        key, missing = "", f"revremat has no description of a {device.device_kind}"
    found |= {"key": key, "target": f"{key}:1" if key else "", "missing": missing}
    found["about"] = (
        f"{_cpu_name()}, {os.cpu_count()} cores, {_gib(_host_bytes())} of memory"
        if cpu
        else f"one of {len(jax.devices())}, {_gib(driver_memory()[1])} of memory"
    )
    return found


def run_kernels(options: argparse.Namespace) -> Json:
    """Seconds of every kernel of a group."""
    found = {}
    for kernel in kernels.suite(options.platform, options.quick)[options.name]:
        try:
            run, arguments = kernel.make()
            compiled = jax.jit(run).lower(*arguments).compile()
            found[kernel.name] = {
                "seconds": seconds(lambda c=compiled, a=arguments: c(*a)),
                "flops": kernel.flops,
                "bytes": kernel.bytes,
                "dtype": kernel.dtype,
            }
        except Exception as error:  # one that a card cannot do must not stop the others
            told = str(error).splitlines() or [type(error).__name__]
            found[kernel.name] = {"failed": told[0][:200]}
    return found


def run_curves(options: argparse.Namespace) -> Json:
    """Rates of single instructions, by class of work and size: on a CPU."""
    return {
        "curves": curves.measure(options.quick),
        "launch_us": curves.launch_us(options.quick),
    }


def reserve(options: argparse.Namespace) -> Json:
    """Bytes in use on the card that are not in XLA's own pool."""
    free, total = driver_memory()
    context = total - free
    # Every library that a training step may load, with its handles and workspaces.
    for group in ("matmul", "attention", "convolution"):
        for kernel in kernels.suite(options.platform, options.quick)[group]:
            run, arguments = kernel.make()
            jax.block_until_ready(jax.jit(run)(*arguments))
    stats = jax.devices()[0].memory_stats() or {}
    free, total = driver_memory()
    pool = stats.get("pool_bytes") or stats.get("bytes_reserved") or 0
    return {
        "total_bytes": total,
        "context_bytes": context,
        "pool_bytes": pool,
        "outside_bytes": total - free - pool,
        "limit_bytes": stats.get("bytes_limit", 0),
    }


def run_program(options: argparse.Namespace) -> Json:
    """Compiles and runs one program here: bytes, the allocator's peak, step time."""
    problem = programs.make(options.name, Here(), options.platform, options.quick)
    step, specs = problem.make_step()
    # As in a report: what is kept is decided by the program, not by the compiler.
    jax.config.update("jax_compiler_enable_remat_pass", False)
    jitted = jax.jit(step, donate_argnums=problem.donate)
    compiled = jitted.lower(*specs).compile()
    stated: Any = compiled.memory_analysis()
    tuning = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    first, *rest = programs.values(specs)
    jax.block_until_ready((first, rest))

    def one_step() -> Any:
        nonlocal first
        first, out = compiled(first, *rest)
        return out

    time_s = seconds(one_step)
    stats = jax.devices()[0].memory_stats() or {}
    return {
        "compiled_bytes": stated.argument_size_in_bytes
        + stated.output_size_in_bytes
        - stated.alias_size_in_bytes
        + stated.temp_size_in_bytes,
        "autotuning_peak_bytes": tuning,
        "allocator_peak_bytes": stats.get("peak_bytes_in_use"),
        "seconds": time_s,
    }


def predict(options: argparse.Namespace) -> Json:
    """What an ahead-of-time compile says about the program, with no device at all."""
    target = rr.target(options.target)
    problem = programs.make(options.name, target, options.platform, options.quick)
    step, specs = problem.make_step()
    m = rr.measure(step, *specs, target=target, donate=problem.donate)
    return {
        "bytes": m.memory.total_bytes,
        "seconds": m.time.step_us * 1e-6,
        "flops": m.time.flops,
        "calibrated": m.time.calibrated,
    }


class Here:
    """This machine's first device, as programs want their target."""

    num_devices = 1

    def mesh(self, axes: dict[str, int]) -> jax.sharding.Mesh:
        """A mesh of it, with Auto axes."""
        devices = np.array(jax.devices()[:1], dtype=object)
        auto = (jax.sharding.AxisType.Auto,) * len(axes)
        return jax.sharding.Mesh(devices.reshape([1] * len(axes)), tuple(axes), auto)


def seconds(run: Callable[[], Any], enough_s: float = 1.0, rounds: int = 20) -> float:
    """Seconds of one call: the fastest of many rounds, after a warm-up.

    What else runs on the machine only ever adds to a round, so the fastest is nearest
    to what the device can do.
    """
    for _ in range(2):
        jax.block_until_ready(run())
    began = time.perf_counter()
    jax.block_until_ready(run())
    once = max(1e-6, time.perf_counter() - began)
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


def driver_memory() -> tuple[int, int]:
    """Free and total bytes of the first card, from its driver."""
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


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [
                line.split(":")[1].strip() for line in file if "model name" in line
            ]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def _host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


JOBS: dict[str, Callable[[argparse.Namespace], Json]] = {
    "probe": probe,
    "kernels": run_kernels,
    "curves": run_curves,
    "reserve": reserve,
    "run": run_program,
    "predict": predict,
}


def main() -> int:
    """Runs the job that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--target", default="")
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    found = JOBS[options.job](options)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    jnp.zeros(()).block_until_ready()  # a device that does not start says so first
    sys.exit(main())
