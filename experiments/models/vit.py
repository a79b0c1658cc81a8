"""A vision transformer that classifies small images (Dosovitskiy et al. 2020).

Shapes: B batch, Y and X pixels down and across, C channels, L patches, D width,
Q classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import PartitionSpec as P

from experiments.models import transformer
from experiments.models.layout import ONE_DEVICE, Layout
from experiments.models.transformer import BlockConfig
from revremat import UserError


@dataclass(frozen=True)
class ViTConfig:
    """An image classifier; the mean of the patches is classified.

    Attributes:
      image_size: Pixels down and across; a multiple of the patch.
      channels: 1 for grey.
      patch_size: Pixels down and across a patch.
      num_classes: Labels.
      width: Of the residual stream.
      num_layers: Blocks.
      num_heads: They divide the width.
      mlp_width: Hidden width of the MLP.
      norm: Layer norm or root-mean-square norm.
      gated: A gated MLP (SwiGLU).
      bias: Biases in projections.
      dropout: Rate after the embedding and on each block's outputs.
      attention: Einsums and a softmax, or `jax.nn.dot_product_attention`, by XLA or
        by cuDNN (on NVIDIA cards, in bfloat16).
      dtype: Of the computation; parameters are always float32.
      scan: One scan over stacked layers, or the layers one after another.
    """

    image_size: int = 8
    channels: int = 1
    patch_size: int = 2
    num_classes: int = 10
    width: int = 64
    num_layers: int = 4
    num_heads: int = 4
    mlp_width: int = 256
    norm: Literal["layer", "rms"] = "layer"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0
    attention: Literal["plain", "dot_product", "cudnn"] = "plain"
    dtype: Literal["float32", "bfloat16"] = "float32"
    scan: bool = True

    def __post_init__(self):
        if self.image_size % self.patch_size:
            raise UserError(
                f"image_size {self.image_size} is not a multiple of patch_size "
                f"{self.patch_size}; choose a patch that divides it"
            )

    @property
    def num_patches(self) -> int:
        """Patches an image."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def block(self) -> BlockConfig:
        """The config of its blocks."""
        return BlockConfig.of(self, causal=False, init_scale=0.5 / self.width**0.5)


class ViT(nnx.Module):
    """Patches, blocks, norm, mean, and a projection to the classes."""

    def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.embed = nnx.Linear(
            config.patch_size**2 * config.channels,
            config.width,
            dtype=config.dtype,
            rngs=rngs,
        )
        # As large as an embedded patch: the mean of the patches sees no order but this.
        self.positions = nnx.Param(
            nnx.initializers.normal(0.3)(
                rngs.params(), (config.num_patches, config.width)
            )
        )
        self.blocks = transformer.make_blocks(config.block, scan=config.scan, rngs=rngs)
        self.norm = transformer.make_norm(config, rngs=rngs)
        self.head = nnx.Linear(
            config.width,
            config.num_classes,
            kernel_init=nnx.initializers.zeros,
            dtype=config.dtype,
            rngs=rngs,
        )
        self.dropout = nnx.Dropout(config.dropout)

    def __call__(
        self, images_BYXC: jax.Array, key: jax.Array | None, layout: Layout
    ) -> jax.Array:
        """Logits [B, Q]; without a key nothing is dropped."""
        with jax.named_scope("embed"):
            x_BLD = self.embed(patches(images_BYXC, self.config.patch_size))
            x_BLD = x_BLD + self.positions[...].astype(x_BLD.dtype)
            if key is not None:
                key, embed_key = jax.random.split(key)
                x_BLD = self.dropout(x_BLD, rngs=embed_key)
            x_BLD = layout.stream(x_BLD)
        x_BLD = transformer.run_blocks(
            self.blocks, x_BLD, key, self.config.num_layers, layout
        )
        with jax.named_scope("head"):
            return self.head(self.norm(x_BLD).mean(axis=1))


def patches(images_BYXC: jax.Array, size: int) -> jax.Array:
    """Cut images into square patches: [B, L, size * size * C], row by row."""
    batch, rows, columns, channels = images_BYXC.shape
    grid = images_BYXC.reshape(
        batch, rows // size, size, columns // size, size, channels
    )
    return grid.swapaxes(2, 3).reshape(batch, -1, size * size * channels)


def init(config: ViTConfig, key: jax.Array) -> dict[str, Any]:
    """Fresh float32 parameters as a nested dict of arrays."""
    return transformer.init(ViT, config, key)


def loss_fn(
    config: ViTConfig, *, train: bool = True, layout: Layout = ONE_DEVICE
) -> Callable[[Any, dict[str, jax.Array]], jax.Array]:
    """The mean cross-entropy of the class, in nats, as a pure function.

    Args:
      config: The model.
      train: Whether dropout is on; its key is then `batch["key"]`, as key data.
      layout: Pins activations to a mesh.

    Returns:
      `loss(params, batch)` with `batch["images"]` float32 [B, Y, X, C] in [0, 1] and
      `batch["labels"]` int32 [B].
    """
    metrics = metrics_fn(config, train=train, layout=layout)
    return lambda params, batch: metrics(params, batch)["loss"]


def metrics_fn(
    config: ViTConfig, *, train: bool = False, layout: Layout = ONE_DEVICE
) -> Callable[[Any, dict[str, jax.Array]], dict[str, jax.Array]]:
    """What validation reports: loss and accuracy, as a pure function."""
    logits = transformer.pure(ViT, config, train=train, layout=layout)
    size = (config.image_size, config.image_size, config.channels)

    def metrics(params, batch):
        images_BYXC, labels_B = batch["images"], batch["labels"]
        chex.assert_shape(images_BYXC, (None, *size))
        logits_BQ = logits(params, batch, images_BYXC).astype(jnp.float32)
        with jax.named_scope("loss"):
            loss = optax.losses.softmax_cross_entropy_with_integer_labels(
                logits_BQ, labels_B
            ).mean()
        return {"loss": loss, "accuracy": (logits_BQ.argmax(-1) == labels_B).mean()}

    return metrics


def batch_specs(config: ViTConfig, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes and dtypes of a batch."""
    size = (config.image_size, config.image_size, config.channels)
    return {
        "images": jax.ShapeDtypeStruct((batch_size, *size), jnp.float32),
        "labels": jax.ShapeDtypeStruct((batch_size,), jnp.int32),
    }


def tensor_parallel(config: ViTConfig, axis: str) -> tuple[tuple[str, P], ...]:
    """Which array is cut where over a tensor-parallel mesh axis, for `ByPath`."""
    del config
    return transformer.tensor_parallel(axis)
