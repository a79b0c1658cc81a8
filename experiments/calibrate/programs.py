"""Six training steps that are predicted, then compiled and run."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from experiments.configs import gpt, vit_digits
from revremat import Problem

Loss = Callable[..., jax.Array]


def make(name: str, target: Any, platform: str, quick: bool = False) -> Problem:
    """One of the programs, in the size that suits the platform.

    Its step takes what it replaces first: `step(x, *rest) -> (x, others)`.

    Args:
      name: One of `NAMES`.
      target: Has `num_devices` and `mesh(axes)`.
      platform: `gpu` or `cpu`.
      quick: Tiny, for tests.
    """
    return _PROGRAMS[name](target, 0 if quick else 2 if platform == "gpu" else 1)


def values(specs: Any) -> Any:
    """Numbers of those shapes: small random ones, tokens and labels zero."""

    def fill(spec):
        if jnp.issubdtype(spec.dtype, jnp.floating):
            return 0.02 * jax.random.normal(jax.random.key(1), spec.shape, spec.dtype)
        return jnp.zeros(spec.shape, spec.dtype)

    put = lambda s: jax.jit(partial(fill, s), out_shardings=s.sharding)()
    return jax.tree.map(put, specs)


def _spec(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _sgd(loss: Loss) -> Callable[..., Any]:
    def step(params, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), value

    return step


def _problem(loss: Loss, params: Any, *batch: Any, step: Any = _sgd) -> Problem:
    specs = (params, *batch)
    return Problem(loss, specs, step=lambda loss: (step(loss), specs), donate=(0,))


def _mlp_loss(params, x):
    for up, down in params:
        hidden = jax.nn.gelu(x @ up.astype(x.dtype))
        x = x + hidden @ down.astype(x.dtype)
    return jnp.mean(x.astype(jnp.float32) ** 2)


def _mlp_specs(size: int) -> tuple[Any, Any]:
    width, depth = ((32, 2), (256, 4), (2048, 8))[size]
    rows = (16, 512, 16_384)[size]
    layers = [(_spec(width, 4 * width), _spec(4 * width, width)) for _ in range(depth)]
    dtype = jnp.bfloat16 if size == 2 else jnp.float32
    return layers, _spec(rows, width, dtype=dtype)


def _mlp(target: Any, size: int) -> Problem:
    params, x = _mlp_specs(size)
    return _problem(_mlp_loss, params, x)


def _accumulated(target: Any, size: int) -> Problem:
    """Gradients of four micro-batches are added up in a scan."""
    params, x = _mlp_specs(size)
    parts = _spec(4, *x.shape, dtype=x.dtype)

    def step(loss):
        def add(params, grads, part):
            return jax.tree.map(jnp.add, grads, jax.grad(loss)(params, part)), None

        def run(params, parts):
            zeros = jax.tree.map(jnp.zeros_like, params)
            grads, _ = jax.lax.scan(partial(add, params), zeros, parts)
            moved = jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)
            return moved, jnp.zeros(())

        return run

    return _problem(_mlp_loss, params, parts, step=step)


def _rematted(target: Any, size: int) -> Problem:
    """Scanned layers whose insides are computed a second time."""
    params, x = _mlp_specs(size)
    stacked = tuple(_spec(2 * len(params), *w.shape) for w in params[0])

    def loss(stacked, x):
        @jax.checkpoint
        def layer(x, weights):
            up, down = (w.astype(x.dtype) for w in weights)
            return x + jax.nn.gelu(x @ up) @ down, None

        return jnp.mean(jax.lax.scan(layer, x, stacked)[0].astype(jnp.float32) ** 2)

    return _problem(loss, stacked, x)


def _conv_net(target: Any, size: int) -> Problem:
    features, side, batch = ((8, 8, 2), (32, 32, 16), (256, 56, 128))[size]
    dtype = jnp.bfloat16 if size == 2 else jnp.float32

    def loss(params, images):
        x = images
        for number, kernel in enumerate(params):
            stride = 2 if number % 2 else 1
            dims = ("NHWC", "HWIO", "NHWC")
            x = jax.lax.conv_general_dilated(
                x,
                kernel.astype(x.dtype),
                (stride, stride),
                "SAME",
                dimension_numbers=dims,
            )
            x = jax.nn.relu(x)
        return jnp.mean(x.astype(jnp.float32) ** 2)

    params = [_spec(3, 3, features, features) for _ in range(4)]
    return _problem(loss, params, _spec(batch, side, side, features, dtype=dtype))


def _gpt(target: Any, size: int) -> Problem:
    large = {
        "num_layers": 12,
        "width": 1024,
        "mlp_width": 4096,
        "num_heads": 16,
        "seq_len": 1024,
        "batch_size": 8,
        "vocab_size": 32_768,
        "model.dtype": "bfloat16",
    }
    small = {"num_layers": 1, "width": 16, "mlp_width": 32, "seq_len": 16}
    return gpt.problem(target, **(small, {}, large)[size])


def _vit(target: Any, size: int) -> Problem:
    large = {
        "num_layers": 12,
        "width": 768,
        "mlp_width": 3072,
        "num_heads": 12,
        "image_size": 224,
        "patch_size": 16,
        "batch_size": 128,
        "model.dtype": "bfloat16",
    }
    small = {"num_layers": 1, "batch_size": 4}
    return vit_digits.problem(target, **(small, {}, large)[size])


_PROGRAMS: dict[str, Callable[[Any, int], Problem]] = {
    "mlp": _mlp,
    "accumulated": _accumulated,
    "rematted": _rematted,
    "conv_net": _conv_net,
    "gpt": _gpt,
    "vit": _vit,
}
NAMES = tuple(_PROGRAMS)
