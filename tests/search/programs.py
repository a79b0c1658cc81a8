"""Small programs that between them make a search use all it has."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import revremat as rr

F32, BF16 = jnp.float32, jnp.bfloat16


def array(*shape: int, dtype: Any = F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def gpt(layers: int = 12, width: int = 128, length: int = 256) -> rr.Problem:
    """A scan of blocks of attention and an MLP."""

    def block(x, w):
        heads = lambda a: a.reshape(*a.shape[:2], 2, width // 2)
        q, k, v = (heads(x @ w[n]) for n in "qkv")
        logits = jnp.einsum("bthd,bshd->bhts", q, k).astype(F32)
        weights = jax.nn.softmax(logits).astype(x.dtype)
        mixed = jnp.einsum("bhts,bshd->bthd", weights, v).reshape(x.shape)
        x = x + mixed @ w["out"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    def loss(w, x):
        return jnp.square(jax.lax.scan(block, x, w)[0].astype(F32)).mean()

    square = array(layers, width, width, dtype=BF16)
    w = dict.fromkeys(("q", "k", "v", "out"), square)
    w["up"] = array(layers, width, 4 * width, dtype=BF16)
    w["down"] = array(layers, 4 * width, width, dtype=BF16)
    return rr.Problem(loss, (w, array(4, length, width, dtype=BF16)), name="gpt")


def repeats(layers: int = 6) -> rr.Problem:
    """A Python loop of equal layers."""

    def loss(ws, x):
        for w in ws:
            x = x + jnp.sin(jnp.tanh(x @ w["up"])) @ w["down"]
        return jnp.square(x).mean()

    w = {"up": array(64, 256), "down": array(256, 64)}
    return rr.Problem(loss, ([w] * layers, array(2048, 64)), name="repeats")


def microbatches(layers: int = 8) -> rr.Problem:
    """A scan of layers within a scan over microbatches."""

    def layer(x, w):
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    def loss(w, xs):
        def one(total, x):
            return total + jnp.square(jax.lax.scan(layer, x, w)[0]).mean(), None

        return jax.lax.scan(one, 0.0, xs)[0] / xs.shape[0]

    w = {"up": array(layers, 64, 256), "down": array(layers, 256, 64)}
    return rr.Problem(loss, (w, array(4, 1024, 64)), name="microbatches")


def time_steps() -> rr.Problem:
    """A scan over time in a scan over layers: both may be recomputed at once."""

    def step(h, x, w):
        h = h / 2 + jnp.tanh((x + h) @ w["up"]) @ w["down"]
        return h, h

    def over_time(xs, w):
        zeros = jnp.zeros(xs.shape[1:], xs.dtype)
        return xs + jax.lax.scan(lambda h, x: step(h, x, w), zeros, xs)[1], None

    def loss(w, xs):
        return jnp.square(jax.lax.scan(over_time, xs, w)[0]).mean()

    w = {"up": array(4, 64, 512), "down": array(4, 512, 64)}
    return rr.Problem(loss, (w, array(32, 128, 64)), name="time_steps")


def wide(layers: int = 10) -> rr.Problem:
    """Layers that compute long enough for what they send to the host."""

    def layer(x, w):
        return x + jnp.tanh(jnp.sin(x @ w)) @ w.T, None

    def loss(w, x):
        return jax.lax.scan(layer, x, w)[0].astype(F32).sum()

    square = array(layers, 8192, 8192, dtype=BF16)
    return rr.Problem(loss, (square, array(8192, 8192, dtype=BF16)), name="wide")


def reversible(layers: int = 12) -> rr.Problem:
    """Layers that know their inverse."""

    def layer(w, x):
        a, b = x
        a = a + jnp.tanh(b @ w["f"]) @ w["f"].T
        return a, b + jnp.tanh(a @ w["g"]) @ w["g"].T

    def undo(w, y):
        a, b = y
        b = b - jnp.tanh(a @ w["g"]) @ w["g"].T
        return a - jnp.tanh(b @ w["f"]) @ w["f"].T, b

    def loss(w, x):
        a, b = rr.stack(layer, w, x, inverse=undo)
        return jnp.square(a).mean() + jnp.square(b).mean()

    w = {"f": array(layers, 64, 256), "g": array(layers, 64, 256)}
    x = (array(2048, 64), array(2048, 64))
    return rr.Problem(loss, (w, x), name="reversible")


def two_kinds(layers: int = 4) -> rr.Problem:
    """Two units of unequal layers in turn, out of loops."""

    def wide(w, x):
        return x + jnp.sin(jnp.tanh(x @ w["up"])) @ w["down"]

    def gated(w, x):
        y = jax.nn.softmax(jnp.cos(x @ w["gate"]), axis=-1)
        return x + (y * jnp.exp(-(y**2))) @ w["back"]

    def loss(params, x):
        for w in params:
            x = rr.block(gated, "gated")(w, rr.block(wide, "wide")(w, x))
        return (x**2).mean()

    one = {
        "up": array(256, 1024, dtype=BF16),
        "down": array(1024, 256, dtype=BF16),
        "gate": array(256, 512, dtype=BF16),
        "back": array(512, 256, dtype=BF16),
    }
    args = ([one] * layers, array(2048, 256, dtype=BF16))
    return rr.Problem(loss, args, name="two_kinds")


def accumulated() -> rr.Problem:
    """Three kinds of blocks over microbatches: gradients of weights are put off."""

    def sines(w, x):
        return x + jnp.sin(jnp.tanh(x @ w["up"])) @ w["down"]

    def gates(w, x):
        up = x @ w["up"]
        return x + (jax.nn.silu(up) * jnp.cos(up)) @ w["down"]

    def weighted(w, x):
        up = jax.nn.softmax(x @ w["up"])
        return x + (up * jnp.exp(-up)) @ w["down"]

    def loss(ws, x):
        for layer, w in zip((sines, gates, weighted) * 2, ws, strict=True):
            x = rr.block(layer, layer.__name__)(w, x)
        return jnp.square(x).mean()

    w = {"up": array(256, 1024, dtype=BF16), "down": array(1024, 256, dtype=BF16)}
    weights = [w] * 6

    def step(loss):
        def whole(ws, batches):
            def one(total, x):
                value, gradients = jax.value_and_grad(loss)(ws, x)
                return jax.tree.map(jnp.add, total, gradients), value

            return jax.lax.scan(one, jax.tree.map(jnp.zeros_like, ws), batches)

        return whole, (weights, array(4, 4096, 256, dtype=BF16))

    args = (weights, array(4096, 256, dtype=BF16))
    return rr.Problem(loss, args, step, name="accumulated")


@dataclass(frozen=True)
class Case:
    """A program on a target, and how it is searched.

    Attributes:
      make: The program.
      target: Where it would run.
      shares: Budgets, of what the baseline takes; by the last nothing fits.
      limits: Most compiles, by the second budget.
      alone: Whether units are costed without the program around them, whatever its
        size.
      repeats_loss: Whether the program has a step of its own.
      is_modelled: Whether measurements are made up (`tests/search/model.py`), where
        compiling takes long; the others are the compiler's.
    """

    make: Callable[[], rr.Problem]
    target: str
    shares: tuple[float, float, float] = (0.75, 0.5, 0.05)
    limits: tuple[int, ...] = (12, 16)
    alone: bool = False
    is_modelled: bool = False
    repeats_loss: bool = False

    @property
    def name(self) -> str:
        return f"{self.make.__name__}-{self.target.split(':')[0]}"


CASES = {
    case.name: case
    for case in (
        Case(gpt, "h100:1"),
        Case(repeats, "cpu:1"),
        Case(repeats, "h100:1"),
        Case(reversible, "cpu:1", is_modelled=True),
        Case(microbatches, "cpu:1", limits=(16, 24), is_modelled=True),
        Case(microbatches, "h100:1", limits=(16, 24)),
        Case(time_steps, "h100:1", (0.5, 0.3, 0.02), limits=(14, 20), is_modelled=True),
        Case(wide, "h100:1", (0.7, 0.55, 0.05)),
        Case(reversible, "h100:1"),
        Case(two_kinds, "cpu:1", limits=(24, 32), alone=True),
        Case(two_kinds, "h100:1", limits=(24, 32), is_modelled=True),
        Case(accumulated, "h100:1", limits=(40,), repeats_loss=True),
    )
}
