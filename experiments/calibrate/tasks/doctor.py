"""The first job: what is here, and whether it is what is to be measured."""

import importlib
import os
import platform
import time
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp

import revremat as rr
from experiments.calibrate import device
from experiments.calibrate.device import Job
from experiments.calibrate.records import Json

_MODULES = [
    "numpy",
    "scipy",
    "numba",
    "flax",
    "optax",
    "chex",
    "orbax.checkpoint",
    "jaxtyping",
    "rich",
    "jinja2",
    "tyro",
    "grain",
]


def doctor(job: Job) -> None:
    """Platform, versions, memory, and the first product."""
    began = time.perf_counter()
    here = jax.devices()[0]
    device.require(job.platform)
    key, missing = _card(job.platform)
    found: Json = {
        "platform": here.platform,
        "device": here.device_kind,
        "num_devices": len(jax.devices()),
        "card": key,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "versions": _versions(),
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "load_before": round(os.getloadavg()[0], 2),
        "start_s": round(time.perf_counter() - began, 2),
        "no_predictions_because": missing,
    }
    # What results of one folder have in common.
    found["machine"] = f"{here.device_kind}, jax {jax.__version__}, {job.scale} sizes"
    if job.platform == "cpu":
        found |= {"device": _cpu_name(), "total_bytes": _host_bytes()}
    else:
        found["total_bytes"] = device.driver_memory()[1]
    job.tell("note", **found)
    began = time.perf_counter()
    x = jnp.ones((1024, 1024), jnp.bfloat16)
    jax.block_until_ready(x @ x)
    first = round(time.perf_counter() - began, 2)
    job.tell("measured", what="first product, compiled", seconds=first)
    job.tell("measured", what="memory", memory=device.memory("first product"))


def _card(platform: str) -> tuple[str, str]:
    """How targets write this device, and why nothing can be compiled ahead for it."""
    try:
        key = "cpu" if platform == "cpu" else rr.target("local").card.key
        return key, rr.target(f"{key}:1").missing()
    except rr.UserError as error:
        return "", str(error)


def _versions() -> dict[str, str]:
    found = {}
    for name in _MODULES:
        try:
            module: Any = importlib.import_module(name)
            found[name] = str(getattr(module, "__version__", "there"))
        except Exception as error:  # of a package that does not load
            found[name] = f"missing: {type(error).__name__}: {error}"[:120]
    for name in ("jaxlib", "jax-cuda13-plugin"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "missing"
    return found


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.split(":")[1] for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0].strip() if names else platform.machine()


def _host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
