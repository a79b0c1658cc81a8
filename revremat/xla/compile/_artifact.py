"""Artifact: what a compiler made of a step."""

import contextlib
import functools
import importlib.metadata as metadata
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Artifact:
    """What the compiler made of a step.

    Attributes:
      hlo: Serialized `HloProto`: the scheduled module and, unless the step came
        already compiled, its buffer assignment.
      stats: XLA's own totals in bytes: `argument`, `output`, `alias`, `temp`,
        `generated_code`, and the same with the prefix `host_`.
      seconds: Time the compile took.
      cached: It came from the disk.
      versions: Of the compiler.
      remarks: What was done differently than asked, and why.
      is_whole: Whether it is known that no argument is split over the devices.
      remat_pass: Whether XLA's own rematerialization pass ran.
      tuned: Whether it was made with what a card's autotuning chose.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> artifact.stats["argument"], artifact.stats["output"]
      (1024, 1024)
    """

    hlo: bytes
    stats: Mapping[str, int]
    seconds: float
    cached: bool
    versions: str
    remarks: tuple[str, ...] = ()
    is_whole: bool = False
    remat_pass: bool = False
    tuned: bool = False


@functools.cache  # reading what is installed takes milliseconds a package
def versions() -> str:
    """Versions of everything that takes part in a compile."""
    names = []
    for wheel in (
        "jax",
        "jaxlib",
        "jax-cuda13-plugin",
        "jax-cuda13-pjrt",
        "nvidia-cuda-nvcc",
        "nvidia-cuda-nvrtc",
        "nvidia-cudnn-cu13",
        "libtpu",
    ):
        with contextlib.suppress(metadata.PackageNotFoundError):
            names.append(f"{wheel} {metadata.version(wheel)}")
    return ", ".join(names)
