"""Sums over the batch are made once; all else of a map stays as it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat.reversible._replay import Replayed, recall, replayed

X = np.linspace(0, 1, 16 * 3, dtype=np.float32).reshape(16, 3)
W = np.float32(2)


def normed(w, x):
    return w * (x - x.sum(0) / 16)


def kinds(f, *args):
    found = []
    for eqn in jax.make_jaxpr(f)(*args).eqns:
        name = eqn.params.get("name", "")
        found.append(
            name if eqn.primitive.name in ("jit", "pjit") else eqn.primitive.name
        )
    return found


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        (rr.block(jnp.sin, name="b"), "revremat.block.b"),
        (lambda x: rr.name(jnp.sin(x), "s"), "name"),
        (jax.checkpoint(jnp.sin), "remat"),
        (jax.jit(lambda x: jnp.sin(x)), "<lambda>"),
    ],
)
def test_calls_without_such_sums_stay_whoever_looks_for_them(part, kept):
    f = replayed(lambda w, x, rest: (part(normed(w, x)), rest))
    found = kinds(f, W, X, Replayed(None))
    assert any(name.replace("remat2", "remat").startswith(kept) for name in found)


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        (rr.block(lambda x: normed(W, x), name="b"), "revremat.block.b"),
        (jax.checkpoint(lambda x: normed(W, x)), "remat"),
    ],
)
def test_blocks_and_regions_stay_with_what_is_in_them(part, kept):
    f = lambda w, x, rest: (part(w * x), rest)
    found = kinds(replayed(f), W, X, Replayed(None))
    assert any(name.replace("remat2", "remat").startswith(kept) for name in found)
    assert num_sums(f, X) == 0


def test_sums_are_given_and_taken():
    f = replayed(lambda w, x, rest: (jax.jit(normed)(w, x), rest))
    value, first = f(W, X, Replayed(np.float32(5)))
    assert first.rest == 5
    (total,) = first.sums
    np.testing.assert_allclose(total, X.sum(0), rtol=1e-6)
    again, second = f(W, X, first)
    np.testing.assert_array_equal(value, again)
    assert "reduce_sum" in kinds(f, W, X, Replayed(None))
    assert "reduce_sum" not in kinds(f, W, X, Replayed(None, first.sums))
    other, _ = f(W, X, Replayed(None, [total + 16]))
    np.testing.assert_allclose(other, value - W, atol=1e-6)
    assert len(second.sums) == 1


def num_sums(f, x):
    return len(jax.eval_shape(replayed(f), W, x, Replayed(None))[1].sums)


@pytest.mark.parametrize(
    ("f", "number"),
    [
        (lambda w, x, rest: (w * x.sum(0), rest), 1),
        (lambda w, x, rest: (w * x.sum(1), rest), 0),  # of each example
        (lambda w, x, rest: (w * x.sum(), rest), 1),
        (lambda w, x, rest: (w * x[:8].sum(0), rest), 0),  # of a part of them
        (lambda w, x, rest: (w * x.reshape(4, 12).sum(0), rest), 0),
        (lambda w, x, rest: (w * x.max(0), rest), 0),
    ],
)
def test_what_is_a_sum_over_the_batch(f, number):
    assert num_sums(f, X) == number


@pytest.mark.parametrize(("rows", "number"), [(7, 0), (8, 1)])
def test_an_eighth_is_much_smaller_and_a_seventh_is_not(rows, number):
    f = lambda w, x, rest: (x.sum(0), rest)
    assert num_sums(f, np.ones((rows, 3), np.float32)) == number


def test_what_was_summed_is_put_beside_what_a_map_has():
    made = {"a": Replayed("new", [1.0]), "b": 3}
    found = recall({"a": Replayed("own"), "b": 2}, made)
    assert found["a"] == Replayed("own", [1.0])
    assert found["b"] == 2
    rest = {"a": 1}
    assert recall(rest, None) is rest
