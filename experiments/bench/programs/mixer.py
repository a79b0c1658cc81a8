"""MLPs over patches and over channels in turn, and no attention."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

import revremat as rr
from experiments.bench.programs._entry import (
    Entry,
    Size,
    compute_dtype,
    spec,
    training,
)
from experiments.models.vit import patches


def _mixer(target: Any, size: Size) -> rr.Problem:
    del target
    batch, side, patch, width, patches_mlp, mlp, depth, classes = {
        "tiny": (4, 8, 4, 16, 8, 32, 2, 10),
        "cpu": (32, 32, 4, 64, 64, 256, 6, 10),
        "real": (256, 224, 16, 1024, 512, 4096, 24, 1000),
    }[size]
    dtype, length = compute_dtype(size), (side // patch) ** 2

    def loss(params, batch):
        x = _linear(params["embed"], patches(batch["images"], patch).astype(dtype))
        x = jax.lax.scan(lambda x, w: (_layer(w, x), None), x, params["layers"])[0]
        x = _norm(params["norm"], x).mean(1)
        logits = _linear(params["head"], x).astype(float)
        return optax.losses.softmax_cross_entropy_with_integer_labels(
            logits, batch["labels"]
        ).mean()

    layers = {
        "patches_norm": _norm_specs(depth, width),
        "patches_up": _linear_specs(depth, length, patches_mlp),
        "patches_down": _linear_specs(depth, patches_mlp, length),
        "norm": _norm_specs(depth, width),
        "up": _linear_specs(depth, width, mlp),
        "down": _linear_specs(depth, mlp, width),
    }
    params = {
        "embed": _linear_specs(3 * patch**2, width),
        "layers": layers,
        "norm": _norm_specs(width),
        "head": _linear_specs(width, classes),
    }
    images = spec(batch, side, side, 3)
    given = {"images": images, "labels": spec(batch, dtype=jnp.int32)}
    return training("mixer_l_16", loss, params, given)


def _layer(w: Any, x_BLD: jax.Array) -> jax.Array:
    x_BDL = _norm(w["patches_norm"], x_BLD).swapaxes(1, 2)
    hidden = jax.nn.gelu(_linear(w["patches_up"], x_BDL))
    x_BLD = x_BLD + _linear(w["patches_down"], hidden).swapaxes(1, 2)
    hidden = jax.nn.gelu(_linear(w["up"], _norm(w["norm"], x_BLD)))
    return x_BLD + _linear(w["down"], hidden)


def _linear(w: Any, x: jax.Array) -> jax.Array:
    return x @ w["kernel"].astype(x.dtype) + w["bias"].astype(x.dtype)


def _norm(w: Any, x: jax.Array) -> jax.Array:
    wide = x.astype(w["scale"].dtype)
    wide = wide - wide.mean(-1, keepdims=True)
    wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    return (wide * w["scale"] + w["bias"]).astype(x.dtype)


def _linear_specs(*shape: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {"kernel": spec(*shape), "bias": spec(*shape[:-2], shape[-1])}


def _norm_specs(*shape: int) -> dict[str, jax.ShapeDtypeStruct]:
    return {"scale": spec(*shape), "bias": spec(*shape)}


ENTRIES = (
    Entry(
        "mixer_l_16",
        "standard",
        "h100:1",
        _mixer,
        "MLP-Mixer L/16 (Tolstikhin et al. 2021), 256 images of 224 x 224",
    ),
)
