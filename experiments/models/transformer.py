"""The pre-norm transformer block that the language model and the image model share.

Shapes: B batch, L length, M length attended to, D width, H heads, K head width,
G gates (1, or 2 in a gated MLP), F hidden width of the MLP, N layers.
"""

from dataclasses import dataclass
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from experiments.models.layout import Layout
from revremat import UserError


@dataclass(frozen=True)
class BlockConfig:
    """One transformer block.

    Attributes:
      width: Of the residual stream.
      num_heads: They divide the width.
      mlp_width: Hidden width of the MLP.
      causal: Whether a position sees only itself and those before it.
      rotary: Whether queries and keys are turned by their position (RoPE).
      norm: Layer norm (with bias) or root-mean-square norm.
      gated: `down(silu(gate) * up)` in place of `down(gelu(up))`.
      bias: Whether projections have biases.
      dropout: Rate on the outputs of attention and MLP.
      attention: Einsums and a softmax, or `jax.nn.dot_product_attention`, by XLA or
        by cuDNN (on NVIDIA cards, in bfloat16).
      dtype: Of the computation; parameters are always float32.
      depth: Layers in the stack; outputs into the stream start smaller by its root.
      init_scale: Standard deviation of fresh matrices.
    """

    width: int
    num_heads: int
    mlp_width: int
    causal: bool
    rotary: bool = False
    norm: Literal["layer", "rms"] = "layer"
    gated: bool = False
    bias: bool = True
    dropout: float = 0.0
    attention: Literal["plain", "dot_product", "cudnn"] = "plain"
    dtype: Literal["float32", "bfloat16"] = "float32"
    depth: int = 1
    init_scale: float = 0.02

    def __post_init__(self):
        if self.width % self.num_heads:
            raise UserError(
                f"width {self.width} is not a multiple of num_heads {self.num_heads}; "
                "choose heads that divide it"
            )
        if self.attention == "cudnn" and self.dtype == "float32":
            raise UserError(
                "cuDNN's attention is for 16 bits and model.dtype is float32: write "
                "model.dtype=bfloat16, or model.attention=dot_product"
            )
        if self.depth < 1:
            raise UserError(f"model.num_layers is {self.depth}: write 1 or more")

    @classmethod
    def of(cls, config: Any, **own: Any) -> "BlockConfig":
        """The blocks of a model whose config names what they share as they do.

        Args:
          config: Of the model; its blocks are as many as its `num_layers`.
          own: What no config of a model says: `causal`, `rotary`, `init_scale`.
        """
        return cls(
            width=config.width,
            num_heads=config.num_heads,
            mlp_width=config.mlp_width,
            norm=config.norm,
            gated=config.gated,
            bias=config.bias,
            dropout=config.dropout,
            attention=config.attention,
            dtype=config.dtype,
            depth=config.num_layers,
            **own,
        )

    @property
    def head_width(self) -> int:
        """Width of one head."""
        return self.width // self.num_heads


def make_norm(config: Any, *, rngs: nnx.Rngs) -> nnx.Module:
    """The norm a config with `norm`, `width` and `dtype` asks for."""
    norm = {"layer": nnx.LayerNorm, "rms": nnx.RMSNorm}[config.norm]
    return norm(config.width, epsilon=1e-5, dtype=config.dtype, rngs=rngs)


class Attention(nnx.Module):
    """Multi-head self-attention, with residuals named `qkv`, `ctx`, `attn_out`."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs):
        heads = (config.num_heads, config.head_width)
        self.config = config
        self.qkv = _linear(config, config.width, (3, *heads), rngs=rngs)
        self.out = _linear(
            config, heads, config.width, rngs=rngs, into_stream=True, axis=(-2, -1)
        )

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        config = self.config
        qkv_BL3HK = checkpoint_name(self.qkv(x_BLD), "qkv")
        q_BLHK, k_BLHK, v_BLHK = (qkv_BL3HK[:, :, i] for i in range(3))
        if config.rotary:
            q_BLHK, k_BLHK = _rotate(q_BLHK), _rotate(k_BLHK)
        if config.attention != "plain":
            by_cudnn = "cudnn" if config.attention == "cudnn" else None
            ctx_BLHK = jax.nn.dot_product_attention(
                q_BLHK,
                k_BLHK,
                v_BLHK,
                is_causal=config.causal,
                implementation=by_cudnn,
            )
        else:
            ctx_BLHK = _attend(q_BLHK, k_BLHK, v_BLHK, causal=config.causal)
        ctx_BLHK = checkpoint_name(ctx_BLHK, "ctx")
        return checkpoint_name(self.out(ctx_BLHK), "attn_out")


class MLP(nnx.Module):
    """Two projections, gated or not, with residuals named `up` and `down`."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs):
        gates = 2 if config.gated else 1
        self.config = config
        self.up = _linear(config, config.width, (gates, config.mlp_width), rngs=rngs)
        self.down = _linear(
            config, config.mlp_width, config.width, rngs=rngs, into_stream=True
        )

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        up_BLGF = checkpoint_name(self.up(x_BLD), "up")
        if self.config.gated:
            hidden_BLF = jax.nn.silu(up_BLGF[:, :, 0]) * up_BLGF[:, :, 1]
        else:
            hidden_BLF = jax.nn.gelu(up_BLGF[:, :, 0])
        return checkpoint_name(self.down(hidden_BLF), "down")


class Block(nnx.Module):
    """`x + attn(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, config: BlockConfig, *, rngs: nnx.Rngs):
        self.attn_norm = make_norm(config, rngs=rngs)
        self.attn = Attention(config, rngs=rngs)
        self.mlp_norm = make_norm(config, rngs=rngs)
        self.mlp = MLP(config, rngs=rngs)
        self.dropout = nnx.Dropout(config.dropout)

    def __call__(self, x_BLD: jax.Array, key: jax.Array | None) -> jax.Array:
        """One layer; without a key nothing is dropped."""
        chex.assert_rank(x_BLD, 3)
        attn_key, mlp_key = (None, None) if key is None else jax.random.split(key)
        with jax.named_scope("attn"):
            x_BLD = x_BLD + self._drop(self.attn(self.attn_norm(x_BLD)), attn_key)
        with jax.named_scope("mlp"):
            return x_BLD + self._drop(self.mlp(self.mlp_norm(x_BLD)), mlp_key)

    def _drop(self, x_BLD: jax.Array, key: jax.Array | None) -> jax.Array:
        if key is None:
            return x_BLD
        return self.dropout(x_BLD, rngs=key)


def make_blocks(config: BlockConfig, *, scan: bool, rngs: nnx.Rngs) -> nnx.Module:
    """A stack of blocks: one module with stacked arrays, or one module a layer.

    Both draw the same numbers from the same `rngs`.
    """
    keys_N = jax.random.split(rngs.params(), config.depth)

    def make(key):
        return Block(config, rngs=nnx.Rngs(key))

    if scan:
        return nnx.vmap(make)(keys_N)
    return nnx.Dict({f"{i:03d}": make(key) for i, key in enumerate(keys_N)})


def run_blocks(
    blocks: nnx.Module,
    x_BLD: jax.Array,
    key: jax.Array | None,
    depth: int,
    layout: Layout,
) -> jax.Array:
    """Apply a stack made by `make_blocks`."""
    keys_N = None if key is None else jax.random.split(key, depth)
    if isinstance(blocks, nnx.Dict):
        for i, name in enumerate(sorted(blocks)):
            layer_key = None if keys_N is None else keys_N[i]
            with jax.named_scope(f"layer{name}"):
                x_BLD = layout.stream(blocks[name](x_BLD, layer_key))
        return x_BLD
    graph, weights_N = nnx.split(blocks)

    def layer(x_BLD, weights_and_key):
        weights, layer_key = weights_and_key
        block = nnx.merge(graph, weights, copy=True)
        with jax.named_scope("layer"):
            return layout.stream(block(x_BLD, layer_key)), None

    return jax.lax.scan(layer, x_BLD, (weights_N, keys_N))[0]


def tensor_parallel(axis: str) -> tuple[tuple[str, P], ...]:
    """Heads and hidden width over one mesh axis (Shoeybi et al. 2019, Megatron-LM)."""
    return (
        (r"attn/qkv/kernel$", P(None, None, axis, None)),
        (r"attn/out/kernel$", P(axis, None, None)),
        (r"mlp/up/kernel$", P(None, None, axis)),
        (r"mlp/down/kernel$", P(axis, None)),
    )


def _linear(config, inputs, outputs, *, rngs, into_stream=False, axis: Any = -1):
    scale = config.init_scale
    scale = scale / (2 * config.depth) ** 0.5 if into_stream else scale
    return nnx.LinearGeneral(
        inputs,
        outputs,
        axis=axis,
        use_bias=config.bias,
        dtype=config.dtype,
        kernel_init=nnx.initializers.normal(scale),
        rngs=rngs,
    )


def _attend(q_BLHK, k_BMHK, v_BMHK, *, causal: bool) -> jax.Array:
    """Softmax attention whose scores are normalised in float32."""
    length, head_width = q_BLHK.shape[1], q_BLHK.shape[3]
    scores_BHLM = jnp.einsum("BLHK,BMHK->BHLM", q_BLHK, k_BMHK)
    scores_BHLM = scores_BHLM.astype(jnp.float32) * head_width**-0.5
    if causal:
        seen_LM = jnp.tril(jnp.ones((length, length), dtype=bool))
        scores_BHLM = jnp.where(seen_LM, scores_BHLM, -jnp.inf)
    probs_BHLM = jax.nn.softmax(scores_BHLM, axis=-1).astype(v_BMHK.dtype)
    return jnp.einsum("BHLM,BMHK->BLHK", probs_BHLM, v_BMHK)


def _rotate(x_BLHK: jax.Array) -> jax.Array:
    """Rotary position embedding (Su et al. 2021), halves paired as in Llama."""
    length, head_width = x_BLHK.shape[1], x_BLHK.shape[3]
    half = head_width // 2
    frequencies = 10_000.0 ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles_L = jnp.arange(length, dtype=jnp.float32)[:, None] * frequencies
    sin_L1, cos_L1 = jnp.sin(angles_L)[:, None, :], jnp.cos(angles_L)[:, None, :]
    low, high = jnp.split(x_BLHK.astype(jnp.float32), 2, axis=-1)
    turned = jnp.concatenate(
        [low * cos_L1 - high * sin_L1, high * cos_L1 + low * sin_L1], axis=-1
    )
    return turned.astype(x_BLHK.dtype)


def init(model: Any, config: Any, key: jax.Array) -> dict[str, Any]:
    """Fresh float32 parameters of `model(config, rngs=...)`, as a nested dict."""
    made = model(config, rngs=nnx.Rngs(key))
    return nnx.to_pure_dict(nnx.state(made, nnx.Param))


def pure(model: Any, config: Any, *, train: bool, layout: Layout) -> Any:
    """A model as a pure function of its parameters, a batch, and a part of that.

    Args:
      model: `model(config, rngs=...)(inputs, key, layout)` gives logits.
      config: With its `dropout`.
      train: Whether that is on; its key is then `batch["key"]`, as key data.
      layout: Pins activations to a mesh.

    Returns:
      `logits(params, batch, inputs)`.
    """
    graph = nnx.graphdef(nnx.eval_shape(lambda: model(config, rngs=nnx.Rngs(0))))

    def logits(params: Any, batch: dict[str, jax.Array], inputs: jax.Array):
        key = None
        if train and config.dropout:
            key = jax.random.wrap_key_data(batch["key"])
        merged: Any = nnx.merge(graph, params, copy=True)
        return merged(inputs, key, layout)

    return logits
