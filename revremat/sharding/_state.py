"""State that is born sharded: shapes, then shardings, and only then arrays."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from revremat.sharding._logical import names_alone
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

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.sharding import FSDP, abstract_state
      >>> mesh = rr.target("h100:8").mesh({"data": 8})
      >>> init = lambda: jnp.ones((512, 1024))
      >>> specs = abstract_state(init, [FSDP(axis="data")], mesh)
      >>> specs.shape, specs.sharding.spec
      ((512, 1024), P(None, 'data'))
    """
    with names_alone():
        shapes = jax.eval_shape(init, *args)
    return with_shardings(shapes, resolve(rules, shapes, mesh))


def with_shardings(shapes: Any, shardings: Any) -> Any:
    """The same shapes and dtypes, as `ShapeDtypeStruct`s that carry shardings.

    Args:
      shapes: A pytree of arrays or `ShapeDtypeStruct`s.
      shardings: A tree of the same structure, with a sharding at every leaf.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> from revremat.sharding import with_shardings
      >>> rows = jax.NamedSharding(rr.target("h100:8").mesh({"data": 8}), jax.P("data"))
      >>> with_shardings(jnp.ones((16, 2)), rows).sharding.spec
      P('data',)
    """
    return jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=where
        ),
        shapes,
        shardings,
    )


def shardings_of(specs: Any) -> Any:
    """The sharding of every leaf.

    Args:
      specs: A pytree of arrays or `ShapeDtypeStruct`s.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from revremat.sharding import shardings_of
      >>> shardings_of({"x": jax.ShapeDtypeStruct((8,), jnp.float32)})
      {'x': None}
    """
    return jax.tree.map(lambda leaf: leaf.sharding, specs)


def init_sharded(init: Callable[..., Any], specs: Any, *args: Any) -> Any:
    """Run `init(*args)` so that no device ever holds more than its own slices.

    Args:
      init: Makes the state.
      specs: What `abstract_state` said of it.
      *args: The arguments of `init`.

    Returns:
      The state, on the devices of the shardings in `specs`.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.sharding import FSDP, abstract_state, init_sharded
      >>> init = lambda: jnp.ones((512, 1024))
      >>> mesh = rr.target("cpu:2").mesh({"data": 2})
      >>> specs = abstract_state(init, [FSDP(axis="data")], mesh)
      >>> init_sharded(init, specs).sharding.spec
      P(None, 'data')
    """
    return jax.jit(init, out_shardings=shardings_of(specs))(*args)


def bytes_per_device(specs: Any) -> int:
    """Bytes the arrays of a tree take on one device, by their shardings.

    Args:
      specs: Arrays or `ShapeDtypeStruct`s; a leaf without a sharding counts whole.

    Returns:
      Bytes on each device.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> from revremat.sharding import bytes_per_device
      >>> mesh = rr.target("h100:8").mesh({"data": 8})
      >>> rows = jax.NamedSharding(mesh, jax.P("data"))
      >>> bytes_per_device(jax.ShapeDtypeStruct((1024, 8), jnp.float32, sharding=rows))
      4096
    """
    total = 0
    for leaf in jax.tree.leaves(specs):
        sharding = getattr(leaf, "sharding", None)
        shape = sharding.shard_shape(leaf.shape) if sharding else leaf.shape
        total += math.prod(shape) * leaf.dtype.itemsize
    return total
