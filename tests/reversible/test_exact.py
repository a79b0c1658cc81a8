"""Exact mode: what was rounded to the grid comes back bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import reversible
from tests.reversible import examples
from tests.reversible.examples import assert_close, square_sum

DEPTH = 1000


def in_bfloat16(w, x):
    half = jnp.bfloat16
    return jnp.tanh(x.astype(half) @ w.astype(half))


def in_float32(w, x):
    return jnp.tanh(x @ w)


def in_float16(w, x):
    half = jnp.float16
    return jnp.sin(x.astype(half) @ w.astype(half))


def make(f, depth, exact=True):
    n = examples.Numbers(0)
    params = {k: n(depth, 8, 8, scale=0.3) for k in "fg"}
    layer = reversible.additive(f, f)
    layer = reversible.exact(layer) if exact else layer
    return reversible.Repeat(layer, depth), params, (n(32, 8), n(32, 8))


def round_trip(coupling, params, x):
    y = jax.jit(coupling.forward)(params, x)
    return y, jax.jit(coupling.inverse)(params, y)


@pytest.mark.parametrize("f", [in_float32, in_bfloat16, in_float16])
def test_the_round_trip_error_is_zero_at_depth_1000(f):
    coupling, params, x = make(f, DEPTH)
    y, back = round_trip(coupling, params, x)
    assert_close(back, reversible.to_grid(x), 0)
    assert 0 < reversible.check_range(y) < 1


def test_without_the_grid_it_is_not():
    coupling, params, x = make(in_bfloat16, DEPTH, exact=False)
    _, back = round_trip(coupling, params, x)
    assert np.abs(back[0] - x[0]).max() > 1e-3


@pytest.mark.parametrize("f", [in_float32, in_bfloat16])
def test_what_the_backward_pass_recomputes_is_exact_too(f):
    coupling, params, x = make(f, DEPTH)
    y = jax.jit(coupling.forward)(params, x)
    ct = jax.tree.map(jnp.ones_like, y)
    recomputed, _, _ = jax.jit(coupling.pull_back)(params, y, ct)
    assert_close(recomputed, reversible.to_grid(x), 0)


def test_gradients_are_those_of_the_same_program_with_its_activations_stored():
    coupling, params, x = make(in_bfloat16, 64)
    stored = lambda p, x: square_sum(coupling.forward(p, x))
    recomputed = lambda p, x: square_sum(reversible.chain([coupling], [p], x))
    gradient = lambda f: jax.jit(jax.grad(f, argnums=(0, 1)))(params, x)
    found, expected = gradient(recomputed), gradient(stored)
    # The noise floor of these functions: the same gradient, summed in float32.
    reference, _, _ = make(in_float32, 64)
    other = gradient(lambda p, x: square_sum(reference.forward(p, x)))
    difference = lambda a, b: sum(
        float(((u - v) ** 2).sum())
        for u, v in zip(*map(jax.tree.leaves, (a, b)), strict=True)
    )
    assert difference(found, expected) < 0.1 * difference(other, expected)


HALF = reversible.Steps(
    {"f": in_bfloat16}, (reversible.Step(0, (("f", 1),), reversible.Add()),), 2
)
WHOLE = reversible.additive(in_bfloat16, in_bfloat16)


@pytest.mark.parametrize(
    ("couplings", "actions"),
    [
        ((WHOLE, WHOLE), rr.INVERT),
        ((HALF, WHOLE), rr.INVERT),
        ((HALF, WHOLE), (rr.SAVE, rr.INVERT)),
    ],
    ids=["two", "one stream alone", "a mixed plan"],
)
def test_gradients_have_the_dtypes_of_what_they_are_for(couplings, actions):
    half = lambda *shape: examples.Numbers(0)(*shape).astype(jnp.bfloat16)
    exact = [reversible.exact(coupling) for coupling in couplings]
    given = (
        [{name: half(8, 8) for name in c.maps} for c in couplings],
        (half(2, 8),) * 2,
    )
    loss = lambda params, x: square_sum(
        reversible.chain(exact, params, x, actions=actions)
    )
    grads = jax.grad(loss, argnums=(0, 1))(*given)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {jnp.dtype("bfloat16")}
    whole = reversible.Sequential(tuple(exact))
    stored = jax.grad(lambda p, x: square_sum(whole.run(p, x)[0]), argnums=(0, 1))
    assert_close(grads, stored(*given), 0.1)


def test_a_growing_silo_is_exact():
    e = examples.silo(3, growing=True)
    single = lambda tree: jax.tree.map(lambda a: a.astype(jnp.float32), tree)
    coupling = reversible.exact(e.coupling)
    x = reversible.to_grid(e.x)
    assert_close(round_trip(coupling, single(e.params), x)[1], x, 0)


def test_couplings_made_of_couplings_are_exact():
    block = examples.halves()
    coupling = reversible.exact(reversible.Parallel((block.coupling,) * 2))
    x = reversible.to_grid((block.x, block.x * 2))
    assert_close(round_trip(coupling, (block.params,) * 2, x)[1], x, 0)


def test_what_leaves_the_range_is_reported():
    large = lambda w, x: jnp.full_like(x, 3000.0)
    coupling = reversible.exact(reversible.additive(large, large))
    params, x = {"f": 0.0, "g": 0.0}, (jnp.zeros((1, 2)), jnp.full((1, 2), 1500.0))
    y = coupling.forward(params, x)
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()  # 4500, and the range ends at 4096
    with pytest.raises(rr.UserError, match="stream 1: 2 of 2 values left the range"):
        reversible.check_range(y)


def test_the_gradient_goes_straight_through_the_grid():
    x = jnp.array([0.3, -1.7])
    gradient = jax.grad(lambda x: (reversible.to_grid(x, 0.5) * jnp.arange(2.0)).sum())
    assert gradient(x).tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("make_it", "message"),
    [
        (lambda: reversible.exact(examples.affine().coupling), "takes sums only"),
        (lambda: reversible.exact(examples.momentum().coupling), "takes sums only"),
        (lambda: reversible.exact(examples.additive().coupling, 0.3), "power of two"),
        (lambda: reversible.exact(reversible.Custom(None, len)), "has no exact form"),
    ],
)
def test_a_mistake_is_one_sentence(make_it, message):
    with pytest.raises(rr.UserError, match=message):
        make_it()
