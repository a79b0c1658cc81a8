"""Eight small training steps that differ in what a compiler does with them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from experiments.configs import gpt, vit_digits
from revremat import Problem, Target

P = PartitionSpec
F32 = jnp.float32


def spec(*shape: int, dtype: Any = F32, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def sgd(loss: Callable[..., jax.Array]) -> Callable[..., Any]:
    """A step that moves the parameters and returns the loss."""

    def step(params, *batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        with jax.named_scope("sgd"):
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    return step


def mlp_loss(params, x):
    for number, w in enumerate(params):
        with jax.named_scope(f"layer_{number}"):
            x = jnp.tanh(x @ w)
    with jax.named_scope("head"):
        return jnp.mean(x**2)


MLP = tuple(spec(256, 256) for _ in range(4))


def mlp(target: Target) -> Problem:
    return Problem(
        mlp_loss,
        (MLP, spec(512, 256)),
        step=lambda loss: (sgd(loss), (MLP, spec(512, 256))),
    )


def mlp_donated(target: Target) -> Problem:
    return Problem(mlp_loss, (MLP, spec(512, 256)), mlp(target).step, donate=(0,))


def conv_net(target: Target) -> Problem:
    def loss(params, images):
        x = images
        for kernel in params["kernels"]:
            x = jax.lax.conv_general_dilated(
                x, kernel, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
            x = jax.nn.relu(x)
        return jnp.mean((x.mean((1, 2)) @ params["head"]) ** 2)

    params = {
        "kernels": [spec(3, 3, 8, 32), spec(3, 3, 32, 64)],
        "head": spec(64, 10),
    }
    specs = (params, spec(8, 64, 64, 8))
    return Problem(loss, specs, step=lambda loss: (sgd(loss), specs))


def accumulated(target: Target) -> Problem:
    def step(loss, params, batches):
        def add(grads, batch):
            return jax.tree.map(jnp.add, grads, jax.grad(loss)(params, batch)), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        grads, _ = jax.lax.scan(add, zeros, batches)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    specs = (MLP, spec(4, 128, 256))
    return Problem(
        mlp_loss, (MLP, spec(128, 256)), lambda loss: (partial(step, loss), specs)
    )


def sharded(target: Target) -> Problem:
    """Tensor and data parallel, 2 x 4; on one device without a mesh."""
    many = target.num_devices > 1
    mesh = target.mesh({"data": 2, "model": 4}) if many else None

    def place(*axes: str | None) -> NamedSharding | None:
        return NamedSharding(mesh, P(*axes)) if mesh is not None else None

    params = (
        spec(8, 256, 1024, sharding=place(None, None, "model")),
        spec(8, 1024, 256, sharding=place(None, "model", None)),
    )
    x = spec(512, 256, sharding=place("data"))

    def loss(params, x):
        def layer(x, ws):
            up, down = ws
            return x + jnp.tanh(x @ up) @ down, None

        return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)

    return Problem(loss, (params, x), lambda loss: (sgd(loss), (params, x)), (0,))


SMALL_GPT = {
    "num_layers": 3,
    "width": 64,
    "num_heads": 2,
    "seq_len": 64,
    "batch_size": 8,
}


def gpt_scanned(target: Target) -> Problem:
    return gpt.problem(target, **SMALL_GPT)


def gpt_unrolled(target: Target) -> Problem:
    return gpt.problem(target, **SMALL_GPT, scan=False)


def vit(target: Target) -> Problem:
    return vit_digits.problem(target, num_layers=2, batch_size=16)


PROGRAMS: dict[str, Callable[[Target], Problem]] = {
    f.__name__: f
    for f in (
        mlp,
        mlp_donated,
        conv_net,
        accumulated,
        sharded,
        gpt_scanned,
        gpt_unrolled,
        vit,
    )
}


def enlarged(x, narrow, wide):
    """Bilinear enlargement between two convolutions; see `NO_TILING`."""
    dims = ("NHWC", "HWIO", "NHWC")
    convolve = lambda x, k: jax.lax.conv_general_dilated(
        x, k, (1, 1), "SAME", dimension_numbers=dims
    )
    x = convolve(x, narrow)
    shape = (x.shape[0], 2 * x.shape[1], 2 * x.shape[2], x.shape[3])
    x = jax.nn.hard_swish(jax.image.resize(x, shape, "bilinear"))
    return (convolve(x, wide) ** 2).sum()


NO_TILING = spec(16, 50, 84, 160), spec(1, 1, 160, 160), spec(3, 3, 160, 32)
"""Arguments of `enlarged` for which XLA tiles one product of its gradient in no way."""
