"""Arrays of many layers, in host memory too: one layer's read, written and moved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from revremat.program.arrays._avals import (
    is_differentiable,
    is_floating,
    room,
    stacked,
    zero_cotangent,
    zeros,
)
from revremat.program.arrays._buffers import (
    Each,
    again,
    at,
    at_all,
    barrier,
    none_yet,
    put,
    stack,
    take,
)
from revremat.program.arrays._host import _at, fetch, move, to_device, to_host

LAYERS = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device


def same(found, expected):
    np.testing.assert_array_equal(np.asarray(found), expected)


# ---- In host memory ------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("index", [0, 2, 3])
def test_a_layer_is_fetched(index, compiled):
    run = jax.jit(fetch) if compiled else fetch
    same(run(jnp.asarray(LAYERS), index), LAYERS[index])
    same(fetch(Each(tuple(LAYERS)), index), LAYERS[index])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_slice_along_any_axis(axis):
    take_one = lambda x, k: _at.bind(x, k, axis=axis)
    found = jax.jit(take_one)(LAYERS, jnp.int32(1))
    same(found, np.take(LAYERS, 1, axis))
    (out,) = jax.make_jaxpr(take_one)(LAYERS, jnp.int32(1)).out_avals
    assert out.shape == np.take(LAYERS, 1, axis).shape


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("batch", [0, 1, 2])
def test_mapped_over_it_stays_a_slice(batch, axis):
    def one(x):
        return _at.bind(x, jnp.int32(1), axis=axis)

    mapped = jax.vmap(one, in_axes=batch, out_axes=0)
    expected = np.stack([np.take(x, 1, axis) for x in np.moveaxis(LAYERS, batch, 0)])
    same(mapped(LAYERS), expected)
    kinds = [eqn.primitive.name for eqn in jax.make_jaxpr(mapped)(LAYERS).eqns]
    assert "gather" not in kinds
    assert "layer_in_host_memory" in kinds


def test_its_tangent_is_the_tangents_slice():
    run = lambda x: _at.bind(x, jnp.int32(2), axis=1)
    out, tangent = jax.jvp(
        lambda x: run(x.transpose(0, 2, 1)), (LAYERS,), (2 * LAYERS,)
    )
    same(out, LAYERS[:, :, 2])
    same(tangent, 2 * LAYERS[:, :, 2])
    alone = lambda y: run(jnp.asarray(LAYERS).transpose(0, 2, 1)) * y
    _, tangent = jax.jvp(alone, (1.0,), (3.0,))
    same(tangent, 3 * LAYERS[:, :, 2])


def test_what_is_moved_says_where_it_lies():
    sent = lambda x: to_host(x)
    back = lambda x: to_device(to_host(x))
    space = lambda f: jax.make_jaxpr(f)(LAYERS).out_avals[0].memory_space
    assert (space(sent), space(back)) == (HOST, DEVICE)
    assert space(lambda x: move(x, DEVICE)) == DEVICE
    count = lambda f: len(jax.make_jaxpr(f)(LAYERS).eqns)
    # What is there already is not moved.
    assert (count(sent), count(back)) == (1, 2)
    assert count(lambda x: to_device(x)) == 0
    assert count(lambda x: to_host(to_host(x))) == 1


def test_cotangents_go_back_to_where_the_value_lay():
    def pulled(x, ct):
        return jax.vjp(to_host, x)[1](to_host(ct))[0]

    jaxpr = jax.make_jaxpr(pulled)(LAYERS, LAYERS)
    assert jaxpr.out_avals[0].memory_space == DEVICE
    spaces = [eqn.params["space"] for eqn in jaxpr.eqns]
    assert spaces[-1] == DEVICE
    mapped = jax.make_jaxpr(jax.vmap(to_host, in_axes=1, out_axes=1))(LAYERS)
    assert mapped.out_avals[0].shape == LAYERS.shape
    assert mapped.out_avals[0].memory_space == HOST


# ---- Buffers -------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 3, jnp.int32(2)])
def test_a_layer_is_read_and_written_in_place(index):
    k = int(index)
    item = -np.ones((2, 3), np.float32)
    expected = LAYERS.copy()
    expected[k] = item
    same(at(jnp.asarray(LAYERS), index), LAYERS[k])
    (written,) = put([jnp.asarray(LAYERS)], [item], index)
    same(written, expected)
    each = Each(tuple(LAYERS))
    same(at(each, k), LAYERS[k])
    (written,) = put([each], [item], k)
    same(np.stack(written.items), expected)
    same(np.stack(each.items), LAYERS)


def test_of_several_some_may_not_be_there():
    found = take([None, jnp.asarray(LAYERS), None], 1)
    assert found[0] is found[2] is None
    same(found[1], LAYERS[1])
    tree = at_all({"a": jnp.asarray(LAYERS), "b": Each(tuple(2 * LAYERS))}, 1)
    same(tree["a"], LAYERS[1])
    same(tree["b"], 2 * LAYERS[1])


def test_layers_are_stacked_with_something_for_those_that_are_missing():
    none = none_yet(3)
    assert none.items == (None, None, None)
    (some,) = put([none], [jnp.asarray(LAYERS[1])], 1)
    same(
        stack(some, lambda: jnp.zeros((2, 3))),
        [0 * LAYERS[0], LAYERS[1], 0 * LAYERS[0]],
    )
    leaves, treedef = jax.tree.flatten(some)
    assert len(leaves) == 1
    same(treedef.unflatten(leaves).items[1], LAYERS[1])


def test_keys_may_be_used_again():
    key = jax.random.key(3)
    assert again(LAYERS) is LAYERS
    assert again(3) == 3
    same(jax.random.key_data(again(key)), jax.random.key_data(key))
    held = barrier({"x": jnp.asarray(LAYERS), "key": key})
    same(held["x"], LAYERS)
    same(jax.random.key_data(held["key"]), jax.random.key_data(key))


# ---- Types ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "differentiable", "floating"),
    [
        (np.float32(1), True, True),
        (jnp.bfloat16(1), True, True),
        (np.complex64(1), True, True),
        (np.int32(1), False, False),
        (np.bool_(True), False, False),
        (jax.random.key(0), False, False),
    ],
)
def test_which_types_have_derivatives(value, differentiable, floating):
    aval = jax.typeof(value)
    assert is_differentiable(aval) == differentiable
    assert is_floating(aval) == floating
    zero = zero_cotangent(aval)
    assert (zero.dtype == jax.dtypes.float0) == (not differentiable)
    assert zero.shape == aval.shape


def test_zeros_lie_where_the_type_says():
    aval = jax.typeof(jnp.asarray(LAYERS))
    same(zeros(aval), 0 * LAYERS)
    on_host = aval.update(memory_space=HOST)
    for make in (zeros, room):
        assert jax.eval_shape(lambda make=make: make(aval)).shape == LAYERS.shape
    made = jax.make_jaxpr(lambda: zeros(on_host))().out_avals[0]
    assert made.memory_space == HOST


def test_types_of_many_have_one_more_axis_in_front():
    aval = jax.typeof(jnp.asarray(LAYERS))
    many = stacked(aval, 5)
    assert (many.shape, many.dtype) == ((5, *LAYERS.shape), aval.dtype)
    assert tuple(many.sharding.spec) == (None, *aval.sharding.spec)
