"""Convolutional classifiers: the equal blocks of a stage are one scan."""

from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any

import jax
import jax.numpy as jnp

import revremat as rr
from experiments.bench.programs._entry import (
    Entry,
    Size,
    compute_dtype,
    spec,
    training,
)
from experiments.bench.programs._layers import (
    conv_norm,
    conv_norm_specs,
    convolve,
    convolve_specs,
    cross_entropy,
    linear,
    linear_specs,
    statistics_of,
)
from experiments.models.efficientnet import (
    EFFICIENTNET,
    HEAD_CHANNELS,
    SQUEEZE,
    STAGES,
    STEM_CHANNELS,
    EfficientNetConfig,
    Stage,
)

Block = Callable[..., tuple[jax.Array, Any]]
"""`block(weights, statistics, x, *more)` to what comes out and the new statistics."""


def _stage(first: Block, rest: Block, w: Any, s: Any, x: Any, more: Any = ()) -> Any:
    """A block by itself, then equal ones; `more` is stacked over those."""
    x, moved = first(w["first"], s["first"], x)
    if "rest" not in w:
        return x, {"first": moved}

    def step(x, own):
        w, s, more = own
        return rest(w, s, x, *more)

    x, others = jax.lax.scan(step, x, (w["rest"], s["rest"], more))
    return x, {"first": moved, "rest": others}


def _resnet(target: Any, size: Size) -> rr.Problem:
    del target
    batch, side, width, depths, classes = {
        "tiny": (2, 32, 4, (2, 3), 10),
        "cpu": (4, 64, 16, (2, 4), 10),
        "real": (512, 224, 64, (3, 8, 36, 3), 1000),
    }[size]
    dtype = compute_dtype(size)

    def loss(params, batch):
        s = batch["statistics"]
        x, stem = conv_norm(
            params["stem"], s["stem"], batch["images"].astype(dtype), stride=2
        )
        x = _max_pool(jax.nn.relu(x))
        stages = []
        for k, (w, own) in enumerate(zip(params["stages"], s["stages"], strict=True)):
            first = partial(_bottleneck, stride=2 if k else 1)
            x, moved = _stage(first, _bottleneck, w, own, x)
            stages.append(moved)
        logits = linear(params["head"], x.mean((1, 2)))
        return cross_entropy(logits, batch["labels"]), {"stem": stem, "stages": stages}

    stages, inputs = [], width
    for k, depth in enumerate(depths):
        inner = width * 2**k
        stages.append(
            {
                "first": _bottleneck_specs(inputs=inputs, inner=inner),
                "rest": _bottleneck_specs(depth - 1, inputs=4 * inner, inner=inner),
            }
        )
        inputs = 4 * inner
    params = {
        "stem": conv_norm_specs(kernel=7, inputs=3, outputs=width),
        "stages": stages,
        "head": linear_specs(inputs, classes),
    }
    given = {
        "images": spec(batch, side, side, 3),
        "labels": spec(batch, dtype=jnp.int32),
    }
    return training("resnet_152", loss, params, given, statistics_of(params))


def _bottleneck(w: Any, s: Any, x: jax.Array, stride: int = 1) -> tuple[jax.Array, Any]:
    """1 x 1, 3 x 3 with the stride, 1 x 1, and a skip that is projected if need be."""
    moved = {}
    y, moved["reduce"] = conv_norm(w["reduce"], s["reduce"], x)
    y, moved["middle"] = conv_norm(w["middle"], s["middle"], jax.nn.relu(y), stride)
    y, moved["expand"] = conv_norm(w["expand"], s["expand"], jax.nn.relu(y))
    if "skip" in w:
        x, moved["skip"] = conv_norm(w["skip"], s["skip"], x, stride)
    return jax.nn.relu(x + y), moved


def _bottleneck_specs(*stack: int, inputs: int, inner: int) -> Any:
    conv = partial(conv_norm_specs, *stack)
    found = {
        "reduce": conv(kernel=1, inputs=inputs, outputs=inner),
        "middle": conv(kernel=3, inputs=inner, outputs=inner),
        "expand": conv(kernel=1, inputs=inner, outputs=4 * inner),
    }
    if not stack:
        found["skip"] = conv(kernel=1, inputs=inputs, outputs=4 * inner)
    return found


def _max_pool(x: jax.Array) -> jax.Array:
    window, strides = (1, 3, 3, 1), (1, 2, 2, 1)
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, window, strides, "SAME")


def _efficientnet(target: Any, size: Size) -> rr.Problem:
    """B7, or a small one."""
    del target
    config, batch, of_stages = {
        "tiny": (EfficientNetConfig(32, 0.25, 1.1, num_classes=10), 2, STAGES[:3]),
        "cpu": (EfficientNetConfig(64, 0.5, 1.1, num_classes=10), 4, STAGES[:4]),
        "card": (EFFICIENTNET["B7"], 12, STAGES),
        "real": (EFFICIENTNET["B7"], 32, STAGES),
    }[size]
    dtype = compute_dtype(size)
    counts = [ceil(stage.repeats * config.depth) for stage in of_stages]
    kept = 1 - config.stochastic_depth * jnp.arange(sum(counts)) / sum(counts)

    def loss(params, batch):
        s, key = batch["statistics"], jax.random.wrap_key_data(batch["key"])
        keys = jax.random.split(key, sum(counts) + 1)
        x, stem = conv_norm(
            params["stem"], s["stem"], batch["images"].astype(dtype), stride=2
        )
        x, stages, done = jax.nn.swish(x), [], 0
        for k, stage in enumerate(of_stages):
            first = partial(_mb_conv, stage=stage, stride=stage.stride)
            rest = partial(_mb_conv, stage=stage)
            own = slice(done + 1, done + counts[k])
            more = (keys[own], kept[own])
            pair = params["stages"][k], s["stages"][k]
            x, moved = _stage(first, rest, *pair, x, more)
            stages.append(moved)
            done += counts[k]
        x, last = conv_norm(params["last"], s["last"], x)
        x = _dropout(jax.nn.swish(x).mean((1, 2)), keys[-1], 1 - config.dropout)
        value = cross_entropy(linear(params["head"], x), batch["labels"])
        return value, {"stem": stem, "stages": stages, "last": last}

    inputs, stages = config.scaled(STEM_CHANNELS), []
    stem = conv_norm_specs(kernel=3, inputs=3, outputs=inputs)
    for stage, count in zip(of_stages, counts, strict=True):
        outputs = config.scaled(stage.channels)
        found = {"first": _mb_conv_specs(stage, inputs, outputs)}
        if count > 1:
            found["rest"] = _mb_conv_specs(stage, outputs, outputs, count - 1)
        stages.append(found)
        inputs = outputs
    outputs = config.scaled(HEAD_CHANNELS)
    params = {
        "stem": stem,
        "stages": stages,
        "last": conv_norm_specs(kernel=1, inputs=inputs, outputs=outputs),
        "head": linear_specs(outputs, config.num_classes),
    }
    side = config.image_size
    given = {
        "images": spec(batch, side, side, 3),
        "labels": spec(batch, dtype=jnp.int32),
        "key": spec(2, dtype=jnp.uint32),
    }
    return training("efficientnet_b7", loss, params, given, statistics_of(params))


def _mb_conv(
    w: Any,
    s: Any,
    x: jax.Array,
    key: jax.Array | None = None,
    kept: jax.Array | None = None,
    *,
    stage: Stage,
    stride: int = 1,
) -> tuple[jax.Array, Any]:
    """Expand, depthwise convolution, squeeze and excite, project; equal ones skip."""
    moved, y = {}, x
    if "expand" in w:
        y, moved["expand"] = conv_norm(w["expand"], s["expand"], y)
        y = jax.nn.swish(y)
    groups = y.shape[-1]
    y, moved["depthwise"] = conv_norm(w["depthwise"], s["depthwise"], y, stride, groups)
    y = jax.nn.swish(y)
    mean = y.mean((1, 2), keepdims=True)
    mean = jax.nn.swish(convolve(w["squeeze"], mean))
    y = y * jax.nn.sigmoid(convolve(w["excite"], mean))
    y, moved["project"] = conv_norm(w["project"], s["project"], y)
    if key is not None and kept is not None:
        stays = jax.random.bernoulli(key, kept, (x.shape[0], 1, 1, 1))
        y = x + jnp.where(stays, y / jnp.asarray(kept, y.dtype), 0)
    return y, moved


def _mb_conv_specs(stage: Stage, inputs: int, outputs: int, *stack: int) -> Any:
    conv, inner = partial(conv_norm_specs, *stack), inputs * stage.expand
    squeezed = max(1, int(inputs * SQUEEZE))
    mean = partial(convolve_specs, *stack, kernel=1)
    found = {
        "depthwise": conv(kernel=stage.kernel, inputs=1, outputs=inner),
        "squeeze": mean(inputs=inner, outputs=squeezed),
        "excite": mean(inputs=squeezed, outputs=inner),
        "project": conv(kernel=1, inputs=inner, outputs=outputs),
    }
    if stage.expand != 1:
        found["expand"] = conv(kernel=1, inputs=inputs, outputs=inner)
    return found


def _dropout(x: jax.Array, key: jax.Array, kept: float) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, kept, x.shape), x / kept, 0)


ENTRIES = (
    Entry(
        "resnet_152",
        "standard",
        "h100:1",
        _resnet,
        "ResNet-152 (He et al. 2016), 512 images of 224 x 224",
    ),
    Entry(
        "efficientnet_b7",
        "standard",
        "h100:1",
        _efficientnet,
        "EfficientNet-B7 (Tan & Le 2019), 32 images of 600 x 600",
    ),
)
