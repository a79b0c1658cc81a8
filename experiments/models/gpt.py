"""A decoder language model: GPT-2, Llama and what lies between.

Shapes: B batch, L length, D width, V vocabulary.
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
class GPTConfig:
    """A decoder; the defaults are GPT-2's choices at the size of a byte model.

    Attributes:
      vocab_size: Tokens; 256 for bytes.
      seq_len: Tokens a sequence, and learned positions where there are any.
      width: Of the residual stream.
      num_layers: Blocks.
      num_heads: They divide the width.
      mlp_width: Hidden width of the MLP.
      positions: Learned embeddings, or rotary.
      norm: Layer norm or root-mean-square norm.
      gated: A gated MLP (SwiGLU).
      bias: Biases in projections and layer norms.
      tied: The output projection is the embedding.
      dropout: Rate after the embedding and on each block's outputs.
      attention: Einsums and a softmax, or `jax.nn.dot_product_attention`, by XLA or
        by cuDNN (on NVIDIA cards, in bfloat16).
      dtype: Of the computation; parameters are always float32.
      scan: One scan over stacked layers, or the layers one after another.
    """

    vocab_size: int = 256
    seq_len: int = 128
    width: int = 128
    num_layers: int = 4
    num_heads: int = 4
    mlp_width: int = 512
    positions: Literal["learned", "rotary"] = "learned"
    norm: Literal["layer", "rms"] = "layer"
    gated: bool = False
    bias: bool = True
    tied: bool = True
    dropout: float = 0.0
    attention: Literal["plain", "dot_product", "cudnn"] = "plain"
    dtype: Literal["float32", "bfloat16"] = "float32"
    scan: bool = True

    @property
    def block(self) -> BlockConfig:
        """The config of its blocks."""
        return BlockConfig.of(self, causal=True, rotary=self.positions == "rotary")


class GPT(nnx.Module):
    """Embedding, blocks, norm, and a projection to the vocabulary."""

    def __init__(self, config: GPTConfig, *, rngs: nnx.Rngs):
        normal = nnx.initializers.normal(0.02)
        self.config = config
        self.embed = nnx.Embed(
            config.vocab_size,
            config.width,
            embedding_init=normal,
            dtype=config.dtype,
            rngs=rngs,
        )
        if config.positions == "learned":
            self.positions = nnx.Param(
                normal(rngs.params(), (config.seq_len, config.width))
            )
        self.blocks = transformer.make_blocks(config.block, scan=config.scan, rngs=rngs)
        self.norm = transformer.make_norm(config, rngs=rngs)
        if not config.tied:
            self.head = nnx.Linear(
                config.width,
                config.vocab_size,
                use_bias=False,
                kernel_init=normal,
                dtype=config.dtype,
                rngs=rngs,
            )
        self.dropout = nnx.Dropout(config.dropout)

    def __call__(
        self, tokens_BL: jax.Array, key: jax.Array | None, layout: Layout
    ) -> jax.Array:
        """Logits [B, L, V]; without a key nothing is dropped."""
        with jax.named_scope("embed"):
            x_BLD, key = self._embed(tokens_BL, key, layout)
        x_BLD = transformer.run_blocks(
            self.blocks, x_BLD, key, self.config.num_layers, layout
        )
        with jax.named_scope("head"):
            x_BLD = self.norm(x_BLD)
            if self.config.tied:
                return self.embed.attend(x_BLD)
            return self.head(x_BLD)

    def _embed(self, tokens_BL, key, layout):
        self.embed.embedding[...] = layout.table(self.embed.embedding[...])
        x_BLD = self.embed(tokens_BL)
        if self.config.positions == "learned":
            x_BLD = x_BLD + self.positions[: tokens_BL.shape[1]].astype(x_BLD.dtype)
        if key is not None:
            key, embed_key = jax.random.split(key)
            x_BLD = self.dropout(x_BLD, rngs=embed_key)
        return layout.stream(x_BLD), key


def init(config: GPTConfig, key: jax.Array) -> dict[str, Any]:
    """Fresh float32 parameters as a nested dict of arrays."""
    return transformer.init(GPT, config, key)


def loss_fn(
    config: GPTConfig, *, train: bool = True, layout: Layout = ONE_DEVICE
) -> Callable[[Any, dict[str, jax.Array]], jax.Array]:
    """The mean cross-entropy of the next token, in nats, as a pure function.

    Args:
      config: The model.
      train: Whether dropout is on; its key is then `batch["key"]`, as key data.
      layout: Pins activations to a mesh.

    Returns:
      `loss(params, batch)` with `batch["tokens"]` int32 [B, L + 1].
    """
    metrics = metrics_fn(config, train=train, layout=layout)
    return lambda params, batch: metrics(params, batch)["loss"]


def metrics_fn(
    config: GPTConfig, *, train: bool = False, layout: Layout = ONE_DEVICE
) -> Callable[[Any, dict[str, jax.Array]], dict[str, jax.Array]]:
    """What validation reports: the loss in nats and in bits, as a pure function."""
    logits = transformer.pure(GPT, config, train=train, layout=layout)

    def metrics(params, batch):
        tokens_BT = batch["tokens"]
        chex.assert_shape(tokens_BT, (None, config.seq_len + 1))
        logits_BLV = logits(params, batch, tokens_BT[:, :-1])
        with jax.named_scope("loss"):
            loss = optax.losses.softmax_cross_entropy_with_integer_labels(
                logits_BLV.astype(jnp.float32), tokens_BT[:, 1:]
            ).mean()
        return {"loss": loss, "bits_per_token": loss / jnp.log(2.0)}

    return metrics


def batch_specs(config: GPTConfig, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes and dtypes of a batch."""
    shape = (batch_size, config.seq_len + 1)
    return {"tokens": jax.ShapeDtypeStruct(shape, jnp.int32)}


def tensor_parallel(config: GPTConfig, axis: str) -> tuple[tuple[str, P], ...]:
    """Which array is cut where over a tensor-parallel mesh axis, for `ByPath`."""
    if config.num_heads < 1 or config.num_layers < 1:
        raise UserError("a GPT needs at least one layer and one head")
    head = () if config.tied else ((r"head/kernel$", P(None, axis)),)
    vocabulary = ((r"embed/embedding$", P(axis, None)), *head)
    return (*transformer.tensor_parallel(axis), *vocabulary)
