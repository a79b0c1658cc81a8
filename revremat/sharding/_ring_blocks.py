"""Attention to one piece of keys by plain products, some keys at a time.

Shapes: B batch, N length of the queries, M of the keys, H heads, K width of a head.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from revremat import _compat
from revremat.program.arrays._avals import promoted


class _Sums(NamedTuple):
    """Softmax so far: its largest score, its sum, and the sum of values."""

    most: Any
    total: Any
    values: Any


@dataclass(frozen=True)
class Blocks:
    """Scores of no more than `size` keys at a time; runs everywhere, in any dtype.

    Attributes:
      size: How many keys.
    """

    size: int

    def forward(self, q, k, v, *, causal, scale):
        """As `RingKernel.forward`, in float32 at least."""
        wide = promoted(q.dtype, jnp.float32)
        batch, length, heads, _ = q.shape
        rows = batch, heads, length
        start = _Sums(
            jnp.full(rows, jnp.finfo(wide).min, wide),
            jnp.zeros(rows, wide),
            jnp.zeros((*q.shape[:3], v.shape[-1]), wide),
        )

        def some(sums, keys):
            return _with_keys(sums, q, *keys, causal=causal, scale=scale), None

        start = _compat.varying_like(start, q)
        sums = jax.lax.scan(some, start, self._cut(k, v))[0]
        y = sums.values / jnp.moveaxis(sums.total, 2, 1)[..., None]
        return y, sums.most + jnp.log(sums.total)

    def backward(self, q, k, v, y, log_sums, g, *, causal, scale):
        """As `RingKernel.backward`, in float32 at least."""
        wide = log_sums.dtype
        shared = jnp.moveaxis((g.astype(wide) * y.astype(wide)).sum(-1), 2, 1)
        product = partial(jnp.einsum, preferred_element_type=wide)

        def some(dq, keys):
            start, k, v = keys
            scores, seen = _scores(q, k, start, causal=causal, scale=scale)
            weights = jnp.exp(scores - log_sums[..., None])
            weights = weights if seen is None else jnp.where(seen, weights, 0)
            dv = product("bhlm,blhk->bmhk", weights.astype(g.dtype), g)
            dweights = product("blhk,bmhk->bhlm", g, v)
            dscores = weights * (dweights - shared[..., None]) * scale
            dscores = dscores.astype(q.dtype)
            dk = product("bhlm,blhk->bmhk", dscores, q)
            return dq + product("bhlm,bmhk->blhk", dscores, k), (dk, dv)

        start = _compat.varying_like(jnp.zeros(q.shape, wide), q)
        dq, stacked = jax.lax.scan(some, start, self._cut(k, v))
        dk, dv = (jnp.moveaxis(x, 0, 1) for x in stacked)
        return dq, dk.reshape(k.shape), dv.reshape(v.shape)

    def _cut(self, k, v):
        """Where blocks of keys begin, and their keys and values."""
        batch, length = k.shape[:2]
        few = min(self.size, length)
        size = next(n for n in range(few, 0, -1) if length % n == 0)
        cut = lambda x: x.reshape(batch, length // size, size, *x.shape[2:])
        along = lambda x: jnp.moveaxis(cut(x), 1, 0)
        return jnp.arange(0, length, size), along(k), along(v)


def _with_keys(sums, q, start, k, v, *, causal, scale):
    """The softmax with more keys."""
    scores, seen = _scores(q, k, start, causal=causal, scale=scale)
    most = jnp.maximum(sums.most, scores.max(-1))
    weights = jnp.exp(scores - most[..., None])
    weights = weights if seen is None else jnp.where(seen, weights, 0)
    shrink = jnp.exp(sums.most - most)
    more = jnp.einsum(
        "bhlm,bmhk->blhk",
        weights.astype(v.dtype),
        v,
        preferred_element_type=sums.values.dtype,
    )
    values = sums.values * jnp.moveaxis(shrink, 2, 1)[..., None] + more
    return _Sums(most, sums.total * shrink + weights.sum(-1), values)


def _scores(q, k, start, *, causal, scale):
    """Of queries and some keys, and which of them are seen."""
    wide = promoted(q.dtype, jnp.float32)
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k, preferred_element_type=wide)
    scores *= scale
    if not causal:
        return scores, None
    at = start + jnp.arange(k.shape[1])
    seen = jnp.arange(q.shape[1])[:, None] >= at
    return jnp.where(seen, scores, jnp.finfo(wide).min), seen
