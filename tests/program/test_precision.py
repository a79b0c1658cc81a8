"""Compiled gradients of real networks: equal in float64, rounded as stock elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import OFFLOAD, RECOMPUTE, SAVE
from tests.program.networks import NETWORKS

FORMS = ("scan", "unrolled")
CHEAP = NETWORKS[2:3]


def plans(graph):
    """A uniform plan, and one that gives layers different actions."""
    names = lambda unit: [r.name for r in unit.residuals if r.given][:2]
    yield graph.plan({unit.name: RECOMPUTE for unit in graph.units})
    cycle = lambda u: (SAVE, RECOMPUTE, RECOMPUTE(save=names(u)), OFFLOAD)
    yield graph.plan(
        {u.name: [cycle(u)[k % 4] for k in range(u.num_layers)] for u in graph.units}
    )


def gradient(loss, params, batch):
    leaves = jax.tree.leaves(jax.jit(jax.grad(loss))(params, batch))
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in leaves])


def distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


@pytest.mark.parametrize(
    ("network", "form"),
    [
        pytest.param(
            network,
            form,
            id=f"{network.__name__}-{form}",
            marks=() if form == "scan" or network is NETWORKS[0] else pytest.mark.slow,
        )
        for network in NETWORKS
        for form in FORMS
    ],
)
def test_float64_gradients_agree_to_ten_digits(network, form):
    with jax.enable_x64(True):
        loss, params, batch = network(form)
        expected = gradient(loss, params, batch)
        for plan in plans(rr.trace(loss, params, batch)):
            found = gradient(rr.apply(loss, plan), params, batch)
            assert distance(found, expected) <= 1e-10


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bf16"])
@pytest.mark.parametrize(
    "network",
    [
        pytest.param(n, id=n.__name__, marks=() if n in CHEAP else pytest.mark.slow)
        for n in NETWORKS
    ],
)
def test_rounding_is_that_of_stock_checkpointing(network, dtype):
    """Runs of layers round as stock's loop does; layers written out, as stock's do.

    A compiler fuses a loop's body and written-out layers in different ways, so stock
    checkpointing itself is at one distance from the exact gradient in a loop, and at
    another, up to a tenth more or less, written out.
    """
    with jax.enable_x64(True):
        loop, params, batch = network("scan", jax.checkpoint)
        written_out, loss = network("unrolled", jax.checkpoint)[0], network("scan")[0]
        low = jax.tree.map(lambda w: w.astype(dtype), params)
        exact = gradient(loss, jax.tree.map(lambda w: w.astype(float), low), batch)
        error = lambda f: distance(gradient(f, low, batch), exact)
        stock, stock_written_out = error(loop), error(written_out)
        graph = rr.trace(loss, low, batch)
        runs = {u.name: [SAVE] + [RECOMPUTE] * (u.num_layers - 1) for u in graph.units}
        *_, irregular = plans(graph)
        assert error(rr.apply(loss, graph.plan(whole(graph)))) <= 1.001 * stock
        assert error(rr.apply(loss, graph.plan(runs))) <= 1.1 * stock
        worse = max(stock, stock_written_out)
        assert error(rr.apply(loss, irregular)) <= 1.15 * worse


def whole(graph):
    return {unit.name: RECOMPUTE for unit in graph.units}
