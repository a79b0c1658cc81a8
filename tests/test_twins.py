"""What is kept of a softmax is what its compiler makes the fastest kernels of."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._choose import Search

LAYERS, BATCH, WIDTH = 4, 8, 64


def layer(w, x):
    q, k, v = (x @ w[n] for n in range(3))
    logits = jnp.einsum("bqf,bkf->bqk", q, k).astype(jnp.float32)
    return x + jax.nn.softmax(logits).astype(x.dtype) @ v


def loss(w, x):
    x, _ = jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)
    return x.astype(jnp.float32).sum()


def prepared(length):
    w = jax.ShapeDtypeStruct((LAYERS, 3, WIDTH, WIDTH), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((BATCH, length, WIDTH), jnp.bfloat16)
    search = Search(rr.Problem(loss, (w, x)), rr.target("h100:1"))
    search.prepare()
    (prices,) = search.prices
    return search, prices


@pytest.mark.parametrize("length", [1024, 577])
def test_maxima_are_found_again_where_that_is_faster(length):
    search, prices = prepared(length)
    loops = [name for name, c in prices.choices.items() if not c.action.unroll]
    twins = [name for name in loops if name.endswith(", no maxima")]
    kept = [name for name in loops if f"{name}, no maxima" in twins]
    assert twins
    gains = [
        prices.difference(name)[1] - prices.difference(twin)[1]
        for name, twin in zip(kept, twins, strict=True)
    ]
    faster = gains[0] > 0
    assert faster == (length == 1024)
    assert prices.passed_over == (set(kept) if faster else set())
    assert len(twins) > 1 or not faster
    for name in kept:
        assert (f"{name}, unrolled" in prices.choices) != faster
    assert set(prices.choices) == {c.name for c in search.candidates["scan_0"]}
