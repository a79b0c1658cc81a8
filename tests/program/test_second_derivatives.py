"""Gradients of gradients: as plain autodiff's, or refused by a sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import checkpoint_name

import revremat as rr

OFTEN = [
    rr.SAVE,
    rr.RECOMPUTE,
    rr.RECOMPUTE(save=["h"]),
    rr.RECOMPUTE(unroll=True),
    rr.RECOMPUTE(unroll=2),
    rr.RECOMPUTE(ahead=["h"]),
    rr.RECOMPUTE(segment_length=2),
    rr.OFFLOAD(unroll=True),
    rr.INVERT,
    (rr.SAVE, rr.INVERT, rr.RECOMPUTE, rr.SAVE),
]
ONCE = {
    rr.OFFLOAD: r"in host memory.*write OFFLOAD\(unroll=True\) or RECOMPUTE",
    rr.RECOMPUTE(offload=["h"]): "in host memory",
    rr.RECOMPUTE(slots=2): "write RECOMPUTE without `slots`, or take `jax.jvp`",
}
W = 0.1 * np.random.default_rng(0).normal(size=(4, 3, 3))
X = np.random.default_rng(1).normal(size=(5, 6))


def layer(w, x):
    a, b = jnp.split(x, 2, axis=-1)
    h = checkpoint_name(jnp.tanh(a @ w), "h")
    b = b + h * h
    return jnp.concatenate([b, a], axis=-1)


def undone(w, y):
    b, a = jnp.split(y, 2, axis=-1)
    h = jnp.tanh(a @ w)
    return jnp.concatenate([a, b - h * h], axis=-1)


def loss(w, x, actions=None):
    if actions is not None:
        y = rr.stack(layer, w, x, inverse=undone, actions=actions)
    else:
        y, _ = jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)
    return (y**3).sum()


def in_reverse(w, actions=None):
    inner = jax.grad(loss)
    return jax.grad(lambda w: (inner(w, X, actions) ** 2).sum())(w)


def forward(w, actions=None):
    gradient = lambda w: jax.grad(loss)(w, X, actions)
    return jax.jvp(gradient, (w,), (jnp.cos(w),))[1]


def mapped(w, actions=None):
    """Of several inputs at a time."""
    each = jax.vmap(jax.grad(loss), in_axes=(None, 0, None))
    gradient = lambda w: each(w, X[:, None], actions)
    return jax.jvp(gradient, (w,), (jnp.cos(w),))[1]


def hessian(w, actions=None):
    return jax.hessian(lambda scale: loss(scale * w, X, actions))(1.0)


def same(way, actions):
    with jax.enable_x64(True):
        found = jax.jit(way, static_argnums=1)(W, actions)
        np.testing.assert_allclose(found, way(W), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("actions", OFTEN, ids=str)
def test_a_gradient_has_a_gradient(actions):
    same(in_reverse, actions)


@pytest.mark.parametrize("way", [forward, mapped, hessian])
@pytest.mark.parametrize("actions", [*OFTEN, *ONCE], ids=str)
def test_a_gradient_has_a_tangent(actions, way):
    same(way, actions)


@pytest.mark.parametrize("actions", ONCE, ids=str)
def test_what_has_none_in_reverse_says_so(actions):
    refused = pytest.raises(rr.UserError, match=ONCE[actions])
    with jax.enable_x64(True), refused:
        jax.jit(in_reverse, static_argnums=1)(W, actions)
