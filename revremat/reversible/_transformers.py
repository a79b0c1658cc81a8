"""Reversible transformers: RevViT for images, RevGPT for text.

Both streams start as the embedding; attention reads one and changes the other, then an
MLP the other way round (Kitaev et al. 2020, Reformer; Mangalam et al. 2022, RevViT). At
the end the streams are joined along the channels and normed.

Shapes: B batch, L tokens or patches, D width.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from revremat._action import INVERT
from revremat._errors import UserError
from revremat.reversible.nnx import RevBlock, RevScan

_NORMAL = nnx.initializers.normal(0.02)


@dataclass(frozen=True)
class RevTransformerConfig:
    """What the layers of both have in common.

    Attributes:
      width: Of each of the two streams.
      num_layers: Pairs of attention and MLP.
      num_heads: They divide the width.
      mlp_width: Hidden width of the MLP.
      dropout: Rate on what each map says.
      dtype: Of the maps; parameters and streams are float32.
    """

    width: int = 128
    num_layers: int = 4
    num_heads: int = 4
    mlp_width: int = 512
    dropout: float = 0.0
    dtype: Any = None

    def __post_init__(self):
        if self.width % self.num_heads:
            raise UserError(
                f"a width of {self.width} cannot be cut in {self.num_heads} heads; "
                "choose a number that divides it."
            )


@dataclass(frozen=True)
class RevViTConfig(RevTransformerConfig):
    """An image classifier.

    Attributes:
      image_size: Pixels down and across; a multiple of the patch.
      image_channels: 3 for RGB.
      patch_size: Pixels down and across a patch.
      num_classes: Labels.
      width: Of each stream, a multiple of the heads.
      num_layers: Reversible layers, each of attention and feed-forward.
      num_heads: Of the attention.
      mlp_width: Of the hidden layer.
      dropout: Rate within the functions.
      dtype: Of the computation; parameters and streams are float32.

    Example:
      >>> from revremat.reversible import RevViTConfig
      >>> config = RevViTConfig(image_size=32, patch_size=4)
      >>> (config.image_size // config.patch_size) ** 2  # patches
      64
    """

    image_size: int = 32
    image_channels: int = 3
    patch_size: int = 4
    num_classes: int = 10

    def __post_init__(self):
        super().__post_init__()
        if self.image_size % self.patch_size:
            raise UserError(
                f"image_size {self.image_size} is not a multiple of patch_size "
                f"{self.patch_size}; choose a patch that divides it."
            )

    @property
    def num_patches(self) -> int:
        """Patches an image."""
        return (self.image_size // self.patch_size) ** 2


@dataclass(frozen=True)
class RevGPTConfig(RevTransformerConfig):
    """A language model.

    Attributes:
      vocab_size: Tokens; 256 for bytes.
      seq_len: The most tokens a sequence may have.
      width: Of each stream, a multiple of the heads.
      num_layers: Reversible layers, each of attention and feed-forward.
      num_heads: Of the attention.
      mlp_width: Of the hidden layer.
      dropout: Rate within the functions.
      dtype: Of the computation; parameters and streams are float32.

    Example:
      >>> from revremat.reversible import RevGPTConfig
      >>> RevGPTConfig(width=64, num_layers=2).vocab_size
      256
    """

    vocab_size: int = 256
    seq_len: int = 128


class Attention(nnx.Module):
    """Norm, then attention among all tokens, or among those before."""

    def __init__(self, config: RevTransformerConfig, *, causal: bool, rngs: nnx.Rngs):
        linear = partial(
            nnx.Linear, config.width, dtype=config.dtype, kernel_init=_NORMAL, rngs=rngs
        )
        self.norm = nnx.LayerNorm(config.width, dtype=config.dtype, rngs=rngs)
        self.qkv, self.out = linear(3 * config.width), linear(config.width)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)
        self.num_heads, self.causal = config.num_heads, causal

    def __call__(self, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L _"]:
        batch, length, width = x_BLD.shape
        shape = (batch, length, 3, self.num_heads, width // self.num_heads)
        q, k, v = jnp.moveaxis(self.qkv(self.norm(x_BLD)).reshape(shape), 2, 0)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=self.causal)
        return self.dropout(self.out(mixed.reshape(batch, length, width)))


class MLP(nnx.Module):
    """Norm, then two linear maps with GELU between them."""

    def __init__(self, config: RevTransformerConfig, *, rngs: nnx.Rngs):
        linear = partial(nnx.Linear, dtype=config.dtype, kernel_init=_NORMAL, rngs=rngs)
        self.norm = nnx.LayerNorm(config.width, dtype=config.dtype, rngs=rngs)
        self.up = linear(config.width, config.mlp_width)
        self.down = linear(config.mlp_width, config.width)
        self.dropout = nnx.Dropout(config.dropout, rngs=rngs)

    def __call__(self, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L _"]:
        return self.dropout(self.down(jax.nn.gelu(self.up(self.norm(x_BLD)))))


class _Body(nnx.Module):
    """The layers, from an embedding to the normed streams `[B, L, 2 D]`."""

    def __init__(
        self,
        config: RevTransformerConfig,
        *,
        causal: bool,
        reversible: bool,
        rngs: nnx.Rngs,
    ):
        def make(rngs: nnx.Rngs) -> RevBlock:
            attention = Attention(config, causal=causal, rngs=rngs)
            return RevBlock(attention, MLP(config, rngs=rngs), halves=False)

        self.layers = RevScan(
            make,
            config.num_layers,
            rngs=rngs,
            actions=INVERT if reversible else None,
            name="layers",
        )
        self.norm = nnx.LayerNorm(2 * config.width, dtype=config.dtype, rngs=rngs)

    def __call__(self, x_BLD: Float[Array, "B L D"]) -> Float[Array, "B L _"]:
        streams = self.layers((x_BLD, x_BLD))
        return self.norm(jnp.concatenate(streams, axis=-1))


class RevViT(nnx.Module):
    """A vision transformer; the mean of the patches is classified.

    Args:
      config: Shapes.
      rngs: For parameters and dropout.
      reversible: Whether layers are inverted in the backward pass; if not, this is the
        plain counterpart: the same function by plain autodiff, unless a plan says
        otherwise.

    Example:
      >>> from flax import nnx
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import RevViT, RevViTConfig
      >>> config = RevViTConfig(width=8, num_heads=2, mlp_width=16, num_layers=2)
      >>> images = jnp.ones((2, 32, 32, 3))
      >>> nnx.eval_shape(lambda: RevViT(config, rngs=nnx.Rngs(0))(images)).shape
      (2, 10)
    """

    def __init__(
        self, config: RevViTConfig, *, rngs: nnx.Rngs, reversible: bool = True
    ):
        pixels = config.patch_size**2 * config.image_channels
        self.embed = nnx.Linear(pixels, config.width, dtype=config.dtype, rngs=rngs)
        shape = (config.num_patches, config.width)
        self.positions = nnx.Param(_NORMAL(rngs.params(), shape))
        self.body = _Body(config, causal=False, reversible=reversible, rngs=rngs)
        self.head = nnx.Linear(
            2 * config.width, config.num_classes, dtype=config.dtype, rngs=rngs
        )
        self.config = config

    def __call__(
        self, images: Float[Array, "batch height width channels"]
    ) -> Float[Array, "batch classes"]:
        """Logits `[batch, num_classes]`, from `[batch, height, width, channels]`."""
        size = self.config.patch_size
        batch, rows, columns, channels = images.shape
        grid = (batch, rows // size, size, columns // size, size, channels)
        patches = images.reshape(grid).swapaxes(2, 3)
        patches = patches.reshape(batch, -1, size * size * channels)
        x_BLD = self.embed(patches).astype(jnp.result_type(self.positions[...]))
        return self.head(self.body(x_BLD + self.positions[...]).mean(axis=1))


class RevGPT(nnx.Module):
    """A decoder.

    Args:
      config: Shapes.
      rngs: For parameters and dropout.
      reversible: As in `RevViT`.

    Example:
      >>> from flax import nnx
      >>> import jax.numpy as jnp
      >>> from revremat.reversible import RevGPT, RevGPTConfig
      >>> config = RevGPTConfig(width=8, num_heads=2, mlp_width=16, num_layers=2)
      >>> tokens = jnp.ones((2, 5), int)
      >>> nnx.eval_shape(lambda: RevGPT(config, rngs=nnx.Rngs(0))(tokens)).shape
      (2, 5, 256)
    """

    def __init__(
        self, config: RevGPTConfig, *, rngs: nnx.Rngs, reversible: bool = True
    ):
        self.embed = nnx.Embed(
            config.vocab_size, config.width, embedding_init=_NORMAL, rngs=rngs
        )
        shape = (config.seq_len, config.width)
        self.positions = nnx.Param(_NORMAL(rngs.params(), shape))
        self.body = _Body(config, causal=True, reversible=reversible, rngs=rngs)
        self.head = nnx.Linear(
            2 * config.width,
            config.vocab_size,
            use_bias=False,
            kernel_init=_NORMAL,
            dtype=config.dtype,
            rngs=rngs,
        )
        self.config = config

    def __call__(self, tokens_BL: Int[Array, "B L"]) -> Float[Array, "B L vocab"]:
        """Logits `[B, L, vocab_size]`, from integers below `vocab_size`."""
        length = tokens_BL.shape[1]
        if length > self.config.seq_len:
            raise UserError(
                f"a sequence of {length} tokens is longer than the "
                f"{self.config.seq_len} there are positions for; cut it, or raise "
                "seq_len."
            )
        x_BLD = self.embed(tokens_BL) + self.positions[...][:length]
        return self.head(self.body(x_BLD))
