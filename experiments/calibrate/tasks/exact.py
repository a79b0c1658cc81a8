"""Whether the inverse of an exact chain gives back what was there, bit for bit."""

import jax
import jax.numpy as jnp

from experiments.calibrate.device import Job
from revremat import reversible

DTYPES = ("bfloat16", "float16", "float32")


def exact(job: Job) -> None:
    """The exact mode at depth 1000: every number after the way there and back.

    The maps are computed in each of three dtypes, the streams in float32 on the grid.
    Both the inverse alone and the one within the backward pass are held to the inputs.
    """
    width, depth, rows = (16, 50, 8) if job.is_quick else (512, 1000, 2048)
    for dtype in DTYPES:
        couple = reversible.exact(reversible.additive(_map(dtype), _map(dtype)))
        layers = reversible.Repeat(couple, depth)
        params = {
            name: 0.3 * jax.random.normal(jax.random.key(k), (depth, width, width))
            for k, name in enumerate("fg")
        }
        keys = jax.random.split(jax.random.key(9))
        x = tuple(jax.random.normal(key, (rows, width)) for key in keys)
        wanted = reversible.to_grid(x)
        y = jax.jit(layers.forward)(params, x)
        back = jax.jit(layers.inverse)(params, y)
        ones = jax.tree.map(jnp.ones_like, y)
        restored, *_ = jax.jit(layers.pull_back)(params, y, ones)
        job.tell(
            "measured",
            what="exact inverse",
            dtype=dtype,
            depth=depth,
            width=width,
            numbers=sum(a.size for a in wanted),
            wrong_after_inverse=_differing(back, wanted),
            wrong_after_pull_back=_differing(restored, wanted),
            largest_error=max(
                float(jnp.abs(a - b).max()) for a, b in zip(back, wanted, strict=True)
            ),
            share_of_range=float(reversible.check_range(y)),
        )


def _map(dtype: str):
    def function(w: jax.Array, x: jax.Array) -> jax.Array:
        normed = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        return jnp.tanh(normed.astype(dtype) @ w.astype(dtype))

    return function


def _differing(found: tuple[jax.Array, ...], wanted: tuple[jax.Array, ...]) -> int:
    """How many numbers are not bit for bit what they should be; NaN is none of them."""
    pairs = zip(found, wanted, strict=True)
    return sum(int((~(a == b)).sum()) for a, b in pairs)
