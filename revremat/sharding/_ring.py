"""Ring attention: exact softmax attention over a sequence that is cut over devices.

Shapes: B batch, L length on one device, H heads, K width of a head; P parts of a
device's piece of the sequence (two where it is causal), N length of a part.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from revremat import _compat
from revremat._errors import UserError
from revremat.sharding._layout import Layout

_NAMES = "batch", "length", "heads", "kv"
Causal = Literal[False, "zigzag"]


def zigzag(x: Any, parts: int, *, axis: int = 1, undo: bool = False) -> Any:
    """A sequence in the order in which causal attention is balanced over devices.

    Of `2 * parts` pieces, a device holds one from the front and one from the back, so
    that all have equally much to attend to. Tokens are put in this order once, before
    the model, and their positions with them.

    Source: Brandon et al. 2023, "Striped Attention", and its variants in two pieces.

    Args:
      x: The whole sequence.
      parts: Devices that it is cut over.
      axis: Of the sequence.
      undo: From that order to the usual one.

    Raises:
      UserError: The length is no multiple of `2 * parts`.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat import sharding
      >>> sharding.zigzag(jnp.arange(8), 2, axis=0)
      Array([0, 1, 6, 7, 2, 3, 4, 5], dtype=int32)
    """
    length = x.shape[axis]
    if length % (2 * parts):
        raise UserError(
            f"sharding.zigzag: a length of {length} has no {2 * parts} equal pieces; "
            f"write a multiple of {2 * parts}"
        )
    order = [piece for i in range(parts) for piece in (i, 2 * parts - 1 - i)]
    if undo:
        order = sorted(range(2 * parts), key=order.__getitem__)
    pieces = jnp.split(x, 2 * parts, axis=axis)
    return jnp.concatenate([pieces[piece] for piece in order], axis=axis)


def ring_attention(
    layout: Layout,
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: Causal = False,
    scale: float | None = None,
    block: int = 1024,
) -> Any:
    """Softmax attention whose keys and values go around a ring of devices.

    The rules of the layout cut `length` over one mesh axis. A device has its piece of
    the queries, and sees one piece of keys and values after the other, while the next
    one is on its way. The softmax is exact, and no device ever holds scores of more
    than `block` keys. The derivative keeps `q`, `k`, `v`, the result and one float32
    number for each query and head.

    Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers".

    Args:
      layout: Where values lie; `length` is cut over one axis.
      q: Queries, `[B, length, H, K]`; within `jax.shard_map`, a device's piece.
      k: Keys.
      v: Values.
      causal: `"zigzag"` if a position sees only itself and those before it, and the
        sequence is in the order of `sharding.zigzag`.
      scale: Of the scores; by default one over the root of `K`.
      block: How many keys scores are computed for at a time.

    Returns:
      What each query attends to, as `q`.

    Raises:
      UserError: The rules cut `length` over no axis or over several, or `causal` is
        something else.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import sharding
      >>> mesh = rr.target("cpu:2").mesh({"data": 1, "context": 2})
      >>> rules = sharding.context_parallel("context")
      >>> layout = sharding.Layout(mesh, rules)
      >>> x = jnp.ones((1, 8, 2, 4))
      >>> sharding.ring_attention(layout, x, x, x).shape
      (1, 8, 2, 4)
    """
    axes = layout.rules.activations.get("length", ())
    if len(axes) != 1:
        told = " and ".join(axes) or "no axis"
        raise UserError(
            f"sharding.ring_attention: `length` is cut over {told}; the ring is along "
            "one mesh axis, as in sharding.context_parallel"
        )
    if causal not in (False, "zigzag"):
        raise UserError(
            f"sharding.ring_attention: causal={causal!r}; put the sequence in the "
            'order of sharding.zigzag and write causal="zigzag", or write False'
        )
    factor: float = q.shape[-1] ** -0.5 if scale is None else scale
    size = layout.mesh.shape[axes[0]]
    ring = Ring(axes[0], size, causal == "zigzag", factor, block)
    if layout.is_manual():
        return _attend(q, k, v, ring)
    spec = layout.spec(q, *_NAMES)
    attend = partial(_attend, ring=ring)
    mapped = jax.shard_map(
        attend, mesh=layout.mesh, in_specs=(spec,) * 3, out_specs=spec
    )
    return mapped(q, k, v)


class Ring(NamedTuple):
    """What one attention is: its mesh axis, size, order, scale and block."""

    axis: str
    size: int
    is_causal: bool
    scale: float
    block: int

    @property
    def parts(self) -> int:
        """Into how many parts a device's piece falls."""
        return 2 if self.is_causal else 1

    def onward(self, values: Any) -> Any:
        """To the next device, from the one before."""
        around = [(i, (i + 1) % self.size) for i in range(self.size)]
        return jax.tree.map(lambda x: jax.lax.ppermute(x, self.axis, around), values)

    def around(self, one: Any, state: Any) -> Any:
        """Runs `one(step, state)` for each step: the first by itself, others in a loop.

        In a loop, what is sent on hides under what is computed beside it. Only the last
        step sends on what nobody needs.
        """
        state = one(0, state)
        return jax.lax.fori_loop(1, self.size, one, state) if self.size > 1 else state

    def pairs(self, step: Any) -> Iterator[tuple[Any, Any, bool]]:
        """Parts of queries and of keys that meet, and whether it is on the diagonal.

        Every device has equally much to do: the later part of its queries sees the
        earlier part of all others' keys, and beside that one pair more.

        Args:
          step: How far the keys have come; the number 0 for a device's own.
        """
        if not self.is_causal:
            yield 0, 0, False
        elif isinstance(step, int):
            yield from ((0, 0, True), (1, 0, False), (1, 1, True))
        else:
            yield 1, 0, False
            # These keys come from the device `step` before this one, around the ring.
            more = jnp.where(jax.lax.axis_index(self.axis) >= step, 0, 1)
            yield more, more, False


class _Sums(NamedTuple):
    """Softmax so far: its largest score, its sum, and the sum of values."""

    most: Any
    total: Any
    values: Any


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(q_BLHK: Any, k_BLHK: Any, v_BLHK: Any, ring: Ring) -> Any:
    return _forward(q_BLHK, k_BLHK, v_BLHK, ring)[0]


def _forward(q_BLHK, k_BLHK, v_BLHK, ring):
    q_P, *kv = (_parted(x, ring.parts) for x in (q_BLHK, k_BLHK, v_BLHK))
    wide = jnp.promote_types(q_P.dtype, jnp.float32)
    parts, batch, length, heads, _ = q_P.shape
    rows = parts, batch, heads, length
    start = _Sums(
        jnp.full(rows, jnp.finfo(wide).min, wide),
        jnp.zeros(rows, wide),
        jnp.zeros(q_P.shape, wide),
    )
    start = _compat.varying_like(start, q_P)

    def one_step(step, state):
        sums, kv = state
        following = ring.onward(kv)
        for one, other, is_diagonal in ring.pairs(step):
            k, v = (_part(x, other) for x in kv)
            old = _Sums(*(_part(x, one) for x in sums))
            new = _with_keys(old, _part(q_P, one), k, v, ring, is_diagonal)
            put = lambda x, y, at=one: jax.lax.dynamic_update_index_in_dim(x, y, at, 0)
            sums = _Sums(*map(put, sums, new))
        return sums, following

    sums, _ = ring.around(one_step, (start, kv))
    total = jnp.moveaxis(sums.total, 3, 2)[..., None]
    y_BLHK = _whole(sums.values / total).astype(q_BLHK.dtype)
    log_sums = sums.most + jnp.log(sums.total)
    return y_BLHK, (q_BLHK, k_BLHK, v_BLHK, y_BLHK, log_sums)


def _backward(ring, kept, g_BLHK):
    q_BLHK, k_BLHK, v_BLHK, y_BLHK, log_sums = kept
    wide = log_sums.dtype
    q_P, g_P, *kv = (_parted(x, ring.parts) for x in (q_BLHK, g_BLHK, k_BLHK, v_BLHK))
    products = (g_BLHK.astype(wide) * y_BLHK.astype(wide)).sum(-1)
    shared = jnp.moveaxis(_parted(products, ring.parts), 3, 2)
    zeros = jnp.zeros(q_P.shape, wide)
    start = _compat.varying_like((zeros, zeros, zeros), q_P)

    def one_step(step, state):
        (dq, dk, dv), kv = state
        following = ring.onward(kv)
        for one, other, is_diagonal in ring.pairs(step):
            rows = [_part(x, one) for x in (q_P, g_P, log_sums, shared)]
            keys = [_part(x, other) for x in kv]
            more = _gradients(rows, keys, ring, is_diagonal)
            dq = dq.at[one].add(more[0])
            dk, dv = (
                x.at[other].add(y) for x, y in zip((dk, dv), more[1:], strict=True)
            )
        # What belongs to keys goes with them, and arrives at home in the end.
        return (dq, *ring.onward((dk, dv))), following

    (dq, dk, dv), _ = ring.around(one_step, (start, kv))
    like = (dq, q_BLHK), (dk, k_BLHK), (dv, v_BLHK)
    return tuple(_whole(d).astype(x.dtype) for d, x in like)


_attend.defvjp(_forward, _backward)


def _with_keys(sums, q, k, v, ring, is_diagonal):
    """The softmax with more keys, some at a time."""

    def some(sums, keys):
        start, k, v = keys
        scores, seen = _scores(q, k, start, ring, is_diagonal)
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
        return _Sums(most, sums.total * shrink + weights.sum(-1), values), None

    return jax.lax.scan(some, sums, _blocks(k, v, ring.block))[0]


def _gradients(rows, keys, ring, is_diagonal):
    """Of queries, keys and values that meet."""
    (q, g, log_sums, shared), (k, v) = rows, keys
    wide = log_sums.dtype
    product = partial(jnp.einsum, preferred_element_type=wide)

    def some(dq, keys):
        start, k, v = keys
        scores, seen = _scores(q, k, start, ring, is_diagonal)
        weights = jnp.exp(scores - log_sums[..., None])
        weights = weights if seen is None else jnp.where(seen, weights, 0)
        dv = product("bhlm,blhk->bmhk", weights.astype(g.dtype), g)
        dweights = product("blhk,bmhk->bhlm", g, v)
        dscores = weights * (dweights - shared[..., None]) * ring.scale
        dscores = dscores.astype(q.dtype)
        dk = product("bhlm,blhk->bmhk", dscores, q)
        return dq + product("bhlm,bmhk->blhk", dscores, k), (dk, dv)

    start = _compat.varying_like(jnp.zeros(q.shape, wide), q)
    dq, stacked = jax.lax.scan(some, start, _blocks(k, v, ring.block))
    join = lambda x: jnp.moveaxis(x, 0, 1).reshape(k.shape)
    return dq, *map(join, stacked)


def _scores(q, k, start, ring, is_diagonal):
    """Of queries and some keys, and which of them are seen."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k, preferred_element_type=wide)
    scores *= ring.scale
    if not is_diagonal:
        return scores, None
    at = start + jnp.arange(k.shape[1])
    seen = jnp.arange(q.shape[1])[:, None] >= at
    return jnp.where(seen, scores, jnp.finfo(wide).min), seen


def _blocks(k, v, block):
    """Where blocks of keys begin, and their keys and values."""
    batch, length, *rest = k.shape
    size = next(n for n in range(min(block, length), 0, -1) if length % n == 0)
    cut = lambda x: jnp.moveaxis(x.reshape(batch, length // size, size, *rest), 1, 0)
    return jnp.arange(0, length, size), cut(k), cut(v)


def _parted(x, parts):
    """Parts of the length apart, in front: `[P, B, N, ...]`."""
    batch, length, *rest = x.shape
    return jnp.moveaxis(x.reshape(batch, parts, length // parts, *rest), 1, 0)


def _whole(x):
    parts, batch, length, *rest = x.shape
    return jnp.moveaxis(x, 0, 1).reshape(batch, parts * length, *rest)


def _part(x, at):
    return jax.lax.dynamic_index_in_dim(x, at, 0, keepdims=False)
