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
