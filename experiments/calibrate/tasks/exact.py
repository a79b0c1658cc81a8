"""Whether the inverse of an exact chain gives back what was there, bit for bit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp

from experiments.calibrate.device import Job
from experiments.calibrate.isolated import differing, evaluations
from revremat import SAVE, reversible
from revremat.xla import Module, read_compiled

DTYPES = ("bfloat16", "float16", "float32")
Streams = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class Program:
    """An exact chain, whose maps are computed in one dtype.

    Attributes:
      dtype: Of the maps' products; streams are float32 on the grid.
      width: Channels of each of two streams.
      depth: Layers.
      rows: Examples.
    """

    dtype: str
    width: int
    depth: int
    rows: int

    @cached_property
    def layers(self) -> reversible.Repeat:
        """All layers as one coupling."""
        couple = reversible.additive(_map(self.dtype), _map(self.dtype))
        return reversible.Repeat(reversible.exact(couple), self.depth)

    def inputs(self) -> tuple[dict[str, jax.Array], Streams]:
        """Weights and streams, made anew."""
        shape = (self.depth, self.width, self.width)
        params = {
            name: 0.3 * jax.random.normal(jax.random.key(k), shape)
            for k, name in enumerate("fg")
        }
        first, second = (
            jax.random.normal(key, (self.rows, self.width))
            for key in jax.random.split(jax.random.key(9))
        )
        return params, (first, second)

    def loss(self, params: Any, x: Streams) -> jax.Array:
        """The loss of a chain that is inverted."""
        return _squares(reversible.chain([self.layers], [params], x))

    def saved(self, params: Any, x: Streams) -> jax.Array:
        """The same of a chain that saves."""
        return _squares(reversible.chain([self.layers], [params], x, actions=SAVE))

    def plain(self, params: Any, x: Streams) -> jax.Array:
        """The same without a chain: plain autodiff saves."""
        return _squares(self.layers.forward(params, x))

    def restored(self, params: Any, x: Streams) -> tuple[Streams, Any, Streams]:
        """The input, there and back, and all gradients, by one program."""
        y = self.layers.forward(params, x)
        y, ct = jax.lax.optimization_barrier((y, jax.grad(_squares)(y)))
        return self.layers.pull_back(params, y, ct)


def exact(job: Job) -> None:
    """The exact mode at depth 1000: every number after the way there and back.

    The maps are computed in each of three dtypes, the streams in float32 on the grid.
    The inputs have to come back from the inverse alone, from a backward pass compiled
    by itself, and from one in the same program as the forward pass.
    """
    width, depth, rows = (16, 50, 8) if job.is_quick else (512, 1000, 2048)
    for dtype in DTYPES[:1] if job.is_quick else DTYPES:
        program = Program(dtype, width, depth, rows)
        layers = program.layers
        params, x = program.inputs()
        wanted = reversible.to_grid(x)
        y = jax.jit(layers.forward)(params, x)
        ones = jax.tree.map(jnp.ones_like, y)
        step = jax.jit(jax.grad(program.loss, (0, 1))).lower(params, x).compile()
        maps = evaluations(Module.from_bytes(read_compiled(step).hlo))
        grads = step(params, x)
        found = {
            "inverse": jax.jit(layers.inverse)(params, y),
            "pull_back": jax.jit(layers.pull_back)(params, y, ones)[0],
            "step": jax.jit(program.restored)(params, x)[0],
        }
        apart = {
            name: _apart(grads, jax.jit(jax.grad(loss, (0, 1)))(params, x))
            for name, loss in (("plain", program.plain), ("saved", program.saved))
        }
        job.tell(
            "measured",
            what="exact inverse",
            dtype=dtype,
            depth=depth,
            width=width,
            numbers=sum(a.size for a in wanted),
            **{f"wrong_after_{k}": _differing(v, wanted) for k, v in found.items()},
            **{f"largest_error_after_{k}": _off(v, wanted) for k, v in found.items()},
            **{f"gradient_error_to_{k}": error for k, error in apart.items()},
            maps_of_other_kernels=differing(maps),
            share_of_range=float(reversible.check_range(y)),
        )


def _map(dtype: str) -> Callable[[jax.Array, jax.Array], jax.Array]:
    def function(w: jax.Array, x: jax.Array) -> jax.Array:
        normed = x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        return jnp.tanh(normed.astype(dtype) @ w.astype(dtype))

    return function


def _squares(streams: Streams) -> jax.Array:
    return sum(((a * a).mean() for a in streams), jnp.zeros(()))


def _differing(found: Streams, wanted: Streams) -> int:
    """How many numbers are not bit for bit what they should be; NaN is none of them."""
    pairs = zip(found, wanted, strict=True)
    return sum(int((~(a == b)).sum()) for a, b in pairs)


def _off(found: Streams, wanted: Streams) -> float:
    """The largest absolute error."""
    pairs = zip(found, wanted, strict=True)
    return max(float(jnp.abs(a - b).max()) for a, b in pairs)


def _apart(found: Any, wanted: Any) -> float:
    """The largest difference of any gradient, by norms, relative to it."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    norm = jnp.linalg.norm
    return max(float(norm((a - b).ravel()) / norm(b.ravel())) for a, b in pairs)
