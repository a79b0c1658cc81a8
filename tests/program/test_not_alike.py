"""Layers that look alike and are not: none takes the other's place."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

import revremat as rr
from revremat import RECOMPUTE, SAVE

LAYERS, WIDTH = 4, 5
W = np.random.default_rng(0).normal(size=(LAYERS, WIDTH, WIDTH)).astype("f") / 4
X = np.random.default_rng(1).normal(size=(8, WIDTH)).astype("f")


def rows_from(x, first):
    """Four rows, whose first stands in the kernel, of Pallas's own kind of index."""

    def call(kernel, rows, given):
        out = jax.ShapeDtypeStruct((rows, WIDTH), given.dtype)
        return pl.pallas_call(kernel, out_shape=out, interpret=True)(given)

    def forward(x_ref, o_ref):
        o_ref[...] = x_ref[first : first + 4, :]

    def backward(g_ref, o_ref):
        o_ref[...] = jnp.zeros_like(o_ref)
        o_ref[first : first + 4, :] = g_ref[...]

    @jax.custom_vjp
    def cut(x):
        return call(forward, 4, x)

    cut.defvjp(lambda x: (cut(x), None), lambda _, g: (call(backward, 8, g),))
    return cut(x)


def sliced(x, k):
    return jnp.concatenate([rows_from(x, k)] * 2)


def signed_zero(x, k):
    return lax.atan2(jnp.maximum(x, 0.0) * 0, jnp.full_like(x, 0.0 if k % 2 else -0.0))


def loss_of(part):
    def loss(w, x):
        for k in range(LAYERS):
            x = x + jnp.tanh(part(x, k) @ w[k])
        return (x**2).sum()

    return loss


@pytest.mark.parametrize("action", [SAVE, RECOMPUTE])
@pytest.mark.parametrize("part", [sliced, signed_zero])
def test_values_and_gradients_are_those_of_each_layer(part, action):
    loss = loss_of(part)
    graph = rr.trace(loss, W, X)
    planned = rr.apply(loss, graph.plan({u.name: action for u in graph.units}))
    for found, plain in zip(
        jax.tree.leaves(jax.value_and_grad(planned)(W, X)),
        jax.tree.leaves(jax.value_and_grad(loss)(W, X)),
        strict=True,
    ):
        np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-6)


def test_arrays_among_the_attributes_of_a_kernel_tell_layers_apart():
    def filtered(x, k):
        return _filter(x, np.array([float(k)]))

    units = rr.trace(loss_of(filtered), W, X).units
    assert [unit.num_layers for unit in units] == [1] * LAYERS
    alike = rr.trace(loss_of(lambda x, k: _filter(x, np.array([1.0]))), W, X).units
    assert [unit.num_layers for unit in alike] == [LAYERS]


def _filter(x, taps):
    def called(name, given):
        out = jax.ShapeDtypeStruct(given.shape, given.dtype)
        return jax.ffi.ffi_call(name, out)(given, taps=taps)

    @jax.custom_vjp
    def apply(x):
        return called("a_filter", x)

    apply.defvjp(lambda x: (apply(x), None), lambda _, g: (called("its_transpose", g),))
    return apply(x)


def test_constraints_tell_layers_apart():
    mesh = rr.target("cpu:2").mesh({"a": 2})
    places = [jax.NamedSharding(mesh, jax.P(*spec)) for spec in (("a",), (None, "a"))]

    def constrained(choose):
        def loss(w, x):
            for k in range(LAYERS):
                x = x + jnp.tanh(x @ w[k])
                x = lax.with_sharding_constraint(x, places[choose(k)])
            return x.sum()

        return loss

    w, x = jnp.zeros((LAYERS, 8, 8)), jnp.zeros((4, 8))
    units = rr.trace(constrained(lambda k: k % 2), w, x).units
    assert [unit.num_layers for unit in units] == [2, 2]
    units = rr.trace(constrained(lambda k: 0), w, x).units
    assert [unit.num_layers for unit in units] == [LAYERS]


def test_two_draws_of_the_devices_own_numbers_stay_two():
    def loss(w, x):
        def layer(x, w):
            one, other = (lax.rng_uniform(0.0, 1.0, x.shape) for _ in range(2))
            return jnp.tanh(x @ w), jnp.abs(one - other).max()

        x, apart = lax.scan(layer, x, w)
        return x.sum(), apart

    plan = rr.trace(loss, W, X).plan({"scan_0": SAVE})
    _, apart = jax.grad(rr.apply(loss, plan), has_aux=True)(W, X)
    assert (apart > 0).all()


def test_layers_with_side_effects_stay_where_others_stand_between_them():
    said = []

    def layer(w, x):
        jax.debug.callback(lambda _: said.append("layer"), x.sum(), ordered=True)
        return jnp.tanh(x @ w)

    block = rr.block(layer, "layer")

    def loss(w, x):
        for k in range(3):
            x = block(w[k], x)
            jax.debug.callback(lambda k=k: said.append(f"after {k}"), ordered=True)
        return x.sum()

    plan = rr.trace(loss, W, X).plan({"layer": SAVE})
    jax.block_until_ready(jax.jit(jax.grad(rr.apply(loss, plan)))(W, X))
    jax.effects_barrier()
    assert said == ["layer", "after 0", "layer", "after 1", "layer", "after 2"]
