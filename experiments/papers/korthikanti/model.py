"""The paper's transformer layer, and a stack of it whose gradient is compiled.

Shapes: B batch, L length, D width, H heads, K width of a head, F hidden width.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

import revremat as rr
from experiments.papers.korthikanti.published import LENGTH, Size
from revremat import layers, sharding

STREAM = "batch", "norm_length", "embed"
OUTSIDE = (
    *("x1", "norm1", "q", "k", "v", "ctx", "mask1"),
    *("x2", "norm2", "up", "act", "mask2"),
)
"""All that the paper keeps outside of attention's core: 34 bytes an element."""
CORE = "probs", "probs_mask", "probs_dropped"
"""And within it: 5 bytes for each pair of positions and head."""
FEWER = ("x2", "q", "k", "v", "ctx", "up", "mask1", "mask2")
"""Without outputs of norms and GELU, which cost no product: 22 bytes an element."""

SUMS = "reduce_max_0", "reduce_sum_2"
"""Of each row of the softmax, as `rr.trace` calls them: its largest score, its sum."""
_KERNEL = "dot_product_attention_fwd_wrapper"
OF_CUDNN = (
    *(name for name in OUTSIDE if name != "ctx"),
    f"{_KERNEL}_0",
    f"{_KERNEL}_1",
)
"""The same of a layer with cuDNN's attention: `ctx` is its result, beside log sums."""


@dataclass(frozen=True)
class Scheme:
    """How a stack is spread, and what it keeps.

    Attributes:
      saved: Names of what each layer keeps.
      tensor: Whether there is tensor parallelism.
      sequence: Whether there is sequence parallelism on top.
      cudnn: Whether attention is cuDNN's, which drops none of the softmax here.
    """

    saved: tuple[str, ...]
    tensor: bool = True
    sequence: bool = False
    cudnn: bool = False

    @property
    def rules(self) -> sharding.AxisRules:
        """Where dimensions of each name lie."""
        return sharding.megatron("model", sequence=self.sequence)


SCHEMES: Mapping[str, Scheme] = {
    "none": Scheme((*OUTSIDE, *CORE), tensor=False),
    "tp": Scheme((*OUTSIDE, *CORE)),
    "tp+sp": Scheme((*OUTSIDE, *CORE), sequence=True),
    "tp+selective": Scheme(OUTSIDE),
    "tp+sp+selective": Scheme(OUTSIDE, sequence=True),
    "full": Scheme(()),
    "full, sharded": Scheme((), sequence=True),
    "fewer": Scheme(FEWER, sequence=True),
    "selective, sums": Scheme((*OUTSIDE, *SUMS), sequence=True),
    "tp+sp, cudnn": Scheme(OF_CUDNN, sequence=True, cudnn=True),
}
"""The rows of table 2, and three that are not in it.

One keeps less at no product more, one keeps sums of the softmax, one has a kernel.
"""


@dataclass(frozen=True)
class Block:
    """Layer norm, attention, dropout; layer norm, GELU MLP, dropout.

    Attributes:
      layout: Where values lie.
      rate: Of all dropouts.
      cudnn: Whether attention is cuDNN's.
    """

    layout: sharding.Layout
    rate: float = 0.1
    cudnn: bool = False

    def __call__(self, w: Mapping[str, Any], x_BLD: Any, key: Any) -> Any:
        """One layer; without a key nothing is dropped."""
        layout, name = self.layout, rr.name
        keys = (None,) * 3 if key is None else jax.random.split(key, 3)
        x_BLD = name(layout(x_BLD, *STREAM), "x1")
        with jax.named_scope("attn"):
            y_BLD = layers.layer_norm(x_BLD, w["scale1"], w["bias1"])
            y_BLD = layout.gather(y_BLD, name="norm1")
            heads = "batch", "length", "heads", "kv"
            qkv = jnp.einsum("bld,dxhk->blxhk", y_BLD, w["qkv"])
            q, k, v = (
                name(layout(qkv[:, :, number], *heads), one)
                for number, one in enumerate("qkv")
            )
            ctx = name(layout(self._attend(q, k, v, keys[0]), *heads), "ctx")
            out_BLD = layout.scatter(jnp.einsum("blhk,hkd->bld", ctx, w["out"]))
            x_BLD = self._add(x_BLD, out_BLD, keys[1], "mask1")
        x_BLD = name(x_BLD, "x2")
        with jax.named_scope("mlp"):
            y_BLD = layers.layer_norm(x_BLD, w["scale2"], w["bias2"])
            y_BLD = layout.gather(y_BLD, name="norm2")
            hidden = "batch", "length", "mlp"
            up_BLF = name(layout(y_BLD @ w["up"], *hidden), "up")
            act_BLF = name(layout(layers.gelu(up_BLF), *hidden), "act")
            out_BLD = layout.scatter(act_BLF @ w["down"])
            return self._add(x_BLD, out_BLD, keys[2], "mask2")

    def _attend(self, q: Any, k: Any, v: Any, key: Any) -> Any:
        if self.cudnn:
            attend = partial(jax.nn.dot_product_attention, implementation="cudnn")
            return attend(q, k, v, is_causal=True)
        pairs = self.layout.key(key, "batch", "heads", None, None)
        return layers.attention(q, k, v, causal=True, key=pairs, rate=self.rate)

    def _add(self, x_BLD: Any, out_BLD: Any, key: Any, name: str) -> Any:
        key = self.layout.key(key, *STREAM)
        dropped = layers.dropout(out_BLD, key, self.rate, name=name)
        return self.layout(x_BLD + dropped, *STREAM)


def weight_shapes(size: Size) -> dict[str, tuple[tuple[int, ...], tuple[Any, ...]]]:
    """The shape of each weight of a layer, and the names of its dimensions."""
    heads, width = size.heads, size.width
    head = width // heads
    vector = (width,), ("embed",)
    return {
        **dict.fromkeys(("scale1", "bias1", "scale2", "bias2"), vector),
        "qkv": ((width, 3, heads, head), ("embed", None, "heads", "kv")),
        "out": ((heads, head, width), ("heads", "kv", "embed")),
        "up": ((width, 4 * width), ("embed", "mlp")),
        "down": ((4 * width, width), ("mlp", "embed")),
    }


@dataclass(frozen=True)
class Loss:
    """The sum of squares of a stack's output.

    Attributes:
      block: One layer.
      saved: Names of what each layer keeps; None leaves it to plans.
      has_dropout: Whether the key is used.
    """

    block: Block
    saved: tuple[str, ...] | None
    has_dropout: bool = True

    def __call__(self, weights: Any, x_BLD: Any, key_data: Any) -> Any:
        """A float32 number, or a float64 one."""
        num_layers = weights["up"].shape[0]
        kept = None if self.saved is None else rr.RECOMPUTE(save=self.saved)
        block, keys = partial(self.block, key=None), None
        if self.has_dropout:
            key = jax.random.wrap_key_data(key_data)
            block, keys = self.block, jax.random.split(key, num_layers)
        y_BLD = rr.stack(block, weights, x_BLD, keys, actions=kept)
        wide = jnp.promote_types(y_BLD.dtype, jnp.float32)
        return jnp.sum(y_BLD.astype(wide) ** 2)


@dataclass(frozen=True)
class Gradients:
    """The gradient of a stack of layers.

    Attributes:
      loss: Of weights, input and key.
      like: Weights and input, with the shardings that their gradients get.
    """

    loss: Callable[..., Any]
    like: Any

    def __call__(self, weights: Any, x_BLD: Any, key_data: Any) -> Any:
        """Of weights and input, laid out as those are."""
        found = jax.grad(self.loss, (0, 1))(weights, x_BLD, key_data)
        return jax.tree.map(
            lambda g, like: jax.lax.with_sharding_constraint(g, like.sharding),
            found,
            self.like,
        )


def step(
    size: Size,
    scheme: Scheme,
    num_layers: int,
    mesh: Any,
    *,
    length: int = LENGTH,
    dtype: Any = jnp.bfloat16,
    has_dropout: bool = True,
) -> rr.Step:
    """The gradient of a stack of layers.

    Args:
      size: The model.
      scheme: How it is spread, and what it keeps.
      num_layers: Of the stack.
      mesh: With the axes `data` and `model`.
      length: Of a sequence.
      dtype: Of weights and activations.
      has_dropout: Whether the layers drop anything.
    """
    rules, axes = scheme.rules, dict(mesh.shape)

    def spec(shape, names, dtype=dtype, is_weight=False):
        where = rules.spec(names, shape, axes, is_weight=is_weight)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, where))

    weights = {
        name: spec((num_layers, *shape), ("layers", *names), is_weight=True)
        for name, (shape, names) in weight_shapes(size).items()
    }
    x = spec((size.micro_batch, length, size.width), STREAM)
    key_data = spec((2,), (None,), jnp.uint32)
    block = Block(sharding.Layout(mesh, rules), cudnn=scheme.cudnn)
    loss = Loss(block, scheme.saved, has_dropout)
    gradients = Gradients(loss, (weights, x))
    return rr.Step(gradients, (weights, x, key_data), name="stack")


def problem(stack: rr.Step) -> rr.Problem:
    """The same step, with what each layer keeps left to a plan.

    Args:
      stack: Made by `step`.
    """
    gradients = stack.function
    loss = dataclasses.replace(gradients.loss, saved=None)
    with_loss = lambda loss: dataclasses.replace(gradients, loss=loss)
    layout = gradients.loss.block.layout
    make = lambda loss: (with_loss(loss), stack.specs)
    return rr.Problem(loss, stack.specs, make, name="stack", layout=layout)
