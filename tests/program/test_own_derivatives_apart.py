"""Layers that differ in nothing but a Python function are not one unit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr

LAYERS, WIDTH, ROWS = 4, 16, 64


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def scaled(x, by):
    return x * 1.0


scaled.defvjp(lambda x, by: (x * 1.0, None), lambda by, _, g: (g * by,))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def bent(x, by):
    return jnp.sin(x)


@bent.defjvp
def _bent_jvp(by, primals, tangents):
    return jnp.sin(primals[0]), by * tangents[0]


def called_back(x, by):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    still = jax.lax.stop_gradient(x)
    return x * jax.pure_callback(lambda a: np.asarray(a) * by, shape, still)


def doubled(a):
    return 2 * np.asarray(a)


def looked_up(x):
    """As `called_back`, with the same function each time."""
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return x * jax.pure_callback(doubled, shape, jax.lax.stop_gradient(x))


FUNCTIONS = {"custom_vjp": scaled, "custom_jvp": bent, "pure_callback": called_back}


def loss_of(f, how):
    def layer(w, x, by):
        return f(jnp.tanh(jnp.sin(x @ w) @ w), by)

    def loss(ws, x):
        for k, w in enumerate(ws):
            one = partial(layer, by=1.0 + k)
            x = rr.block(one, "layer")(w, x) if how == "block" else one(w, x)
        return (x**2).sum()

    return loss


@pytest.mark.parametrize("how", ["loop", "block"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_each_layers_own_function(name, how):
    loss = loss_of(FUNCTIONS[name], how)
    random = np.random.default_rng(0)
    array = lambda *shape: jnp.asarray(random.normal(size=shape) / 4, jnp.float32)
    ws, x = [array(WIDTH, WIDTH) for _ in range(LAYERS)], array(ROWS, WIDTH)
    graph = rr.trace(loss, ws, x)
    full = {u.name: (rr.RECOMPUTE,) * u.num_layers for u in graph.units}
    planned = rr.apply(loss, graph.plan(full))
    for found, expected in zip(
        jax.tree.leaves(jax.value_and_grad(planned)(ws, x)),
        jax.tree.leaves(jax.value_and_grad(loss)(ws, x)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "f",
    [
        jax.nn.relu,
        jax.nn.silu,
        jax.nn.softplus,
        lambda x: scaled(x, 2.0),
        lambda x: bent(x, 3.0),
        looked_up,
    ],
)
def test_layers_of_equal_functions_are_one_unit(f):
    def loss(ws, x):
        for w in ws:
            x = f(x @ w)
        return x.sum()

    w = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    (unit,) = rr.trace(loss, [w] * LAYERS, x).units
    assert unit.num_layers == LAYERS
