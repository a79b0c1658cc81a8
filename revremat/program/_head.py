"""A loss head that never holds all logits."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from revremat._action import RECOMPUTE
from revremat.program._api import block
from revremat.program._by_hand import act
from revremat.program.arrays._avals import promoted


def cross_entropy(
    hidden: Any, table: Any, labels: Any, *, chunks: int | None = None
) -> Any:
    """Mean cross-entropy of a large vocabulary, in float32.

    With a large vocabulary the logits, `[batch, length, vocabulary]`, are often the
    largest array of the whole step. In chunks along the length only one chunk's are
    there at a time; their gradient is computed from recomputed logits.

    Args:
      hidden: `[batch, length, width]`, the last layer's output.
      table: `[width, vocabulary]`, the output embedding.
      labels: `[batch, length]`, integers; negative ones do not count.
      chunks: How many chunks; must divide the length. By default a block named `head`
        for plans to decide about: `RECOMPUTE(chunks=8)`.

    Returns:
      A float32 number: the mean over labels that count.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> labels = jnp.zeros((1, 4), int)
      >>> hidden, weights = jnp.ones((1, 4, 2)), jnp.ones((2, 8))
      >>> loss = rr.cross_entropy(hidden, weights, labels, chunks=2)
      >>> f"{loss:.4f}"
      '2.0794'
    """
    total = block(_total, "head", split=(1, None, 1))
    if chunks is not None:
        total = act(total, (RECOMPUTE(chunks=chunks),), "rr.cross_entropy")
    losses, count = total(hidden, table, labels), jnp.maximum((labels >= 0).sum(), 1)
    return losses / count.astype(losses.dtype)


def _total(
    hidden_BTD: Float[Array, "B T D"],
    table_DV: Float[Array, "D V"],
    labels_BT: Int[Array, "B T"],
) -> Float[Array, ""]:
    dtype = promoted(hidden_BTD, table_DV, jnp.float32)
    logits_BTV = jnp.einsum(
        "btd,dv->btv", hidden_BTD, table_DV, preferred_element_type=dtype
    )
    at_label_BT = jnp.take_along_axis(
        logits_BTV, jnp.maximum(labels_BT, 0)[..., None], axis=-1
    )[..., 0]
    losses_BT = jax.nn.logsumexp(logits_BTV, axis=-1) - at_label_BT
    return jnp.where(labels_BT >= 0, losses_BT, 0).sum()
