"""The arguments of a step, placed on a target's devices without allocating them."""

import functools
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding

from revremat._errors import UserError
from revremat._problem import check_sizes
from revremat.xla._targets import Target


def place(specs: Any, target: Target) -> Any:
    """Every array of `specs` as a `ShapeDtypeStruct` on the target's devices.

    A mesh of other devices (the machine at hand, say) is carried over axis by axis;
    what has no sharding is replicated.

    Args:
      specs: A tree of arrays, `ShapeDtypeStruct`s or Python numbers.
      target: Where they would live.

    Returns:
      The same tree of `jax.ShapeDtypeStruct`s, each with a sharding.

    Raises:
      UserError: A mesh does not have as many devices as the target.
    """
    devices = tuple(target.devices)

    def place_leaf(leaf: Any) -> jax.ShapeDtypeStruct:
        try:
            shaped = leaf if hasattr(leaf, "shape") else jax.typeof(leaf)
            shape, dtype = shaped.shape, shaped.dtype
        except (TypeError, AttributeError):
            raise UserError(
                f"an argument of the step is {leaf!r}: write arrays or "
                "jax.ShapeDtypeStructs, and bind everything else with functools.partial"
            ) from None
        check_sizes("an argument of the step", shape)
        return jax.ShapeDtypeStruct(
            shape,
            dtype,
            sharding=_place_sharding(
                getattr(leaf, "sharding", None), devices, target.spec
            ),
            weak_type=getattr(shaped, "weak_type", False),
        )

    return jax.tree.map(place_leaf, specs)


def _place_sharding(
    sharding: Sharding | None, devices: tuple[Any, ...], spec: str
) -> Sharding:
    if isinstance(sharding, NamedSharding):
        mesh = sharding.mesh
        if mesh.size != len(devices):
            shape = ", ".join(f"{name}: {size}" for name, size in mesh.shape.items())
            raise UserError(
                f"an argument lies on a mesh {{{shape}}} of {mesh.size} devices but "
                f"{spec} has {len(devices)}: make the mesh with target.mesh(...)"
            )
        if not isinstance(mesh, jax.sharding.AbstractMesh) and all(
            d in set(devices) for d in mesh.devices.flat
        ):
            return sharding
        return NamedSharding(
            _mesh_like(tuple(mesh.shape.items()), mesh.axis_types, devices),
            sharding.spec,
            memory_kind=sharding.memory_kind,
        )
    if len(devices) == 1:
        return SingleDeviceSharding(devices[0])
    return NamedSharding(
        _mesh_like(
            (("devices", len(devices)),), (jax.sharding.AxisType.Auto,), devices
        ),
        PartitionSpec(),
    )


@functools.lru_cache(maxsize=32)
def _mesh_like(shape: Any, axis_types: Any, devices: tuple[Any, ...]) -> Any:
    import numpy as np

    sizes = tuple(size for _, size in shape)
    return jax.sharding.Mesh(
        np.array(devices, dtype=object).reshape(sizes),
        tuple(name for name, _ in shape),
        axis_types=axis_types,
    )
