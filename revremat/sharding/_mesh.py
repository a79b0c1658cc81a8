"""Meshes that say what is missing."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from revremat._errors import UserError


def make_mesh(
    axis_sizes: Mapping[str, int], devices: Sequence[Any] | None = None
) -> Mesh:
    """Arrange devices in a named grid with Auto axes.

    Works for devices that are not there (those of an ahead-of-time topology) as for
    those that are; nothing is allocated.

    Args:
      axis_sizes: Axis name to number of devices along it, outermost first.
      devices: All of them are used, in this order; by default `jax.devices()`.

    Returns:
      A mesh whose axes are all `AxisType.Auto`: the compiler propagates shardings.

    Raises:
      UserError: If the sizes do not multiply to the number of devices.

    Example:
      >>> make_mesh({"data": 1}, jax.devices()[:1]).shape["data"]
      1
    """
    devices = jax.devices() if devices is None else list(devices)
    wrong = {name: size for name, size in axis_sizes.items() if size < 1}
    if wrong:
        raise UserError(
            f"mesh {dict(axis_sizes)}: sizes must be 1 or more, not {wrong}"
        )
    wanted = math.prod(axis_sizes.values())
    if wanted != len(devices):
        raise UserError(
            f"mesh {dict(axis_sizes)} needs {wanted} devices and there are "
            f"{len(devices)}; make the sizes multiply to {len(devices)}"
        )
    grid = np.array(devices, dtype=object).reshape(tuple(axis_sizes.values()))
    return Mesh(grid, tuple(axis_sizes), axis_types=(AxisType.Auto,) * len(axis_sizes))


def complete_axes(
    axis_sizes: Mapping[str, int | None], num_devices: int
) -> dict[str, int]:
    """Give the one axis whose size is None whatever the others leave.

    Args:
      axis_sizes: Axis name to size; at most one None.
      num_devices: What the sizes must multiply to.

    Returns:
      The same axes in the same order, all sizes known.

    Raises:
      UserError: If two sizes are None or the others do not divide `num_devices`.

    Example:
      >>> complete_axes({"data": None, "model": 4}, 8)
      {'data': 2, 'model': 4}
    """
    free = [name for name, size in axis_sizes.items() if size is None]
    known = math.prod(size for size in axis_sizes.values() if size is not None)
    if len(free) > 1:
        raise UserError(f"mesh axes {free} are all left open; give all but one a size")
    if free and (known < 1 or num_devices % known):
        raise UserError(
            f"mesh {dict(axis_sizes)}: {known} does not divide {num_devices} devices; "
            f"choose sizes whose product divides {num_devices}"
        )
    return {
        name: num_devices // known if size is None else size
        for name, size in axis_sizes.items()
    }
