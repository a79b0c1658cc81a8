"""Compiled gradients of real networks: equal in float64, rounded as stock elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import OFFLOAD, RECOMPUTE, SAVE
from tests.program.networks import NETWORKS

FORMS = ("scan", "unrolled")
FAST, CHEAP = NETWORKS[1:3], NETWORKS[2:3]
DRAWS = 16


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


@pytest.mark.every_commit("mixer-scan")
@pytest.mark.parametrize(
    ("network", "form"),
    [
        pytest.param(network, form, id=f"{network.__name__}-{form}")
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param(jnp.float32, id="float32"),
        pytest.param(jnp.bfloat16, id="bf16", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "network",
    [
        pytest.param(n, id=n.__name__, marks=() if n in CHEAP else pytest.mark.slow)
        for n in NETWORKS
    ],
)
def test_no_further_from_float64_than_stock_checkpointing(network, dtype):
    """Over many draws of the weights; of one draw, rounding is luck.

    A compiler fuses loops and unrolled layers in different ways, so each way of
    writing a program rounds differently: stock checkpointing in a loop and unrolled
    differ by up to a tenth on one draw, in either direction, as do plans. Where all
    layers stay in one loop, a plan rounds as stock's loop does, draw by draw.
    """
    with jax.enable_x64(True):
        loop, params, batch = network("scan", jax.checkpoint)
        loss = network("scan")[0]
        low = jax.tree.map(lambda w: w.astype(dtype), params)
        graph = rr.trace(loss, low, batch)
        runs = {u.name: [SAVE] + [RECOMPUTE] * (u.num_layers - 1) for u in graph.units}
        *_, irregular = plans(graph)
        apply = lambda plan: gradients(rr.apply(loss, plan))
        exact, stock = gradients(loss), gradients(loop)
        uniform = apply(graph.plan(whole(graph)))
        others = [apply(irregular), apply(graph.plan(runs))]
        ratios = []
        for seed in range(DRAWS):
            drawn = draw(low, seed)
            wide = jax.tree.map(lambda w: w.astype(float), drawn)
            expected = exact(wide, batch)
            error = lambda f, at=drawn, to=expected: distance(f(at, batch), to)
            reference = error(stock)
            assert error(uniform) <= 1.001 * reference
            ratios.append([np.log(error(f) / reference) for f in others])
        noise = np.std(ratios, axis=0) / np.sqrt(DRAWS)
        assert (np.mean(ratios, axis=0) <= 3 * noise + 1e-3).all()


def gradients(loss):
    """The loss's gradient as one float64 vector, compiled once."""
    compiled = jax.jit(jax.grad(loss))
    flat = lambda leaf: np.asarray(leaf, np.float64).ravel()
    return lambda *args: np.concatenate(
        [flat(leaf) for leaf in jax.tree.leaves(compiled(*args))]
    )


def draw(params, seed):
    """The weights, each a third more or less."""
    rng = np.random.default_rng(seed)
    vary = lambda w: (w * (1 + 0.3 * rng.normal(size=w.shape))).astype(w.dtype)
    return jax.tree.map(vary, params)


def whole(graph):
    return {unit.name: RECOMPUTE for unit in graph.units}
