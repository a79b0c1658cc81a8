"""A stack of a few small layers, for what takes a program and any will do."""

import jax
import jax.numpy as jnp

import revremat as rr

LAYERS, WIDTH, ROWS = 6, 16, 512


def layer(w, x):
    """Contracts over 16, over 48, and over 16 with a wider result."""
    wide = rr.name(x @ w["up"], "wide")
    back = rr.name((wide * wide) @ w["down"], "back")
    wider = rr.name((back * back) @ w["out"], "wider")
    return x + (wider * wider).reshape(*x.shape, 4).sum(-1)


def loss(w, x):
    return (rr.stack(layer, w, x) ** 2).mean()


def problem() -> rr.Problem:
    shape = lambda *s: jax.ShapeDtypeStruct((LAYERS, *s), jnp.float32)
    w = {"up": shape(16, 48), "down": shape(48, 16), "out": shape(16, 64)}
    return rr.Problem(loss, (w, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)))
