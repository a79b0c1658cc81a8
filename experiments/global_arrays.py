"""Batches that lie on the devices of several processes, each reading its own rows."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np


def rows_here(spec: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """Which rows of an array the devices of this process hold.

    Args:
      spec: Shape and sharding of the array, whose first dimension is the rows.

    Returns:
      Their indices, in rising order, each once.
    """
    cuts = spec.sharding.addressable_devices_indices_map(spec.shape).values()
    return tuple(sorted({row for cut in cuts for row in _rows(cut, spec)}))


def on_devices(
    batch: Mapping[str, np.ndarray],
    specs: Mapping[str, jax.ShapeDtypeStruct],
    rows: Sequence[int],
) -> dict[str, jax.Array]:
    """The batch of all processes, made of what each of them has read.

    Args:
      batch: The rows of this process.
      specs: Shapes and shardings of the whole batch.
      rows: As `rows_here` says.

    Returns:
      Global arrays, sharded as `specs` says.
    """
    position = {row: number for number, row in enumerate(rows)}

    def whole(part: np.ndarray, spec: jax.ShapeDtypeStruct) -> jax.Array:
        def cut(index):
            return part[[position[row] for row in _rows(index, spec)]][:, *index[1:]]

        return jax.make_array_from_callback(spec.shape, spec.sharding, cut)

    return {name: whole(part, specs[name]) for name, part in batch.items()}


def _rows(index: Any, spec: jax.ShapeDtypeStruct) -> range:
    return range(*index[0].indices(spec.shape[0]))
