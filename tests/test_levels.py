"""Loops within loops: the search decides at the level where that is better."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat._levels import units_at

LAYERS, WIDTH, ROWS, BATCHES = 8, 256, 4096, 4


def layer(x, w):
    return x + jnp.tanh(x @ w["up"]) @ w["down"], None


def over_microbatches(w, xs, layer=layer):
    def one(total, x):
        return total + jnp.square(jax.lax.scan(layer, x, w)[0]).mean(), None

    return jax.lax.scan(one, 0.0, xs)[0] / xs.shape[0]


def arguments(width, rows, make):
    up, down = (LAYERS, width, 4 * width), (LAYERS, 4 * width, width)
    return {"up": make(*up), "down": make(*down)}, make(BATCHES, rows, width)


def specs():
    return arguments(WIDTH, ROWS, lambda *s: jax.ShapeDtypeStruct(s, jnp.float32))


def by_hand():
    """The layer under `jax.checkpoint`, as people write it."""
    layers = jax.checkpoint(layer, prevent_cse=False)
    step = jax.value_and_grad(lambda w, xs: over_microbatches(w, xs, layers))
    return rr.measure(step, *specs(), target="h100:1")


def test_units_of_a_level_are_those_with_so_many_around_them():
    def loss(w, xs):
        both = over_microbatches(w, xs)
        return both + jnp.square(jax.lax.scan(layer, xs[0], w)[0]).mean()

    graph = rr.trace(loss, *specs())
    names = lambda level: [unit.name for unit in units_at(graph, level)]
    assert names(0) == ["scan_0", "scan_1"]
    assert names(1) == ["scan_0/scan_0", "scan_1"]
    assert names(2) == names(1)


@pytest.mark.parametrize("spare", [1.05, 2.0])
def test_no_slower_than_checkpointed_layers_within_a_loop(spare):
    checkpointed = by_hand()
    budget = int(spare * checkpointed.memory.total_bytes)
    found = rr.fit(over_microbatches, *specs(), budget=budget, target="h100:1")
    assert found.plan.fits
    assert [unit.name for unit in found.plan.units] == ["scan_0/scan_0"]
    # A loop that zeroes its gradients' buffers inside another does it every time.
    assert found.measurement.time.step_us <= 1.01 * checkpointed.time.step_us
    assert found.bound_us <= found.measurement.time.step_us
    rng = np.random.default_rng(0)
    make = lambda *s: jnp.asarray(rng.normal(size=s) / 8, jnp.float32)
    graph = rr.trace(over_microbatches, *(small := arguments(8, 4, make)))
    planned = rr.apply(over_microbatches, graph.plan(found.plan.actions))
    ours, plain = (jax.grad(f)(*small) for f in (planned, over_microbatches))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), ours, plain)


def test_a_second_budget_is_met_with_what_the_first_one_left():
    """Rows of both levels lie side by side."""
    from revremat._choose import Search

    small = by_hand().memory.total_bytes
    search = Search(rr.Problem(over_microbatches, specs()), rr.target("h100:1"))
    for spare in (2.0, 1.05):
        found = search.fit(int(spare * small))
        assert found.plan.fits
