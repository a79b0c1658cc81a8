"""Arguments and shardings, carried over to a target's devices without allocating."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental.layout import Format
from jax.sharding import (
    AbstractMesh,
    AxisType,
    NamedSharding,
    PartitionSpec,
    Sharding,
    SingleDeviceSharding,
)

from revremat._compat import ambient_mesh
from revremat._errors import UserError
from revremat._problem import check_sizes
from revremat.xla.target._platforms import mesh_of
from revremat.xla.target._targets import Target


def place(specs: Any, target: Target, *, carried: bool = True) -> Any:
    """Every array of `specs` as a `ShapeDtypeStruct` on the target's devices.

    A mesh of other devices (the machine at hand, say) is carried over axis by axis, the
    kind of memory included; what has no sharding is replicated.

    Args:
      specs: A tree of arrays, `ShapeDtypeStruct`s or Python numbers.
      target: Where they would live.
      carried: Whether meshes of other devices are; else such arrays stay there.

    Returns:
      The same tree of `jax.ShapeDtypeStruct`s, each with a sharding.

    Raises:
      UserError: A mesh does not have as many devices as the target.
    """
    carrier = Carrier(tuple(target.devices), target.spec)

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
        sharding = _sharding_of(leaf)
        moved = carrier.sharding(sharding)
        if carried or not isinstance(sharding, NamedSharding):
            sharding = moved
        if isinstance(leaf, jax.ShapeDtypeStruct) and (layout := leaf.format.layout):
            sharding = Format(layout, sharding)
        return jax.ShapeDtypeStruct(
            shape,
            dtype,
            sharding=sharding,
            weak_type=getattr(shaped, "weak_type", False),
        )

    return jax.tree.map(place_leaf, specs)


def _sharding_of(leaf: Any) -> Any:
    try:
        return getattr(leaf, "sharding", None)
    except TypeError:  # a PartitionSpec without a mesh
        raise UserError(
            f"an argument's sharding is {leaf._sharding} and no mesh is set: write "
            "jax.NamedSharding(target.mesh(...), ...), or measure within jax.set_mesh"
        ) from None


def is_typed_by_mesh(specs: Any) -> bool:
    """Whether JAX compares meshes as it traces: some are Explicit, or one is set."""
    leaves = (getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(specs))
    meshes = (one.mesh for one in leaves if isinstance(one, NamedSharding))
    ambient, _ = ambient_mesh()
    explicit = any(AxisType.Explicit in mesh.axis_types for mesh in meshes)
    return explicit or ambient is not None


@dataclass(frozen=True)
class Carrier:
    """Carries meshes and shardings over to other devices.

    Attributes:
      devices: The devices, in the order of the target.
      target: What they are called.
      holder: What has the meshes and shardings, for messages.
    """

    devices: tuple[Any, ...]
    target: str
    holder: str = "an argument lies on"

    def sharding(self, one: Any) -> Sharding:
        """The same sharding on the target's devices; replicated where there is none.

        Raises:
          UserError: Its mesh does not have as many devices as the target.
        """
        if isinstance(one, NamedSharding) and not one.mesh.empty:
            mesh = self.mesh(one.mesh)
            if mesh is one.mesh:
                return one
            return self._named(mesh, one.spec, _memory_kind(one))
        kind = None if one is None else _memory_kind(one)
        if len(self.devices) == 1 and kind is None:
            return SingleDeviceSharding(self.devices[0])
        return self._replicated(kind)

    def mesh(self, one: Any) -> Any:
        """A mesh of the same axes on the target's devices; itself where it is there.

        Raises:
          UserError: It does not have as many devices as the target.
        """
        if one.size != len(self.devices):
            shape = ", ".join(f"{name}: {size}" for name, size in one.shape.items())
            raise UserError(
                f"{self.holder} a mesh {{{shape}}} of {one.size} devices but "
                f"{self.target} has {len(self.devices)}: make the mesh with "
                "target.mesh(...)"
            )
        if not isinstance(one, AbstractMesh):
            there = set(self.devices)
            if all(device in there for device in one.devices.flat):
                return one
        shape = tuple(one.shape.items())
        return _mesh_like(shape, one.axis_types, self.devices)

    def _replicated(self, memory_kind: str | None) -> Sharding:
        axes = (("devices", len(self.devices)),)
        mesh = _mesh_like(axes, (AxisType.Auto,), self.devices)
        return self._named(mesh, PartitionSpec(), memory_kind)

    def _named(self, mesh: Any, spec: Any, memory_kind: str | None) -> NamedSharding:
        try:
            return NamedSharding(mesh, spec, memory_kind=memory_kind)
        except ValueError:
            raise UserError(
                f"{self.holder} memory of kind {memory_kind!r}, which {self.target} "
                "has not: write memory_kind='pinned_host' or 'device'"
            ) from None


def _memory_kind(sharding: Sharding) -> str | None:
    """The memory that it names; None for what is usual on its devices."""
    kind = sharding.memory_kind
    if kind is None or isinstance(getattr(sharding, "mesh", None), AbstractMesh):
        return kind
    try:
        usual = next(iter(sharding.device_set)).default_memory().kind
    except jax.errors.JaxRuntimeError:  # devices that only compile
        usual = "device"
    return None if kind == usual else kind


@functools.lru_cache(maxsize=32)
def _mesh_like(shape: Any, axis_types: Any, devices: tuple[Any, ...]) -> Any:
    return mesh_of(devices, dict(shape), axis_types)
