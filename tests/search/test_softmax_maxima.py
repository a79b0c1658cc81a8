"""What is kept of a softmax is what its compiler makes the fastest kernels of."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._search import begin, profile_all
from revremat.policies import without_maxima

LAYERS, BATCH, WIDTH = 4, 8, 64


def layer(w, x):
    q, k, v = (x @ w[n] for n in range(3))
    logits = jnp.einsum("bqf,bkf->bqk", q, k).astype(jnp.float32)
    return x + jax.nn.softmax(logits).astype(x.dtype) @ v


def loss(w, x):
    x, _ = jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)
    return x.astype(jnp.float32).sum()


def prepared(length, most_compiles=None):
    w = jax.ShapeDtypeStruct((LAYERS, 3, WIDTH, WIDTH), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((BATCH, length, WIDTH), jnp.bfloat16)
    problem = rr.Problem(loss, (w, x))
    state, ask = begin(problem, rr.target("h100:1"), most_compiles=most_compiles)
    return profile_all(state, ask)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1024, 577])
def test_maxima_are_found_again_where_that_is_faster(length):
    state = prepared(length)
    (costs,) = state.costs.values()
    few = [c for c in costs.candidates.values() if not c.action.unroll]
    names = {c.action: c.name for c in few}
    kept = [c for c in few if "reduce_max_0" in c.action.save]
    variants = [without_maxima(c, ["reduce_max_0"]).action for c in kept]
    gain = lambda c, variant: costs.difference(c.name)[1] - costs.difference(variant)[1]
    faster = gain(kept[0], names[variants[0]]) > 0
    assert faster == (length == 1024)  # XLA has no kernel for rows of 577
    assert names.keys() >= set(variants) or not faster
    assert costs.dominated == ({c.name for c in kept} if faster else ())
    for c in kept:
        assert (f"{c.name} (unrolled)" in costs.candidates) != faster


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most", "slower"),
    [(6, set()), pytest.param(50, {"reduce_max_0"}, marks=pytest.mark.slow)],
)
def test_of_few_compiles_none_are_spent_on_maxima(most, slower):
    state = prepared(1024, most)
    assert set().union(*state.dropped_maxima.values()) == slower
    assert bool(state.dominated) == bool(slower)


@pytest.mark.slow
def test_of_two_softmaxes_each_is_judged_by_itself():
    def layer(w, x):
        chosen = jax.nn.softmax((x @ w[:, :577]).astype(jnp.float32))
        x = x + chosen.astype(x.dtype) @ w[:, :577].T
        logits = jnp.einsum("bqf,bkf->bqk", x, x).astype(jnp.float32)
        return x + jax.nn.softmax(logits).astype(x.dtype) @ x

    def loss(w, x):
        x, _ = jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)
        return x.astype(jnp.float32).sum()

    w = jax.ShapeDtypeStruct((LAYERS, WIDTH, 577), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((BATCH, 1024, WIDTH), jnp.bfloat16)
    problem = rr.Problem(loss, (w, x))
    state, ask = begin(problem, rr.target("h100:1"), unroll=False)
    (costs,) = profile_all(state, ask).costs.values()
    probes = {n.rsplit(", no ", 1)[1] for n in costs.candidates if ", no " in n}
    assert {"reduce_max_0", "reduce_max_1"} <= probes
