"""A traced step that names devices of this machine, carried over to a target's.

Constraints, `shard_map`, `jax.jit`'s own shardings and what else names a mesh, all of
it is in the step's jaxpr. There it is replaced, and nothing is traced again.
"""

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.experimental.layout import Format
from jax.sharding import (
    AbstractMesh,
    AxisType,
    Mesh,
    NamedSharding,
    PartitionSpec,
    Sharding,
)

from revremat._compat import ambient_mesh
from revremat._errors import UserError
from revremat.xla.target._specs import Carrier
from revremat.xla.target._targets import Target


def carry_over(traced: Any, target: Target) -> Any:
    """The same traced step on the target's devices.

    Args:
      traced: A `jax.stages.Traced`.
      target: Where it will run.

    Returns:
      `traced` itself where it names no other devices.

    Raises:
      UserError: It names devices of which the target has another number.
    """
    carrier = Carrier(tuple(target.devices), target.spec, "the program holds")
    walk = _Walk(carrier)
    params = {name: walk.value(value) for name, value in traced._params.items()}
    before = traced._meta_tys_flat
    types = walk.on_one_mesh(list(map(walk.argument, before, params["in_shardings"])))
    if not types:  # Nothing else says which devices these are.
        nowhere = params["out_shardings"]
        params["out_shardings"] = (carrier.sharding(None),) * len(nowhere)
    same = all(params[name] is value for name, value in traced._params.items())
    if same and all(a is b for a, b in zip(types, before, strict=True)):
        return traced
    return type(traced)(
        types,
        params,
        traced._in_tree,
        traced.out_tree,
        traced._consts,
        traced._fun_sourceinfo,
    )


class _Walk:
    """Replaces meshes, shardings and devices in what a jaxpr is made of."""

    def __init__(self, carrier: Carrier):
        self.carrier = carrier
        self.there = set(carrier.devices)
        self.seen: dict[int, tuple[Any, Any]] = {}

    def value(self, one: Any) -> Any:
        """`one` with everything in it replaced; itself where there is nothing."""
        if isinstance(one, Sharding):
            return self.sharding(one)
        if isinstance(one, Mesh):
            return one if one.empty else self.carrier.mesh(one)
        if isinstance(one, jax.Device):
            return self.device(one)
        if isinstance(one, Format):
            return self._recomputed(one, one.sharding, lambda s: Format(one.layout, s))
        if isinstance(one, tuple | list):
            made = [self.value(item) for item in one]
            if all(a is b for a, b in zip(made, one, strict=True)):
                return one
            return type(one)(*made) if hasattr(one, "_fields") else type(one)(made)
        if hasattr(one, "eqns"):
            if id(one) not in self.seen:
                self.seen[id(one)] = one, self.jaxpr(one)
            return self.seen[id(one)][1]
        return one

    def _recomputed(self, one: Any, part: Any, build: Callable[[Any], Any]) -> Any:
        made = self.value(part)
        return one if made is part else build(made)

    def jaxpr(self, one: Any) -> Any:
        """A jaxpr, closed or not."""
        eqns = [self.equation(eqn) for eqn in one.eqns]
        if all(a is b for a, b in zip(eqns, one.eqns, strict=True)):
            return one
        try:
            return one.replace(eqns=eqns)
        except TypeError:  # a closed one, where JAX has another class for these
            return one.replace(jaxpr=one.jaxpr.replace(eqns=eqns))

    def equation(self, eqn: Any) -> Any:
        """An equation of the same variables."""
        params = {name: self.value(value) for name, value in eqn.params.items()}
        same = all(params[name] is value for name, value in eqn.params.items())
        return eqn if same else eqn.replace(params=params)

    def sharding(self, one: Sharding) -> Sharding:
        """A sharding that the program names."""
        if isinstance(one, NamedSharding) and isinstance(one.mesh, AbstractMesh):
            return one
        if not hasattr(one, "device_set") or one.device_set <= self.there:
            return one
        if isinstance(one, NamedSharding):
            return self.carrier.sharding(one)
        if len(one.device_set) == len(self.there) == 1:
            return self.carrier.sharding(one)
        if len(one.device_set) == len(self.there) and hasattr(one, "_hlo_sharding"):
            devices = self.carrier.devices
            return type(one)(devices, one._hlo_sharding)  # pyright: ignore
        raise self.refusal(f"{len(one.device_set)} devices of this machine")

    def device(self, one: Any) -> Any:
        """A device that the program names."""
        if one in self.there:
            return one
        if len(self.there) == 1:
            return self.carrier.devices[0]
        raise self.refusal(f"the device {one}")

    def on_one_mesh(self, types: list[Any]) -> list[Any]:
        """Arguments without a sharding lie on the mesh of the others, if it is one."""
        bare = self.carrier.sharding(None)
        named = {one.sharding for one in types if one.sharding != bare}
        meshes = {one.mesh for one in named if isinstance(one, NamedSharding)}
        if len(meshes) != 1 or not isinstance(bare, NamedSharding):
            return types
        (mesh,) = meshes
        if mesh.axis_types != (AxisType.Auto,) * len(mesh.axis_names):
            return types
        whole = NamedSharding(mesh, PartitionSpec())
        return [
            one.replace(sharding=whole) if one.sharding == bare else one
            for one in types
        ]

    def refusal(self, what: str) -> UserError:
        """What to write in place of devices that mean nothing on the target."""
        return UserError(
            f"the program places values on {what}, which {self.carrier.target} "
            "has not: make a mesh with target.mesh(...) and place them by "
            "jax.NamedSharding(mesh, jax.P())"
        )

    def argument(self, kind: Any, named: Any) -> Any:
        """An argument of the step; where jit names its sharding, that one holds."""
        moved = self.carrier.sharding(kind.sharding)
        if isinstance(named, Sharding) and moved == self.carrier.sharding(None):
            moved = named
        if moved is kind.sharding and kind.committed:
            return kind
        layout = kind.format and kind.format.layout
        placed = Format(layout, moved) if layout else None
        return kind.replace(sharding=moved, format=placed, committed=True)


@contextlib.contextmanager
def carried_ambient_mesh(target: Target) -> Iterator[None]:
    """Within it, the mesh that is set is the same one on the target's devices.

    Raises:
      UserError: The mesh of `jax.set_mesh` has another number of devices.
    """
    carrier = Carrier(tuple(target.devices), target.spec, "jax.set_mesh was given")
    mesh, is_old = ambient_mesh()
    if mesh is None or (is_old and mesh.size != target.num_devices):
        yield
        return
    carried = carrier.mesh(mesh)
    if carried is mesh:
        yield
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of `with mesh:`
        entered = carried if is_old else jax.set_mesh(carried)
        with entered:
            yield


_PLATFORM = re.compile(r"AbstractMesh\([^)]*platform=(\w+)")
_TYPES = re.compile(r"has type (\S+)(?: but .*)? has type (\S+?)\.?\s")


def is_mixture(error: Exception) -> bool:
    """Whether JAX refuses two meshes only because their devices are of two kinds."""
    text = str(error)
    if "should match the mesh passed to shard_map" in text:
        return True
    alike = any(one == other for one, other in _TYPES.findall(text))
    return alike or len(set(_PLATFORM.findall(text))) > 1
