"""State that is born sharded: shapes, then shardings, and only then arrays."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from revremat.sharding._rules import Rule, resolve


def abstract_state(
    init: Callable[..., Any], rules: Sequence[Rule], mesh: Mesh, *args: Any
) -> Any:
    """What `init(*args)` would return, as shapes with shardings; allocates nothing.

    Args:
      init: Makes the state, for example parameters and optimizer moments.
      rules: Where its arrays live; see `resolve`.
      mesh: The devices; they need not exist on this machine.
      *args: The arguments of `init`, arrays or `ShapeDtypeStruct`s.

    Returns:
      The state's tree with `jax.ShapeDtypeStruct`s that carry a `NamedSharding`.
    """
    shapes = jax.eval_shape(init, *args)
    return with_shardings(shapes, resolve(rules, shapes, mesh))


def with_shardings(shapes: Any, shardings: Any) -> Any:
    """The same shapes and dtypes, as `ShapeDtypeStruct`s that carry shardings."""
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=where
        ),
        shapes,
        shardings,
    )


def shardings_of(specs: Any) -> Any:
    """The sharding of every leaf."""
    return jax.tree.map(lambda leaf: leaf.sharding, specs)


def init_sharded(init: Callable[..., Any], specs: Any, *args: Any) -> Any:
    """Run `init(*args)` so that no device ever holds more than its own slices.

    Args:
      init: Makes the state.
      specs: What `abstract_state` said of it.
      *args: The arguments of `init`.

    Returns:
      The state, on the devices of the shardings in `specs`.
    """
    return jax.jit(init, out_shardings=shardings_of(specs))(*args)


def bytes_per_device(specs: Any) -> int:
    """Bytes the arrays of a tree take on one device, by their shardings.

    Args:
      specs: Arrays or `ShapeDtypeStruct`s; a leaf without a sharding counts whole.

    Returns:
      Bytes on each device.
    """
    total = 0
    for leaf in jax.tree.leaves(specs):
        sharding = getattr(leaf, "sharding", None)
        shape = sharding.shard_shape(leaf.shape) if sharding else leaf.shape
        total += math.prod(shape) * leaf.dtype.itemsize
    return total
