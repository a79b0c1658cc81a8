"""Layers as functions of their weights, and the shapes of those weights.

Weights are dicts: `kernel` and `bias` of what multiplies, `scale` and `bias` of norms.
They are cast to the dtype of what comes in; norms, softmax and losses count in full.
Shapes: B batch, L length, M length attended to, H heads, K head width, D width.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from experiments.bench.programs._entry import spec

Specs = dict[str, Any]


def linear(w: Any, x: jax.Array) -> jax.Array:
    """`x @ kernel + bias`, the bias where there is one."""
    y = x @ w["kernel"].astype(x.dtype)
    return y + w["bias"].astype(x.dtype) if "bias" in w else y


def linear_specs(*shape: int, bias: bool = True) -> Specs:
    """Of `[..., inputs, outputs]`."""
    weights = {"kernel": spec(*shape)}
    return weights | {"bias": spec(*shape[:-2], shape[-1])} if bias else weights


def norm_specs(*shape: int, bias: bool = True) -> Specs:
    """Of a norm over `[..., features]`."""
    weights = {"scale": spec(*shape)}
    return weights | {"bias": spec(*shape)} if bias else weights


def layer_norm(w: Any, x: jax.Array) -> jax.Array:
    """Over the last axis (Ba et al. 2016)."""
    return _scaled(w, _standard(x.astype(w["scale"].dtype), (-1,))).astype(x.dtype)


def rms_norm(w: Any, x: jax.Array) -> jax.Array:
    """Over the last axis, the mean left in (Zhang & Sennrich 2019)."""
    wide = x.astype(w["scale"].dtype)
    wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    return (wide * w["scale"]).astype(x.dtype)


def group_norm(w: Any, x_BYXC: jax.Array, groups: int) -> jax.Array:
    """Over pixels and a group of channels (Wu & He 2018)."""
    parts = x_BYXC.astype(w["scale"].dtype)
    parts = parts.reshape(*x_BYXC.shape[:-1], groups, -1)
    made = _standard(parts, (1, 2, 4)).reshape(x_BYXC.shape)
    return _scaled(w, made).astype(x_BYXC.dtype)


def attend(
    q_BLHK: jax.Array,
    k_BMHK: jax.Array,
    v_BMHK: jax.Array,
    *,
    bias_HLM: jax.Array | None = None,
    causal: bool = False,
) -> jax.Array:
    """Softmax attention by einsums."""
    scores_BHLM = jnp.einsum("BLHK,BMHK->BHLM", q_BLHK, k_BMHK).astype(float)
    scores_BHLM = scores_BHLM * q_BLHK.shape[-1] ** -0.5
    if bias_HLM is not None:
        scores_BHLM = scores_BHLM + bias_HLM
    if causal:
        seen_LM = jnp.tril(jnp.ones(scores_BHLM.shape[-2:], bool))
        scores_BHLM = jnp.where(seen_LM, scores_BHLM, -1e9)
    probs_BHLM = jax.nn.softmax(scores_BHLM).astype(v_BMHK.dtype)
    return jnp.einsum("BHLM,BMHK->BLHK", probs_BHLM, v_BMHK)


def attention(
    w: Any, x_BLD: jax.Array, from_BMD: jax.Array, num_heads: int, **how: Any
) -> jax.Array:
    """Queries of one sequence, keys and values of another, and the way out."""
    cut = lambda a: a.reshape(*a.shape[:2], num_heads, -1)
    q, k, v = (
        cut(linear(w[name], source))
        for name, source in (("q", x_BLD), ("k", from_BMD), ("v", from_BMD))
    )
    made_BLHK = attend(q, k, v, **how)
    return linear(w["out"], made_BLHK.reshape(*x_BLD.shape[:2], -1))


def attention_specs(*stack: int, width: int, source: int | None = None) -> Specs:
    """Of `attention` without biases; `source` is the width of what is attended to."""
    shape = lambda inputs: linear_specs(*stack, inputs, width, bias=False)
    source = source or width
    return {
        "q": shape(width),
        "k": shape(source),
        "v": shape(source),
        "out": shape(width),
    }


def convolve(w: Any, x_BYXC: jax.Array, stride: int = 1, groups: int = 1) -> jax.Array:
    """Padded to keep the size where the stride is 1; the bias where there is one."""
    y = jax.lax.conv_general_dilated(
        x_BYXC,
        w["kernel"].astype(x_BYXC.dtype),
        (stride, stride),
        "SAME",
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )
    return y + w["bias"].astype(y.dtype) if "bias" in w else y


def convolve_specs(
    *stack: int, kernel: int, inputs: int, outputs: int, bias: bool = True
) -> Specs:
    """Of `convolve`; `inputs` counts those of one group."""
    weights = {"kernel": spec(*stack, kernel, kernel, inputs, outputs)}
    return weights | {"bias": spec(*stack, outputs)} if bias else weights


def conv_norm(
    w: Any, statistics: Any, x_BYXC: jax.Array, stride: int = 1, groups: int = 1
) -> tuple[jax.Array, Any]:
    """Convolution, then batch norm (Ioffe & Szegedy 2015) and the moved statistics."""
    x_BYXC = convolve(w, x_BYXC, stride, groups)
    wide = x_BYXC.astype(w["norm"]["scale"].dtype)
    mean, var = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
    made = _scaled(w["norm"], (wide - mean) * jax.lax.rsqrt(var + 1e-3))
    now = jax.lax.stop_gradient({"mean": mean, "var": var})
    move = lambda old, new: 0.99 * old + 0.01 * new
    moved = jax.tree.map(move, statistics["norm"], now)
    return made.astype(x_BYXC.dtype), {"norm": moved}


def conv_norm_specs(*stack: int, kernel: int, inputs: int, outputs: int) -> Specs:
    """Of `conv_norm`."""
    weights = convolve_specs(
        *stack, kernel=kernel, inputs=inputs, outputs=outputs, bias=False
    )
    return weights | {"norm": norm_specs(*stack, outputs)}


def statistics_of(weights: Any) -> Any:
    """The running means and variances that go with the norms of a tree of weights."""
    if isinstance(weights, list):
        return [statistics_of(part) for part in weights]
    if not isinstance(weights, dict):
        return None
    if "scale" in weights:
        return {"mean": weights["scale"], "var": weights["scale"]}
    found = {name: statistics_of(part) for name, part in weights.items()}
    return {name: part for name, part in found.items() if part} or None


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over all labels, in nats."""
    losses = optax.losses.softmax_cross_entropy_with_integer_labels(
        logits.astype(float), labels
    )
    return losses.mean()


def _standard(x: jax.Array, axes: tuple[int, ...]) -> jax.Array:
    x = x - x.mean(axes, keepdims=True)
    return x * jax.lax.rsqrt((x**2).mean(axes, keepdims=True) + 1e-6)


def _scaled(w: Any, x: jax.Array) -> jax.Array:
    return x * w["scale"] + w["bias"] if "bias" in w else x * w["scale"]
