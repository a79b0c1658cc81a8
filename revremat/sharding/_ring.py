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
from revremat.program.arrays._avals import promoted
from revremat.sharding._layout import Layout
from revremat.sharding._ring_blocks import Blocks
from revremat.sharding._ring_kernels import RingKernel

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
    kernel: RingKernel | None = None,
) -> Any:
    """Softmax attention whose keys and values go around a ring of devices.

    The rules of the layout cut `length` over one mesh axis. A device has its piece of
    the queries, and sees one piece of keys and values after the other, while the next
    one is on its way. The softmax is exact, and no device ever holds scores of more
    than `block` keys, or none at all where there is a `kernel`. The derivative keeps
    `q`, `k`, `v`, the result and one float32 number for each query and head.

    Source: Liu et al. 2023, "Ring Attention with Blockwise Transformers".

    Args:
      layout: Where values lie; `length` is cut over one axis.
      q: Queries, `[B, length, H, K]`; within `jax.shard_map`, a device's piece.
      k: Keys.
      v: Values.
      causal: `"zigzag"` if a position sees only itself and those before it, and the
        sequence is in the order of `sharding.zigzag`.
      scale: Of the scores; by default one over the root of `K`.
      block: How many keys scores are computed for at a time; of no use to a kernel.
      kernel: What attends to one piece of keys: `sharding.CudnnKernel()`, or one of
        your own. By default plain products, which run everywhere.

    Returns:
      What each query attends to, as `q`.

    Raises:
      UserError: The rules cut `length` over no axis or over several, `causal` is
        something else, or the shapes do not fit.

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
    size = layout.mesh.shape[axes[0]]
    pieces = 1 if layout.is_manual() else size
    _check_shapes(q, k, v, causal=bool(causal), pieces=pieces)
    if block < 1:
        raise UserError(f"sharding.ring_attention: block={block}; write 1 or more")
    if kernel is not None and not isinstance(kernel, RingKernel):
        raise UserError(
            f"sharding.ring_attention: kernel={kernel!r} has no forward and backward; "
            "write sharding.CudnnKernel(), or None for plain products"
        )
    factor: float = q.shape[-1] ** -0.5 if scale is None else scale
    attends = Blocks(block) if kernel is None else kernel
    ring = Ring(axes[0], size, causal == "zigzag", factor, attends)
    if layout.is_manual():
        return _attend(q, k, v, ring)
    spec = layout.spec(q, *_NAMES)
    layout.spec(k, *_NAMES)  # keys may be of another length, that has to divide, too
    attend = partial(_attend, ring=ring)
    mapped = jax.shard_map(
        attend,
        mesh=layout.mesh,
        in_specs=(spec,) * 3,
        out_specs=spec,
        # Kernels rarely say of their results along which axes they differ.
        check_vma=kernel is None,
    )
    return mapped(q, k, v)


def _check_shapes(q: Any, k: Any, v: Any, *, causal: bool, pieces: int) -> None:
    """Refuses what no product would refuse in the user's words."""
    told = ", ".join(f"{n} {x.shape}" for n, x in zip("qkv", (q, k, v), strict=True))
    batch_heads = [(x.ndim, x.shape[0], x.shape[2:]) for x in (q, k, v)]
    if len({*batch_heads}) > 1 or q.ndim != 4 or k.shape != v.shape:
        raise UserError(
            f"sharding.ring_attention: {told} do not fit; write [batch, length, heads, "
            "width], keys and values repeated for all heads of queries"
        )
    if causal and (q.shape != k.shape or q.shape[1] % (2 * pieces)):
        raise UserError(
            f'sharding.ring_attention: {told} have no order for causal="zigzag"; write '
            f"one length for all, a multiple of {2 * pieces}"
        )


class Ring(NamedTuple):
    """What one attention is: its mesh axis, size, order, scale, and what computes."""

    axis: str
    size: int
    is_causal: bool
    scale: float
    kernel: RingKernel

    @property
    def parts(self) -> int:
        """Into how many parts a device's piece falls."""
        return 2 if self.is_causal else 1

    def onward(self, values: Any) -> Any:
        """To the next device, from the one before; nowhere, where there is one."""
        if self.size == 1:
            return values
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


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(q_BLHK: Any, k_BLHK: Any, v_BLHK: Any, ring: Ring) -> Any:
    return _forward(q_BLHK, k_BLHK, v_BLHK, ring)[0]


def _forward(q_BLHK, k_BLHK, v_BLHK, ring):
    q_P, *kv = (_parted(x, ring.parts) for x in (q_BLHK, k_BLHK, v_BLHK))
    wide = promoted(q_P.dtype, jnp.float32)
    parts, batch, length, heads, _ = q_P.shape
    nothing = jnp.full((parts, batch, heads, length), jnp.finfo(wide).min, wide)
    start = _compat.varying_like((jnp.zeros(q_P.shape, wide), nothing), q_P)

    def one_step(step, state):
        seen, kv = state
        following = ring.onward(kv)
        for one, other, is_diagonal in ring.pairs(step):
            pair = _part(q_P, one), *(_part(x, other) for x in kv)
            more = ring.kernel.forward(*pair, causal=is_diagonal, scale=ring.scale)
            joined = _joined([_part(x, one) for x in seen], more)
            put = lambda x, y, at=one: jax.lax.dynamic_update_index_in_dim(x, y, at, 0)
            seen = tuple(map(put, seen, joined))
        return seen, following

    (y_P, log_sums), _ = ring.around(one_step, (start, kv))
    y_BLHK = _whole(y_P).astype(q_BLHK.dtype)
    return y_BLHK, (q_BLHK, k_BLHK, v_BLHK, y_BLHK, log_sums)


def _backward(ring, kept, g_BLHK):
    *arrays, log_sums = kept
    q_P, *kv, y_P, g_P = (_parted(x, ring.parts) for x in (*arrays, g_BLHK))
    zeros = lambda x: jnp.zeros(x.shape, log_sums.dtype)
    start = _compat.varying_like(tuple(map(zeros, (q_P, *kv))), q_P)

    def one_step(step, state):
        (dq, *dkv), kv = state
        following = ring.onward(kv)
        for one, other, is_diagonal in ring.pairs(step):
            pair = _part(q_P, one), *(_part(x, other) for x in kv)
            whole = (_part(x, one) for x in (y_P, log_sums, g_P))
            more = ring.kernel.backward(
                *pair, *whole, causal=is_diagonal, scale=ring.scale
            )
            dq = dq.at[one].add(more[0].astype(dq.dtype))
            dkv = [
                x.at[other].add(y.astype(x.dtype))
                for x, y in zip(dkv, more[1:], strict=True)
            ]
        # What belongs to keys goes with them, and arrives at home in the end.
        return (dq, *ring.onward(dkv)), following

    found, _ = ring.around(one_step, (start, kv))
    return tuple(
        _whole(d).astype(x.dtype) for d, x in zip(found, arrays[:3], strict=True)
    )


_attend.defvjp(_forward, _backward)


def _joined(seen, more):
    """Attention to two sets of keys, of attention to each and log sums of both."""
    (y, log_sums), (other, other_sums) = seen, more
    both = jnp.logaddexp(log_sums, other_sums.astype(log_sums.dtype))
    share = lambda sums: jnp.moveaxis(jnp.exp(sums - both), 2, 1)[..., None]
    return y * share(log_sums) + other.astype(y.dtype) * share(other_sums), both


def _parted(x, parts):
    """Parts of the length apart, in front: `[P, B, N, ...]`."""
    batch, length, *rest = x.shape
    return jnp.moveaxis(x.reshape(batch, parts, length // parts, *rest), 1, 0)


def _whole(x):
    parts, batch, length, *rest = x.shape
    return jnp.moveaxis(x, 0, 1).reshape(batch, parts * length, *rest)


def _part(x, at):
    return jax.lax.dynamic_index_in_dim(x, at, 0, keepdims=False)
