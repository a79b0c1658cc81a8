"""The only file that may touch `jax._src`, and what differs between JAX versions."""

import contextlib
import importlib.util
import logging
import os
from pathlib import Path
from typing import Any

import jax
from jax._src import xla_bridge
from jax.experimental import topologies


def backends_are_initialized() -> bool:
    """Whether JAX has started, after which the number of devices is fixed."""
    return xla_bridge.backends_are_initialized()


def quiet_absent_devices() -> None:
    """Keeps compile-only wheels from complaining that their device is not there.

    With the wheels that compile for NVIDIA or TPU installed on a machine without such
    a device, JAX's start prints a long traceback. Only that is silenced: with a device
    present, or with `JAX_PLATFORMS` set, nothing changes.
    """
    has_nvidia = Path("/proc/driver/nvidia/version").exists()
    has_tpu = any(Path("/dev").glob("accel*")) or Path("/dev/vfio/0").exists()
    if not has_nvidia:
        logging.getLogger("jax._src.xla_bridge").addFilter(_is_not_about_missing_cuda)
    libtpu_without_tpu = importlib.util.find_spec("libtpu") is not None and not has_tpu
    if libtpu_without_tpu and not jax.config.jax_platforms:
        jax.config.update("jax_platforms", "cuda,cpu" if has_nvidia else "cpu")


def _is_not_about_missing_cuda(record: logging.LogRecord) -> bool:
    text = record.getMessage()
    return not ("xla_cuda" in text and ("plugin" in text or "initialize" in text))


def num_cpu_devices() -> int:
    """CPU devices JAX has, or will have when it starts."""
    if backends_are_initialized():
        return len(jax.devices("cpu"))
    return max(1, jax.config.jax_num_cpu_devices)


def request_cpu_devices(count: int) -> None:
    """Asks for at least `count` CPU devices, if JAX has not started yet."""
    if not backends_are_initialized() and num_cpu_devices() < count:
        jax.config.update("jax_num_cpu_devices", count)


def cuda_topology(
    target_config: str, hosts: int, devices_per_host: int
) -> tuple[Any, ...]:
    """Descriptions of NVIDIA devices that need not be there.

    Args:
      target_config: Text of XLA's `GpuTargetConfigProto`.
      hosts: Hosts.
      devices_per_host: Devices in each.

    Returns:
      Devices that programs can be compiled for, but not run on.
    """
    described = topologies.get_topology_desc(
        "revremat",
        platform="cuda",
        topology=f"1x{hosts}x{devices_per_host}",
        target_config=target_config,
    )
    return tuple(described.devices)


def tpu_topology(name: str) -> tuple[Any, ...]:
    """Descriptions of the devices of a TPU slice, as in `v5e:4x4`."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")
    return tuple(topologies.get_topology_desc(name, platform="tpu").devices)


@contextlib.contextmanager
def quiet_stderr():
    """Holds back what native code prints to stderr; shown only if the body fails."""
    import sys
    import tempfile

    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
