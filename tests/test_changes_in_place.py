"""A loss may change what it is given: under a plan the changes are the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import revremat as rr

WIDTH, ROWS, LAYERS = 4, 8, 4


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(0.4, rngs=rngs)

    def __call__(self, x):
        return x + jnp.tanh(self.drop(self.norm(self.linear(x))))


class Listed(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Scanned(nnx.Module):
    def __init__(self, rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(rngs):
            return Block(rngs)

        self.blocks = make(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, length=LAYERS)
        def run(x, block):
            return block(x)

        return run(x, self.blocks)


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(0), (ROWS, WIDTH))


def loss(model, x):
    return (model(x) ** 2).mean()


def state_of(*modules):
    leaves = jax.tree.leaves([nnx.state(m) for m in modules])
    is_key = lambda a: jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(a) if is_key(a) else a) for a in leaves]


def trained(loss, model, x, transform=lambda f: f, steps=5):
    """Values, and the state of model and optimizer, after some steps."""
    optimizer = nnx.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param)

    @transform
    def step(model, optimizer, x):
        value, gradients = nnx.value_and_grad(loss)(model, x)
        optimizer.update(model, gradients)
        return value

    values = [float(step(model, optimizer, x)) for _ in range(steps)]
    return values, state_of(model, optimizer)


def assert_equal(found, expected, rtol=1e-5):
    np.testing.assert_allclose(found[0], expected[0], rtol=rtol)
    assert len(set(found[0])) == len(found[0])  # another mask every time
    assert len(found[1]) == len(expected[1])
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


@functools.cache
def unplanned(make):
    x = jax.random.normal(jax.random.key(0), (ROWS, WIDTH))
    return trained(loss, make(nnx.Rngs(0)), x, nnx.jit)


ACTIONS = {
    "save": [rr.SAVE],
    "recompute": [rr.RECOMPUTE],
    "offload": [rr.OFFLOAD],
    "mixed": [rr.SAVE, rr.RECOMPUTE, rr.OFFLOAD, rr.RECOMPUTE],
    "unrolled": [rr.RECOMPUTE(unroll=True)],
}


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize("make", [Listed, Scanned])
def test_five_steps_are_those_without_a_plan(make, actions, x):
    model = make(nnx.Rngs(0))
    graph = rr.trace(loss, model, x)
    if make is Listed and actions == "unrolled":
        pytest.skip("there is no loop")
    (unit,) = graph.units
    assert unit.num_layers == LAYERS
    given = ACTIONS[actions]
    plan = graph.plan({unit.name: given[0] if len(given) == 1 else given})
    assert_equal(trained(rr.apply(loss, plan), model, x, nnx.jit), unplanned(make))


@pytest.mark.parametrize("make", [Listed, Scanned])
def test_two_steps_are_those_without_a_plan_where_nothing_is_jitted(make, x):
    model, same = make(nnx.Rngs(0)), make(nnx.Rngs(0))
    graph = rr.trace(loss, model, x)
    planned = rr.apply(loss, graph.plan({graph.units[0].name: rr.RECOMPUTE}))
    found = trained(planned, model, x, steps=2)
    assert_equal(found, trained(loss, same, x, nnx.jit, steps=2))
