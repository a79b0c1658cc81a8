"""Dropout whose derivative keeps its mask, one byte an element."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from revremat import _compat
from revremat._errors import UserError


def dropout(x: Any, key: Any, rate: float, *, name: str | None = None) -> Any:
    """Elements set to zero at a rate, the others scaled up.

    The mask lies where `x` does. Within `jax.shard_map`, every shard needs a key of its
    own: `sharding.Layout.key` makes them.

    Args:
      x: Any array of floats.
      key: A JAX key; None drops nothing.
      rate: Between 0 and 1, that excluded.
      name: What plans and `jax.checkpoint` policies call the mask.

    Raises:
      UserError: The rate is none, or shards would share a key.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from revremat import layers
      >>> dropped = layers.dropout(jnp.ones(8), jax.random.key(0), 0.5)
      >>> sorted({*dropped.tolist()})
      [0.0, 2.0]
    """
    if not 0 <= rate < 1:
        raise UserError(f"layers.dropout: the rate is {rate}; write 0 or more, below 1")
    if key is None or rate == 0:
        return x
    if shared := _compat.varying_axes(x) - _compat.varying_axes(key):
        raise UserError(
            f"layers.dropout: shards along {sorted(shared)} have one key, and would "
            "drop the same elements; write layout.key(key, ...) with the names of x"
        )
    where = jax.typeof(x).sharding
    is_explicit = bool(where.mesh.explicit_axes)
    placed = {"out_sharding": where} if is_explicit else {}
    mask = jax.random.bernoulli(key, 1 - rate, x.shape, **placed)
    if name is not None:
        mask = checkpoint_name(mask, name)
    return jnp.where(mask, x / (1 - rate), jnp.zeros((), x.dtype))
