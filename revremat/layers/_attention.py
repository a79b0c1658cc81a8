"""Softmax and attention: what the derivative keeps, it keeps once and narrow.

Shapes: B batch, L length, M length attended to, H heads, K width of a head.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float

from revremat.layers._dropout import dropout
from revremat.program.arrays._avals import promoted


def softmax(
    x: Any,
    *,
    scale: float = 1.0,
    where: Any = None,
    name: str | None = None,
) -> Any:
    """Softmax over the last axis, whose derivative keeps its output, in its own dtype.

    It is computed in float32 at least. Plain autodiff keeps the exponentials in
    float32, and often twice.

    Args:
      x: `[..., n]`, floats.
      scale: What scores are multiplied with before.
      where: Which scores count, booleans that broadcast to `x`; by default all. A row
        of which none counts is zero.
      name: What plans and `jax.checkpoint` policies call the output.

    Returns:
      An array as `x`, of its dtype. There is a reverse derivative only.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from revremat import layers
      >>> scores = jnp.zeros((4, 8), jnp.bfloat16)
      >>> _, pullback = jax.vjp(layers.softmax, scores)
      >>> [(kept.shape, str(kept.dtype)) for kept in jax.tree.leaves(pullback)]
      [((4, 8), 'bfloat16')]
    """
    return _softmax(x, where, scale, name)


def _computed(x, where, scale, name):
    wide = x.astype(promoted(x.dtype, jnp.float32)) * scale
    if where is not None:
        wide = jnp.where(where, wide, jnp.finfo(wide.dtype).min)
    y = jax.nn.softmax(wide, axis=-1)
    if where is not None:
        y = jnp.where(where, y, 0)
    y = y.astype(x.dtype)
    return y if name is None else checkpoint_name(y, name)


_softmax = jax.custom_vjp(_computed, nondiff_argnums=(2, 3))


def _forward(x, where, scale, name):
    y = _computed(x, where, scale, name)
    return y, y


def _backward(scale, name, y, g):
    dtype = promoted(y.dtype, jnp.float32)
    wide, g = y.astype(dtype), g.astype(dtype)
    dx = scale * wide * (g - jnp.sum(wide * g, axis=-1, keepdims=True))
    return dx.astype(y.dtype), None


_softmax.defvjp(_forward, _backward)


def attention(
    q: Float[Array, "B L H K"],
    k: Float[Array, "B M H K"],
    v: Float[Array, "B M H K"],
    *,
    causal: bool = False,
    where: Bool[Array, "..."] | None = None,
    scale: float | None = None,
    key: Any = None,
    rate: float = 0.0,
) -> Float[Array, "B L H K"]:
    """Softmax attention that keeps what Korthikanti et al. count, and names it.

    Beside `q`, `k` and `v` its derivative keeps three values: `probs`, the softmax;
    `probs_mask`, one byte an element, and `probs_dropped`, what is multiplied with `v`.
    The last two are there only if there is dropout. A plan that lists none of them
    recomputes the attention from `q`, `k` and `v`: the paper's selective recompute.

    Source: Korthikanti et al. 2022, sections 4.1 and 5.

    Args:
      q: Queries.
      k: Keys.
      v: Values.
      causal: Whether a position sees only itself and those before it.
      where: Which pairs count, `[L, M]` or what broadcasts to `[B, H, L, M]`.
      scale: Of the scores; by default one over the root of `K`.
      key: For dropout of the softmax; None drops nothing.
      rate: At which that drops.

    Returns:
      What each query attends to.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat import layers
      >>> x = jnp.ones((1, 8, 2, 4))
      >>> layers.attention(x, x, x, causal=True).shape
      (1, 8, 2, 4)
    """
    factor: float = q.shape[-1] ** -0.5 if scale is None else scale
    if causal:
        lengths = q.shape[1], k.shape[1]
        seen = jnp.tril(jnp.ones(lengths, bool), k=lengths[1] - lengths[0])
        where = seen if where is None else where & seen
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k)
    probs = softmax(scores, scale=factor, where=where, name="probs")
    if key is not None and rate:
        probs = dropout(probs, key, rate, name="probs_mask")
        probs = checkpoint_name(probs, "probs_dropped")
    return jnp.einsum("bhlm,bmhk->blhk", probs, v)
