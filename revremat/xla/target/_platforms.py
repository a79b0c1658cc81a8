"""Which platforms JAX starts, and how to reach the compilers of absent devices."""

import contextlib
import importlib.util
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh


def ignore_absent_devices() -> None:
    """Keeps wheels that are there to compile from complaining of a missing device.

    With the wheels for NVIDIA or TPU installed on a machine without such a device,
    JAX's start prints a long traceback unless told which platforms to use. So it is
    told, where nobody else has: with `JAX_PLATFORMS` set, or with another
    accelerator's plugin installed, nothing changes.

    Example:
      >>> from revremat import xla
      >>> xla.ignore_absent_devices()
    """
    if jax.config.jax_platforms:
        return
    plugins = {entry.name for entry in entry_points(group="jax_plugins")}
    has_cuda_wheel = any(name.startswith("xla_cuda") for name in plugins)
    has_tpu_wheel = importlib.util.find_spec("libtpu") is not None
    if any(not name.startswith("xla_cuda") for name in plugins):
        return
    has_nvidia = has_nvidia_device()
    has_tpu = any(Path("/dev").glob("accel*")) or Path("/dev/vfio/0").exists()
    if (has_cuda_wheel and not has_nvidia) or (has_tpu_wheel and not has_tpu):
        present = ["cuda"] * (has_cuda_wheel and has_nvidia)
        present += ["tpu"] * (has_tpu_wheel and has_tpu)
        jax.config.update("jax_platforms", ",".join([*present, "cpu"]))


def has_nvidia_device(root: Path = Path("/")) -> bool:
    """Whether there is a device file or a driver of an NVIDIA card.

    A container may show the one and hide the other, and Windows' Linux has its own.
    A card that is overlooked here would be left unused without a word.

    Args:
      root: Of the file system.

    Example:
      >>> from pathlib import Path
      >>> from revremat.xla.target import _platforms
      >>> _platforms.has_nvidia_device(Path("/no/such/folder"))
      False
    """
    signs = "proc/driver/nvidia/version", "dev/nvidiactl", "dev/nvidia0", "dev/dxg"
    return any((root / sign).exists() for sign in signs)


def request_cpu_devices(count: int) -> int:
    """Asks for at least `count` CPU devices.

    Args:
      count: At least so many.

    Returns:
      How many there are: fewer where JAX had already started with fewer.

    Example:
      >>> from revremat import xla
      >>> xla.request_cpu_devices(1) >= 1
      True
    """
    with contextlib.suppress(RuntimeError):  # already started
        if jax.config.jax_num_cpu_devices < count:
            jax.config.update("jax_num_cpu_devices", count)
        else:
            return jax.config.jax_num_cpu_devices
        return count
    return len(jax.devices("cpu"))


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

    def describe() -> topologies.TopologyDescription:
        return topologies.get_topology_desc(
            "revremat",
            platform="cuda",
            topology=f"1x{hosts}x{devices_per_host}",
            target_config=target_config,
        )

    try:
        return tuple(describe().devices)
    except NotImplementedError:
        # JAX started before us and its plugin gave up without cuDNN, which is needed
        # to run but not to compile.
        os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
        import jax_plugins.xla_cuda13  # pyright: ignore[reportMissingImports]

        jax_plugins.xla_cuda13.initialize()
        return tuple(describe().devices)


def tpu_topology(name: str) -> tuple[Any, ...]:
    """Descriptions of the devices of a TPU slice, as in `v5e:4x4`."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "true")
    return tuple(topologies.get_topology_desc(name, platform="tpu").devices)


def mesh_of(devices: Any, axes: Mapping[str, int], axis_types: Any) -> Mesh:
    """A mesh of devices that need not be there.

    NVIDIA devices that only compile name no memories, and JAX drops the memory of a
    sharding on such devices without a word; on this mesh it is kept.

    Args:
      devices: As many as the axes have in all.
      axes: Size of each axis by name, outermost first.
      axis_types: One `jax.sharding.AxisType` for each.
    """
    shaped = np.array(devices, dtype=object).reshape(tuple(axes.values()))
    made = Mesh(shaped, tuple(axes), axis_types=axis_types)
    listed: Any = made._internal_device_list
    if devices[0].platform == "gpu" and not devices[0].addressable_memories():
        naming = type(listed)(tuple(_NamesMemories(device) for device in devices))
        object.__setattr__(made, "_cached_device_list", naming)
    return made


class _Memory(str):
    """A memory that is the kind it has: JAX compares kinds with either."""

    @property
    def kind(self) -> str:
        return str(self)


class _NamesMemories:
    """A device, for lists of devices that JAX asks for the kinds of their memories."""

    def __init__(self, device: Any):
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def __eq__(self, other: object) -> bool:
        return getattr(other, "_device", other) is self._device

    def __hash__(self) -> int:
        return hash(self._device)

    def default_memory(self) -> _Memory:
        return _Memory("device")

    def addressable_memories(self) -> list[_Memory]:
        return [_Memory(kind) for kind in ("device", "pinned_host")]
