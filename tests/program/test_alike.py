"""Layers alike but for a number are layers, those with one number are one unit."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr

STEPS, WIDTH, CYCLE = 64, 8, 4


def dilated(w, x, dilation):
    """A gated convolution over the past, as in WaveNet."""
    y = jax.lax.conv_general_dilated(
        x,
        w["taps"],
        window_strides=(1,),
        padding=[(dilation, 0)],
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )
    value, gate = jnp.split(y, 2, axis=-1)
    return x + (jnp.tanh(value) * jax.nn.sigmoid(gate)) @ w["out"]


def network(params, x, dilation_of, wrap=lambda layer: layer):
    for n, w in enumerate(params):
        x = wrap(partial(dilated, dilation=dilation_of(n)))(w, x)
    return jnp.square(x).mean()


DILATIONS = {
    "in cycles": lambda n: 2 ** (n % CYCLE),
    "all different": lambda n: n + 1,
    "of two kinds in no order": lambda n: 1 + (n in (1, 2, 6)),
}


def arguments(num_layers=3 * CYCLE):
    random = np.random.default_rng(0)
    array = lambda *shape: jnp.asarray(random.normal(size=shape) / 4, jnp.float32)
    layer = lambda: {"taps": array(2, WIDTH, 2 * WIDTH), "out": array(WIDTH, WIDTH)}
    return [layer() for _ in range(num_layers)], array(2, STEPS, WIDTH)


@pytest.mark.parametrize(
    ("dilations", "expected"),
    [
        ("in cycles", [3, 3, 3, 3]),
        ("all different", [1] * 12),
        ("of two kinds in no order", [9, 3]),
    ],
)
def test_layers_with_one_number_are_one_unit(dilations, expected):
    loss = lambda params, x: network(params, x, DILATIONS[dilations])
    units = rr.trace(loss, *arguments()).units
    assert [unit.num_layers for unit in units] == expected
    residual_stream = 4 * 2 * STEPS * WIDTH
    bare = [unit.kept(rr.RECOMPUTE).device_bytes for unit in units]
    assert bare[1:] == [residual_stream] * (len(units) - 1)  # the first may read `x`


def test_equal_layers_are_one_unit_as_ever():
    loss = lambda params, x: network(params, x, lambda n: 2)
    (unit,) = rr.trace(loss, *arguments()).units
    assert unit.num_layers == 12


def test_each_of_two_networks_has_layers_of_its_own():
    def loss(params, x):
        first, between, second = params
        for n, w in enumerate(first):
            x = dilated(w, x, 2 ** (n % 4))
        x = jnp.tanh(x @ between)
        for n, w in enumerate(second):
            x = dilated(w, x, 3 ** (n % 3))
        return jnp.square(x).mean()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    layer = lambda n: {"taps": array(2, n, 2 * n), "out": array(n, n)}
    params = [layer(WIDTH)] * 8, array(WIDTH, 2 * WIDTH), [layer(2 * WIDTH)] * 6
    units = rr.trace(loss, params, array(2, STEPS, WIDTH)).units
    assert [unit.num_layers for unit in units] == [2] * 4 + [2] * 3


@pytest.mark.parametrize("dilations", DILATIONS)
def test_gradients_are_those_of_plain_autodiff(dilations):
    loss = lambda params, x: network(params, x, DILATIONS[dilations])
    graph = rr.trace(loss, *arguments())
    actions = {u.name: (rr.RECOMPUTE,) * u.num_layers for u in graph.units}
    planned = rr.apply(loss, graph.plan(actions))
    expected = jax.jit(jax.value_and_grad(loss))(*arguments())
    found = jax.jit(jax.value_and_grad(planned))(*arguments())
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
        found,
        expected,
    )


def test_recomputing_layer_by_layer_takes_what_checkpoint_around_each_does():
    loss = lambda params, x: network(params, x, DILATIONS["in cycles"])
    by_hand = lambda params, x: network(
        params, x, DILATIONS["in cycles"], jax.checkpoint
    )
    params, x = jax.eval_shape(arguments)
    x = jax.ShapeDtypeStruct((2, 4096, WIDTH), x.dtype)
    graph = rr.trace(loss, params, x)
    actions = {u.name: (rr.RECOMPUTE,) * u.num_layers for u in graph.units}
    sizes = [
        rr.measure(jax.grad(f), params, x, target="h100:1").memory.total_bytes
        for f in (rr.apply(loss, graph.plan(actions)), by_hand, loss)
    ]
    assert sizes[0] <= 1.01 * sizes[1]
    assert sizes[0] < 0.5 * sizes[2]
