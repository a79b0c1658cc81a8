"""Chunks: how many there may be, of what, and what each keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import OFFLOAD, RECOMPUTE, SAVE
from revremat.program.engine._split import (
    MOST_CHUNKS,
    Chunked,
    _in_chunks,
    _without_input,
    block_chunks,
)
from revremat.program.ir._ops import Constant, flatten


@pytest.mark.parametrize(
    ("action", "found"),
    [
        (RECOMPUTE(chunks=4), RECOMPUTE),
        (RECOMPUTE(save=["input", "h"], chunks=2), RECOMPUTE(save=["h"])),
        (RECOMPUTE(offload=["input_1", "h"]), RECOMPUTE(offload=["h"])),
        (RECOMPUTE(save=["inputs"]), RECOMPUTE(save=["inputs"])),
        (SAVE(offload=["h", "input"]), SAVE(offload=["h"])),
        (OFFLOAD(save=["h"]), OFFLOAD(save=["h"])),
    ],
)
def test_a_chunk_keeps_no_input(action, found):
    assert _without_input(action) == found


def ways(size, split=(None, 0), f=lambda w, x: (x @ w).sum(), rank=2):
    """The ways to split a block whose second argument has so many rows."""
    shape = (size,) if rank == 1 else (size, 4)
    w, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 4), shape))
    blocked = rr.block(f, name="b", split=split)
    (op,) = flatten(jax.make_jaxpr(blocked)(w, x), keep_blocks=True).ops
    return block_chunks(op)


@pytest.mark.parametrize(
    ("size", "numbers"),
    [
        (1, []),
        (2, [2]),
        (3, [3]),
        (6, [2, 6]),
        (8, [2, 4, 8]),
        (12, [2, 4, 12]),
        (256, [2, 4, 8, 16, 32, 64, 128, 256]),
        (257, []),
        (512, [2, 4, 8, 16, 32, 64, 128, 256]),
    ],
)
def test_numbers_of_chunks_divide_the_rows(size, numbers):
    assert sorted(ways(size)) == numbers
    assert all(n <= MOST_CHUNKS for n in numbers)


@pytest.mark.parametrize("axis", [0, -2])
def test_a_way_to_split_says_of_what_it_takes_chunks(axis):
    way = ways(6, (None, axis))[2]
    assert (way.inputs, way.axes) == ((0, 1), (None, 0))
    assert [v.aval.shape for v in way.body.inputs] == [(4, 4), (3, 4)]
    moved = way.after(3)
    assert (moved.inputs, moved.axes) == ((3, 4), (None, 0))


def test_along_the_last_axis():
    way = ways(6, (None, 1), lambda w, x: (x * 2.0).sum())[4]
    assert way.axes[-1] == 1
    assert way.body.inputs[-1].aval.shape == (6, 1)


def test_arrays_stay_where_inputs_move():
    constant = Constant(jax.typeof(np.ones(2)), np.ones(2))
    way = Chunked(ways(4)[2].body, (constant, 0, 2), (None, None, 0))
    assert way.after(5).inputs == (constant, 5, 7)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_chunks_are_parts_in_order(axis, number):
    x = jnp.arange(4 * 4 * 4).reshape(4, 4, 4)
    parts = _in_chunks(x, number, axis)
    assert parts.shape[0] == number
    np.testing.assert_array_equal(jnp.concatenate(list(parts), axis), x)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        ((0,), "2 arguments and `split` has 1 entries"),
        ((0, 0), "sizes are"),
        ((None, 2), "must exist"),
        ((None, -3), "must exist"),
        ((None, None), "must exist"),
    ],
)
def test_axes_that_no_chunk_can_be_cut_along(split, said):
    with pytest.raises(rr.UserError, match=said):
        ways(6, split)


def squares(w, x):
    return (jnp.tanh(x @ w) ** 2).sum()


def over_batch(block):
    return lambda w, x: jax.vmap(lambda x: block(w, x))(jnp.stack([x, 2 * x])).sum()


def over_weights(block):
    return lambda w, x: jax.vmap(lambda w: block(w, x))(jnp.stack([w, 2 * w])).sum()


def with_tangents(block):
    def loss(w, x):
        out, tangent = jax.jvp(lambda w: block(w, x), (w,), (jnp.ones_like(w),))
        return out + tangent**2

    return loss


@pytest.mark.parametrize(
    ("transformed", "can_be_split"),
    [(over_batch, True), (over_weights, True), (with_tangents, False)],
)
def test_what_a_transformation_made_of_a_block_is_split_as_such_or_not(
    transformed, can_be_split
):
    loss = transformed(rr.block(squares, "squares", split=(None, 0)))
    w, x = jnp.eye(4) / 2, jnp.linspace(-1.0, 1.0, 32).reshape(8, 4)
    graph = rr.trace(loss, w, x)
    assert bool(graph["squares"].splits) == can_be_split
    if not can_be_split:
        return
    plan = graph.plan({"squares": rr.RECOMPUTE(chunks=2)})
    found = jax.value_and_grad(rr.apply(loss, plan))(w, x)
    for a, b in zip(found, jax.value_and_grad(loss)(w, x), strict=True):
        assert jnp.allclose(a, b, rtol=1e-5, atol=1e-6)


def test_arguments_by_name_are_for_blocks_without_marks():
    double = lambda x, factor=2.0: (x * factor).sum()
    assert rr.block(double, "double")(jnp.ones(2), factor=3.0) == 6
    marked = rr.block(double, "double", split=(0,))
    with pytest.raises(rr.UserError, match=r"called by position; factor was given"):
        marked(jnp.ones(2), factor=3.0)
