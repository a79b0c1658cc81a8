"""A unit is priced without the program around it as it would be in it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat._cut import isolate
from revremat.program._loss import trace_loss
from tests.program_kinds import PLAIN

ROWS = 8


def arrays_like(specs):
    random = np.random.default_rng(0)

    def one(spec):
        if jnp.issubdtype(spec.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), spec.shape)
        if not jnp.issubdtype(spec.dtype, jnp.inexact):
            return jnp.zeros(spec.shape, spec.dtype)
        return jnp.asarray(random.normal(size=spec.shape), spec.dtype)

    *given, scale = jax.tree.map(one, specs)
    return (*given, jnp.ones_like(scale))


def units_of(loss, args):
    """Those that stand in the program itself."""
    traced, graph = trace_loss(loss, args), rr.trace(loss, *args)
    ours = {site.ops[0] for site in traced.found.sites}
    found = {unit.name: unit for unit in traced.units}
    return (
        traced,
        graph,
        [u for u in graph.units if found[u.name].sites[0].ops[0] in ours],
    )


@pytest.mark.parametrize("kind", PLAIN)
def test_gradients_of_layers_alone_do_not_depend_on_what_they_keep(kind):
    with jax.enable_x64(True):
        loss, *args = PLAIN[kind](ROWS)
        traced, graph, units = units_of(loss, args)
        for unit in units:
            ways = [rr.SAVE, rr.RECOMPUTE, *([rr.INVERT] if unit.invertible else [])]
            found = []
            for way in ways:
                actions = (way,) * unit.num_layers
                step, specs = isolate(traced, graph, unit.name, actions)
                found.append(jax.tree.leaves(step(*arrays_like(specs))))
            scale = max(jnp.abs(leaf).max() for leaf in found[0])
            assert scale > 0
            for other in found[1:]:
                for a, b in zip(found[0], other, strict=True):
                    np.testing.assert_allclose(a / scale, b / scale, atol=1e-9)


def test_layers_alone_are_those_of_the_program():
    def layer(w, x):
        return jnp.tanh(x @ w)

    def loss(ws, x):
        for w in ws:
            x = rr.block(layer, "layer")(w, x)
        return (x**3).sum()

    ws, x = [jnp.eye(3) * k for k in (0.5, 1.0, 1.5)], jnp.linspace(-1, 1, 6)
    args = (ws, x.reshape(2, 3))
    traced, graph, _ = units_of(loss, args)
    step, specs = isolate(traced, graph, "layer", (rr.RECOMPUTE,) * 2)
    wanted, others, cotangents, one = arrays_like(specs)
    assert [w.shape for w in wanted] == [(3, 3), (2, 3), (3, 3), (3, 3)]
    assert others == []

    def by_hand(wanted):
        first, x, second, _ = wanted
        y = layer(second, layer(first, x))
        return (y * cotangents[0]).sum() ** 2

    for found, expected in zip(
        step(wanted, others, cotangents, one), jax.grad(by_hand)(wanted), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
