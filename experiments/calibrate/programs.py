"""The programs that a card runs, in three scales."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

import revremat as rr
from experiments.bench.programs import PROGRAMS as BENCH
from experiments.bench.programs import Size
from experiments.bench.programs.transformers import gpt2_xl
from experiments.configs import revbifpn_fashion
from revremat import Problem, reversible

Loss = Callable[..., jax.Array]
Scale = Literal["quick", "cpu", "card"]
"""`card` fits on 80 GB, `cpu` takes tens of milliseconds on a core, `quick` is tiny."""

_SIZES: tuple[Scale, ...] = ("quick", "cpu", "card")


@dataclass(frozen=True)
class Program:
    """One training step to run.

    Attributes:
      make: `make(target, scale)`. The step takes what it replaces first:
        `step(state, *rest) -> (state, others)`, the state donated.
      num_labels: By scale: whole numbers in its arguments are below that.
    """

    make: Callable[[Any, Scale], Problem]
    num_labels: dict[Scale, int]


class Here:
    """This machine's first device, as programs want their target."""

    num_devices = 1

    def mesh(self, axes: dict[str, int]) -> jax.sharding.Mesh:
        """A mesh of it, with Auto axes."""
        devices = np.array(jax.devices()[:1], dtype=object)
        auto = (jax.sharding.AxisType.Auto,) * len(axes)
        return jax.sharding.Mesh(devices.reshape([1] * len(axes)), tuple(axes), auto)


def make(name: str, target: Any, scale: Scale) -> Problem:
    """One of the programs.

    Args:
      name: One of `NAMES`.
      target: Has `num_devices` and `mesh(axes)`, such as `Here()`.
      scale: How large.
    """
    return PROGRAMS[name].make(target, scale)


def num_labels(name: str, scale: Scale) -> int:
    """Whole numbers in a program's arguments are below that."""
    return PROGRAMS[name].num_labels[scale]


def _spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _sgd(loss: Loss, rate: float = 1e-3) -> Callable[..., Any]:
    def step(params, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - rate * g, params, grads), value

    return step


def _problem(loss: Loss, params: Any, *batch: Any, step: Any = _sgd) -> Problem:
    specs = (params, *batch)
    return Problem(loss, specs, step=lambda loss: (step(loss), specs), donate=(0,))


def _mlp_loss(params, x):
    for up, down in params:
        hidden = jax.nn.gelu(x @ up.astype(x.dtype))
        x = x + hidden @ down.astype(x.dtype)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def _mlp_specs(scale: Scale) -> tuple[Any, Any]:
    width, depth, rows = {
        "quick": (32, 2, 16),
        "cpu": (256, 4, 512),
        "card": (2048, 8, 16_384),
    }[scale]
    layers = [(_spec(width, 4 * width), _spec(4 * width, width)) for _ in range(depth)]
    return layers, _spec(rows, width, dtype=_dtype(scale))


def _dtype(scale: Scale) -> Any:
    return jnp.bfloat16 if scale == "card" else jnp.float32


def _mlp(target: Any, scale: Scale) -> Problem:
    params, x = _mlp_specs(scale)
    return _problem(_mlp_loss, params, x)


def _accumulated(target: Any, scale: Scale) -> Problem:
    """Gradients of four micro-batches are added up in a scan."""
    params, x = _mlp_specs(scale)
    parts = _spec(4, *x.shape, dtype=x.dtype)

    def step(loss):
        def add(params, grads, part):
            return jax.tree.map(jnp.add, grads, jax.grad(loss)(params, part)), None

        def run(params, parts):
            zeros = jax.tree.map(jnp.zeros_like, params)
            grads, _ = jax.lax.scan(partial(add, params), zeros, parts)
            moved = jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)
            return moved, jnp.zeros(())

        return run, (params, parts)

    return Problem(_mlp_loss, (params, x), step=step, donate=(0,))


def _rematted(target: Any, scale: Scale) -> Problem:
    """Scanned layers whose insides are computed a second time."""
    params, x = _mlp_specs(scale)
    stacked = tuple(_spec(2 * len(params), *w.shape) for w in params[0])

    def loss(stacked, x):
        @jax.checkpoint
        def layer(x, weights):
            up, down = (w.astype(x.dtype) for w in weights)
            return x + jax.nn.gelu(x @ up) @ down, None

        return jnp.mean(jax.lax.scan(layer, x, stacked)[0].astype(jnp.float32) ** 2)

    # What a layer adds grows from layer to layer: after sixteen, steps of the usual
    # size overshoot, and values overflow.
    return _problem(loss, stacked, x, step=partial(_sgd, rate=1e-5))


def _conv_net(target: Any, scale: Scale) -> Problem:
    features, side, batch = {
        "quick": (8, 8, 2),
        "cpu": (32, 32, 16),
        "card": (256, 56, 128),
    }[scale]

    def loss(params, images):
        x = images
        for number, kernel in enumerate(params):
            stride = 2 if number % 2 else 1
            x = jax.lax.conv_general_dilated(
                x,
                kernel.astype(x.dtype),
                (stride, stride),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            x = jax.nn.relu(x)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    params = [_spec(3, 3, features, features) for _ in range(4)]
    images = _spec(batch, side, side, features, dtype=_dtype(scale))
    return _problem(loss, params, images)


def _stack_loss(weights, x):
    """Layers whose one residual of some size is their input."""

    def layer(w, x):
        return x + jnp.tanh(jnp.tanh(x @ w[0]) @ w[1])

    return rr.stack(layer, weights, x).astype(jnp.float32).mean()


def _products(target: Any, scale: Scale) -> Problem:
    """Twelve layers of two large products: what one of them keeps can be sent away."""
    depth, width, rows = {
        "quick": (3, 32, 16),
        "cpu": (6, 256, 256),
        "card": (12, 8192, 4096),
    }[scale]
    weights = _spec(depth, 2, width, width, dtype=_dtype(scale))
    return _problem(_stack_loss, weights, _spec(rows, width, dtype=_dtype(scale)))


def _offloaded(target: Any, scale: Scale) -> Problem:
    """The same, with all that it keeps in host memory."""
    found = _products(target, scale)
    plan = rr.trace(found).plan({"stack": rr.OFFLOAD})
    return _problem(rr.apply(found.loss, plan), *found.specs)


def _revbifpn(variant: Any, side: int, batch: int) -> Callable[..., Problem]:
    """A published RevBiFPN; on a CPU, whose compiler takes minutes, a plain chain."""

    def build(target: Any, scale: Scale) -> Problem:
        if scale != "card":
            return _reversible(target, scale)
        changes = {
            "variant": variant,
            "image_size": side,
            "channels": 3,
            "num_classes": 1000,
            "depthwise": "xla",
            "batch_size": batch,
        }
        return revbifpn_fashion.problem(target, **changes)

    return build


def _reversible(target: Any, scale: Scale) -> Problem:
    """A chain of couplings of two streams, inverted in the backward pass."""
    params, x = _mlp_specs(scale)

    def function(w, x):
        return jax.nn.gelu(x @ w[0].astype(x.dtype)) @ w[1].astype(x.dtype)

    coupling = reversible.additive(function, function)

    def loss(params, x):
        weights = [{"f": w, "g": w} for w in params]
        y = reversible.chain([coupling] * len(params), weights, (x, x))
        return jnp.mean(jnp.stack(y).astype(jnp.float32) ** 2)

    return _problem(loss, params, x)


def _of_bench(name: str, card: Size = "real") -> Callable[..., Problem]:
    """A program of the search benchmark; `card` names its size there."""
    sizes: dict[Scale, Size] = {"quick": "tiny", "cpu": "cpu", "card": card}
    return lambda target, scale: BENCH[name].make(target, sizes[scale])


def _fused_attention(target: Any, scale: Scale) -> Problem:
    """GPT-2 XL's layers with attention in one kernel, on cards by cuDNN."""
    size: Size = "tiny" if scale == "quick" else scale
    kernel = "cudnn" if scale == "card" else "dot_product"
    return gpt2_xl(target, size, attention=kernel)


def _labels(quick: int = 8, cpu: int = 8, card: int = 8) -> dict[Scale, int]:
    return dict(zip(_SIZES, (quick, cpu, card), strict=True))


PROGRAMS: dict[str, Program] = {
    "gpt2_xl_24": Program(_of_bench("gpt2_xl", "card"), _labels(64, 256, 50_257)),
    "gpt2_xl_24_fused": Program(_fused_attention, _labels(64, 256, 50_257)),
    "tiny_matmuls": Program(_of_bench("tiny_matmuls"), _labels()),
    "t5_large": Program(_of_bench("t5_large"), _labels(32, 256, 32_128)),
    "vit_l_384": Program(_of_bench("vit_l_384", "card"), _labels(10, 10, 1000)),
    "efficientnet_b7": Program(
        _of_bench("efficientnet_b7", "card"), _labels(10, 10, 1000)
    ),
    "mlp": Program(_mlp, _labels()),
    "conv_net": Program(_conv_net, _labels()),
    "accumulated": Program(_accumulated, _labels()),
    "rematted": Program(_rematted, _labels()),
    "products": Program(_products, _labels()),
    "offloaded": Program(_offloaded, _labels()),
    "moe": Program(_of_bench("moe", "card"), _labels(32, 256, 32_000)),
    "recurrence": Program(_of_bench("recurrence"), _labels(32, 128, 8192)),
    "revbifpn_s0": Program(_revbifpn("S0", 224, 256), _labels(card=1000)),
    "revbifpn_s2": Program(_revbifpn("S2", 256, 128), _labels(card=1000)),
    "unet": Program(_of_bench("unet"), _labels()),
}
"""By name. `gpt2_xl_24` is GPT-2 XL with half of its layers."""

NAMES = tuple(PROGRAMS)
