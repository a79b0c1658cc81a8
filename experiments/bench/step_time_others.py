"""Programs that nobody tuned the step-time estimator for."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import revremat as rr

_Sgd = Callable[[Callable[..., Any], tuple[Any, ...]], rr.Problem]


def _spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _rms_norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def _mean_square(x: jax.Array) -> jax.Array:
    return jnp.mean(x.astype(jnp.float32) ** 2)


def _convolve(x: jax.Array, kernel: jax.Array, stride: int = 1, groups: int = 1) -> Any:
    return jax.lax.conv_general_dilated(
        x,
        kernel.astype(x.dtype),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def conv_blocks(size: int, sgd: _Sgd) -> rr.Problem:
    """Residual blocks in a loop, one of stride 2, and as many written one by one."""
    features, side, batch, depth = ((4, 8, 2, 2), (16, 16, 8, 4), (128, 56, 64, 8))[
        size
    ]
    dtype = jnp.bfloat16 if size == 2 else jnp.float32

    def block(x, kernels):
        first, second = kernels
        with jax.named_scope("block"):
            up = rr.name(_convolve(_rms_norm(x), first), "up")
            return x + rr.name(_convolve(jax.nn.relu(up), second), "down")

    def loss(params, images):
        scanned, halve, unrolled = params
        x, _ = jax.lax.scan(lambda x, k: (block(x, k), None), images, scanned)
        x = _convolve(x, halve, stride=2)
        for kernels in unrolled:
            x = block(x, kernels)
        pooled = jax.lax.reduce_window(
            x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"
        )
        return _mean_square(pooled)

    wide = 2 * features
    small = _spec(depth, 3, 3, features, features)
    large = _spec(3, 3, wide, wide)
    halve = _spec(3, 3, features, wide)
    images = _spec(batch, side, side, features, dtype=dtype)
    params = (small, small), halve, tuple((large, large) for _ in range(depth))
    return sgd(loss, (params, images))


def bottlenecks(size: int, sgd: _Sgd) -> rr.Problem:
    """Residual blocks that narrow, convolve and widen (He et al. 2016)."""
    features, side, batch, depth = ((16, 8, 2, 2), (64, 16, 8, 4), (512, 28, 64, 8))[
        size
    ]
    dtype = jnp.bfloat16 if size == 2 else jnp.float32
    narrow = features // 4

    def block(x, kernels):
        into, across, out_of = kernels
        with jax.named_scope("block"):
            inner = rr.name(_convolve(x, into), "narrow")
            inner = _convolve(jax.nn.relu(_rms_norm(inner)), across)
            inner = jax.nn.relu(_rms_norm(rr.name(inner, "across")))
            return jax.nn.relu(x + rr.name(_convolve(inner, out_of), "wide")), None

    def loss(params, images):
        return _mean_square(jax.lax.scan(block, images, params)[0])

    params = (
        _spec(depth, 1, 1, features, narrow),
        _spec(depth, 3, 3, narrow, narrow),
        _spec(depth, 1, 1, narrow, features),
    )
    return sgd(loss, (params, _spec(batch, side, side, features, dtype=dtype)))


def ssm(size: int, sgd: _Sgd) -> rr.Problem:
    """Diagonal state-space layers by `associative_scan` (Gu and Dao 2023)."""
    rows, length, width, states, depth = (
        (2, 16, 8, 4, 2),
        (4, 256, 64, 8, 4),
        (8, 2048, 1024, 16, 8),
    )[size]
    dtype = jnp.bfloat16 if size == 2 else jnp.float32

    def combine(one, two):
        decay, state = one
        further, added = two
        return decay * further, state * further + added

    def layer(x, weights):
        up, gate, steps, to_state, of_state, rates, down = weights
        normed = _rms_norm(x)
        inner = rr.name(normed @ up, "inner")
        step = jax.nn.softplus(normed @ steps)
        into, out_of = normed @ to_state, normed @ of_state
        decay = jnp.exp(-step[..., None] * jnp.exp(rates))
        added = (step * inner)[..., None] * into[:, :, None, :]
        _, state = jax.lax.associative_scan(combine, (decay, added), axis=1)
        mixed = rr.name(jnp.einsum("blws,bls->blw", state, out_of), "mixed")
        return x + (mixed * jax.nn.silu(normed @ gate)) @ down, None

    def loss(params, x):
        return _mean_square(jax.lax.scan(layer, x, params)[0])

    wide, narrow = (_spec(depth, width, n, dtype=dtype) for n in (width, states))
    rates = _spec(depth, width, states, dtype=dtype)
    params = (wide, wide, wide, narrow, narrow, rates, wide)
    return sgd(loss, (params, _spec(rows, length, width, dtype=dtype)))


def moe(size: int, sgd: _Sgd) -> rr.Problem:
    """Layers of experts, two of which each token is sent to (Lepikhin et al. 2021)."""
    tokens, width, hidden, experts, depth = (
        (32, 16, 32, 4, 2),
        (1024, 64, 256, 8, 4),
        (16384, 1024, 2048, 16, 8),
    )[size]
    dtype = jnp.bfloat16 if size == 2 else jnp.float32
    capacity = 5 * tokens // (2 * experts)  # a quarter more than two of each

    def layer(x, weights):
        router, up, gate, down = weights
        normed = _rms_norm(x)
        chances = jax.nn.softmax((normed @ router).astype(jnp.float32))
        weight, chosen = jax.lax.top_k(chances, 2)
        weight = (weight / weight.sum(-1, keepdims=True)).astype(x.dtype)
        chosen = chosen.reshape(-1)
        sent = jax.nn.one_hot(chosen, experts, dtype=jnp.int32)
        place = ((jnp.cumsum(sent, 0) - 1) * sent).sum(-1)
        given = jnp.repeat(normed, 2, axis=0)
        inbox = jnp.zeros((experts, capacity, width), x.dtype)
        inbox = inbox.at[chosen, place].set(given, mode="drop")
        inbox = rr.name(inbox, "inbox")
        above = rr.name(jnp.einsum("ecw,ewh->ech", inbox, up), "up")
        open_ = rr.name(jnp.einsum("ecw,ewh->ech", inbox, gate), "gate")
        made = jnp.einsum("ech,ehw->ecw", above * jax.nn.silu(open_), down)
        back = made.at[chosen, place].get(mode="fill", fill_value=0)
        back = back.reshape(tokens, 2, width) * weight[..., None]
        return x + rr.name(back.sum(1), "out"), None

    def loss(params, x):
        return _mean_square(jax.lax.scan(layer, x, params)[0])

    up = _spec(depth, experts, width, hidden, dtype=dtype)
    down = _spec(depth, experts, hidden, width, dtype=dtype)
    router = _spec(depth, width, experts, dtype=dtype)
    return sgd(loss, ((router, up, up, down), _spec(tokens, width, dtype=dtype)))


def gqa(size: int, sgd: _Sgd) -> rr.Problem:
    """A decoder with grouped queries, rotary positions and gated MLPs."""
    rows, length, heads, groups, head, hidden, depth, words = (
        (1, 16, 4, 2, 8, 32, 2, 64),
        (4, 128, 8, 2, 16, 256, 4, 512),
        (4, 2048, 16, 4, 128, 5632, 8, 32_768),
    )[size]
    dtype = jnp.bfloat16 if size == 2 else jnp.float32
    width = heads * head
    angles = jnp.arange(length)[:, None] * 1e4 ** (-jnp.arange(head // 2) / (head // 2))

    def turn(x):
        cos, sin = (f(angles)[:, None].astype(x.dtype) for f in (jnp.cos, jnp.sin))
        low, high = jnp.split(x, 2, axis=-1)
        return jnp.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    def attend(x, weights):
        queries, keys, values, out = weights
        q = turn((x @ queries).reshape(rows, length, heads, head))
        k = turn((x @ keys).reshape(rows, length, groups, head))
        v = (x @ values).reshape(rows, length, groups, head)
        q = q.reshape(rows, length, groups, heads // groups, head)
        scores = jnp.einsum("bqghd,bkgd->bghqk", q, k) * head**-0.5
        seen = jnp.tril(jnp.ones((length, length), bool))
        scores = jnp.where(seen, scores, -1e9).astype(jnp.float32)
        mixed = jnp.einsum(
            "bghqk,bkgd->bqghd", jax.nn.softmax(scores).astype(x.dtype), v
        )
        return rr.name(mixed.reshape(rows, length, width), "mixed") @ out

    def layer(x, weights):
        attention, up, gate, down = weights
        x = x + rr.name(attend(_rms_norm(x), attention), "attended")
        normed = _rms_norm(x)
        hidden = rr.name(normed @ up, "up") * jax.nn.silu(
            rr.name(normed @ gate, "gate")
        )
        return x + hidden @ down, None

    def loss(params, ids):
        embedding, layers = params
        x, _ = jax.lax.scan(layer, embedding[ids].astype(dtype), layers)
        logits = (_rms_norm(x) @ embedding.T.astype(dtype)).astype(jnp.float32)
        chances = jax.nn.log_softmax(logits[:, :-1])
        return -jnp.take_along_axis(chances, ids[:, 1:, None], -1).mean()

    square, few = _spec(depth, width, width), _spec(depth, width, groups * head)
    up, down = _spec(depth, width, hidden), _spec(depth, hidden, width)
    layers = (square, few, few, square), up, up, down
    params = (
        _spec(words, width),
        jax.tree.map(lambda s: _spec(*s.shape, dtype=dtype), layers),
    )
    return sgd(loss, (params, _spec(rows, length, dtype=jnp.int32)))


PROGRAMS: dict[str, Callable[[int, _Sgd], rr.Problem]] = {
    "conv_blocks": conv_blocks,
    "bottlenecks": bottlenecks,
    "ssm": ssm,
    "moe": moe,
    "gqa": gqa,
}
