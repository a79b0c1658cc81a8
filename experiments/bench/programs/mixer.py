"""MLPs over patches and over channels in turn, and no attention."""

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
    cross_entropy,
    layer_norm,
    linear,
    linear_specs,
    norm_specs,
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
        x = linear(params["embed"], patches(batch["images"], patch).astype(dtype))
        x = jax.lax.scan(lambda x, w: (_layer(w, x), None), x, params["layers"])[0]
        x = layer_norm(params["norm"], x).mean(1)
        return cross_entropy(linear(params["head"], x), batch["labels"])

    layers = {
        "patches_norm": norm_specs(depth, width),
        "patches_up": linear_specs(depth, length, patches_mlp),
        "patches_down": linear_specs(depth, patches_mlp, length),
        "norm": norm_specs(depth, width),
        "up": linear_specs(depth, width, mlp),
        "down": linear_specs(depth, mlp, width),
    }
    params = {
        "embed": linear_specs(3 * patch**2, width),
        "layers": layers,
        "norm": norm_specs(width),
        "head": linear_specs(width, classes),
    }
    images = spec(batch, side, side, 3)
    given = {"images": images, "labels": spec(batch, dtype=jnp.int32)}
    return training("mixer_l_16", loss, params, given)


def _layer(w: Any, x_BLD: jax.Array) -> jax.Array:
    x_BDL = layer_norm(w["patches_norm"], x_BLD).swapaxes(1, 2)
    hidden = jax.nn.gelu(linear(w["patches_up"], x_BDL))
    x_BLD = x_BLD + linear(w["patches_down"], hidden).swapaxes(1, 2)
    hidden = jax.nn.gelu(linear(w["up"], layer_norm(w["norm"], x_BLD)))
    return x_BLD + linear(w["down"], hidden)


ENTRIES = (
    Entry(
        "mixer_l_16",
        "standard",
        "h100:1",
        _mixer,
        "MLP-Mixer L/16 (Tolstikhin et al. 2021), 256 images of 224 x 224",
    ),
)
