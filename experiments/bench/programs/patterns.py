"""Patterns in which what is kept can be far less than what plain autodiff keeps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

import revremat as rr
from experiments.bench.plain_jax import layer_of
from experiments.bench.programs._entry import (
    Entry,
    Size,
    compute_dtype,
    spec,
    training,
)
from experiments.bench.programs._layers import (
    layer_norm,
    linear,
    linear_specs,
    norm_specs,
)


@dataclass(frozen=True)
class _InTurn:
    """Equal layers one after the other, as Python's `for` writes them.

    Each has a scale and a bias, and changes an array of rows.

    Attributes:
      name: What the program is called.
      layer: From a layer's weights and what goes in to what comes out.
      sizes: For each size: layers, rows, and numbers in a row.
    """

    name: str
    layer: Callable[[Any, jax.Array], jax.Array]
    sizes: Mapping[Size, tuple[int, int, int]]

    def __call__(self, target: Any, size: Size) -> rr.Problem:
        """The program in a size."""
        del target
        depth, rows, width = self.sizes[size]
        dtype = compute_dtype(size)

        def loss(params, batch):
            x = batch["x"].astype(dtype)
            for w in params:
                x = layer_of(self.layer)(w, x)
            return ((x.astype(float) - batch["y"]) ** 2).mean()

        x = spec(rows, width)
        return training(self.name, loss, [norm_specs(width)] * depth, {"x": x, "y": x})


def _wave(w, x):
    """A wave, a decay and a gate, and nothing that is no elementwise function."""
    wide = x * w["scale"].astype(x.dtype) + w["bias"].astype(x.dtype)
    wide = jnp.sin(wide) + jnp.exp(-wide * wide)
    return x + jnp.tanh(wide) * jax.nn.sigmoid(x)


def _sharpen(w, x):
    """Attention without a product: a softmax over rows."""
    wide = x.astype(w["scale"].dtype)
    shares = jax.nn.softmax(wide * w["scale"] + w["bias"])
    return x + (shares * x.shape[1]).astype(x.dtype)


def _norm(w, x):
    """Layer norm and a nonlinearity."""
    return x + jax.nn.gelu(layer_norm(w, x))


def _gate(w, x):
    """Gated products of an array with its own neighbours."""
    w = jax.tree.map(lambda a: a.astype(x.dtype), w)
    near = jnp.roll(x, 1, axis=-1)
    value = jax.nn.silu(x * w["scale"]) * near
    gate = jax.nn.sigmoid(near * w["scale"] + w["bias"])
    return gate * value + (1 - gate) * x


_elementwise = _InTurn(
    "elementwise_chain",
    _wave,
    {"tiny": (4, 8, 8), "cpu": (6, 1024, 512), "real": (48, 81_920, 4096)},
)
_softmaxes = _InTurn(
    "softmax_chain",
    _sharpen,
    {"tiny": (4, 8, 8), "cpu": (12, 2048, 512), "real": (24, 262_144, 4096)},
)
_norms = _InTurn(
    "norm_chain",
    _norm,
    {"tiny": (4, 8, 8), "cpu": (12, 2048, 512), "real": (24, 163_840, 4096)},
)
_gates = _InTurn(
    "gated_products",
    _gate,
    {"tiny": (4, 8, 8), "cpu": (12, 2048, 512), "real": (24, 163_840, 4096)},
)


def _tiny_matmuls(target: Any, size: Size) -> rr.Problem:
    """Products so narrow that they cost no more than reading their operand."""
    del target
    depth, rows, width = {
        "tiny": (4, 8, 4),
        "cpu": (32, 16_384, 16),
        "real": (64, 2**24, 16),
    }[size]

    def layer(w, x):
        return x + jnp.tanh(linear(w, x))

    def loss(params, batch):
        x = batch["x"].astype(compute_dtype(size))
        x = jax.lax.scan(lambda x, w: (layer(w, x), None), x, params)[0]
        return ((x.astype(float) - batch["y"]) ** 2).mean()

    x = spec(rows, width)
    weights = linear_specs(depth, width, width)
    return training("tiny_matmuls", loss, weights, {"x": x, "y": x})


def _optimizer_inside(target: Any, size: Size) -> rr.Problem:
    """Steps of descent with momentum, judged by what they lead to.

    Source: Finn et al. 2017, "Model-agnostic meta-learning"; learnt rates as in Li et
    al. 2017, "Meta-SGD".
    """
    del target
    iterations, rows, width, depth = {
        "tiny": (3, 4, 4, 2),
        "cpu": (8, 64, 128, 2),
        "real": (48, 8192, 4096, 4),
    }[size]
    dtype = compute_dtype(size)

    def fit_of(weights, x, y):
        x = x.astype(dtype)
        for w in weights:
            x = x + jnp.tanh(linear(w, x))
        return ((x.astype(float) - y) ** 2).mean()

    def loss(params, batch):
        rate = jax.nn.softplus(params["rate"])
        decay = jax.nn.sigmoid(params["decay"])

        def iteration(state, examples):
            weights, speed = state
            found = jax.grad(fit_of)(weights, *examples)
            speed = jax.tree.map(lambda v, g: decay * v + g, speed, found)
            moved = jax.tree.map(lambda w, v: w - rate * v, weights, speed)
            return (moved, speed), None

        still = jax.tree.map(jnp.zeros_like, params["weights"])
        state, examples = (params["weights"], still), (batch["x"], batch["y"])
        (weights, _), _ = jax.lax.scan(iteration, state, examples)
        return fit_of(weights, *batch["judged"])

    params = {
        "weights": [linear_specs(width, width)] * depth,
        "rate": spec(),
        "decay": spec(),
    }
    many, x = spec(iterations, rows, width), spec(rows, width)
    given = {"x": many, "y": many, "judged": (x, x)}
    return training("unrolled_optimizer", loss, params, given)


def _rollout(target: Any, size: Size) -> rr.Problem:
    """Shallow water over a learnt sea bed, compared with what was seen at the end.

    The linear equations on a staggered grid with drag that grows with the speed, in
    512 steps; waves run around the edges.
    """
    del target
    steps, batch, side = {
        "tiny": (8, 2, 8),
        "cpu": (256, 4, 64),
        "real": (512, 2, 2048),
    }[size]
    gravity, pace = 9.8, 0.02

    def loss(params, batch):
        depth = 1.0 + 0.1 * jnp.tanh(params["bed"])
        drag = jax.nn.softplus(params["drag"])
        after = lambda a, axis: jnp.roll(a, -1, axis)
        before = lambda a, axis: jnp.roll(a, 1, axis)

        def step(state, _):
            height, u, v = state
            u = u - pace * gravity * (height - before(height, 1))
            v = v - pace * gravity * (height - before(height, 2))
            slower = 1 / (1 + pace * drag * jnp.sqrt(u * u + v * v + 1e-6))
            u, v = u * slower, v * slower
            whole = depth + height
            across, along = whole * u, whole * v
            spread = after(across, 1) - across + after(along, 2) - along
            return (height - pace * spread, u, v), None

        still = jnp.zeros_like(batch["start"])
        state, _ = jax.lax.scan(
            step, (0.1 * batch["start"], still, still), length=steps
        )
        return ((state[0] - batch["seen"]) ** 2).mean()

    params = {"bed": spec(side, side), "drag": spec()}
    grid = spec(batch, side, side)
    return training("physics_rollout", loss, params, {"start": grid, "seen": grid})


def _kinetics(target: Any, size: Size) -> rr.Problem:
    """Reactions that oscillate, cell by cell: where they began, from where they are.

    The Brusselator (Prigogine and Lefever 1968) in steps of Runge and Kutta's fourth
    order, four to an iteration of the loop: some hundred elementwise functions one
      after the
    other, of which plain autodiff keeps some forty.
    """
    del target
    iterations, cells = {
        "tiny": (4, 16),
        "cpu": (64, 16_384),
        "real": (128, 3 * 2**20),
    }[size]
    pace, a, b = 0.01, 1.0, 3.0

    def rates(x, y):
        made = x * x * y
        return a - (b + 1) * x + made, b * x - made

    def step(state):
        move = lambda by, slope: [s + by * k for s, k in zip(state, slope, strict=True)]
        first = rates(*state)
        second = rates(*move(pace / 2, first))
        third = rates(*move(pace / 2, second))
        last = rates(*move(pace, third))
        slopes = zip(first, second, third, last, strict=True)
        return move(pace / 6, [p + 2 * (q + r) + s for p, q, r, s in slopes])

    def iteration(state, _):
        for _ in range(4):
            state = step(state)
        return state, None

    def loss(params, batch):
        state = [jax.nn.softplus(params[name]) for name in ("x", "y")]
        state, _ = jax.lax.scan(iteration, state, length=iterations)
        return sum(
            ((s - batch[n]) ** 2).mean() for s, n in zip(state, "xy", strict=True)
        )

    pair = {"x": spec(cells), "y": spec(cells)}
    return training("kinetics", loss, pair, pair)


_novel = partial(Entry, group="novel", target="h100:1")
ENTRIES = (
    _novel(
        "elementwise_chain",
        make=_elementwise,
        about="48 layers of elementwise functions of 81920 x 4096 numbers",
    ),
    _novel(
        "softmax_chain",
        make=_softmaxes,
        about="24 softmaxes over 262144 rows of 4096",
    ),
    _novel(
        "norm_chain",
        make=_norms,
        about="24 layer norms with GELU over 163840 rows of 4096",
    ),
    _novel(
        "gated_products",
        make=_gates,
        about="24 gated products of 163840 rows of 4096 with their neighbours",
        data_std=0.25,  # above one, products of products leave float32
    ),
    _novel(
        "unrolled_optimizer",
        make=_optimizer_inside,
        about="48 steps of descent with momentum inside the loss, 4 layers of 4096",
    ),
    _novel(
        "physics_rollout",
        make=_rollout,
        about="512 steps of shallow water on 2 grids of 2048 x 2048",
    ),
    _novel(
        "kinetics",
        make=_kinetics,
        about="512 Runge-Kutta steps of a reaction in 3,145,728 cells",
    ),
    _novel(
        "tiny_matmuls",
        make=_tiny_matmuls,
        about="64 products of 2^24 rows with 16 x 16 weights",
    ),
)
