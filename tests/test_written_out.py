"""Which layers of a loop are priced written out."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import _compiled
from revremat._cut import UnitCut
from revremat._fitted import Row
from revremat._prices import UnitPrices
from revremat.policies import candidates


def prices_of(num_layers, products_of_a_layer):
    def layer(x, w):
        for _ in range(products_of_a_layer):
            x = x @ w
        return x, None

    w = jax.ShapeDtypeStruct((num_layers, 8, 8), jnp.float32)
    x = jax.ShapeDtypeStruct((2, 8), jnp.float32)
    (unit,) = rr.trace(lambda w, x: jax.lax.scan(layer, x, w)[0].sum(), w, x).units
    compiled = lambda *_: pytest.fail("nothing is to be compiled")
    cut = UnitCut(compiled, is_alone=False, kept_by_others=0.0, share=1.0)
    return UnitPrices(unit, candidates(unit), cut, compiled)


@pytest.mark.parametrize(
    ("num_layers", "products_of_a_layer", "written_out"),
    [
        (96, 100, True),
        (100, 2, True),
        (101, 2, False),  # too many layers
        (16, 1000, False),  # too many operations
    ],
)
def test_loops_too_long_to_compile_stay_loops(
    num_layers, products_of_a_layer, written_out
):
    prices = prices_of(num_layers, products_of_a_layer)
    assert bool(prices.written_out()) == written_out
    assert all(candidate.action.unroll for candidate in prices.written_out())


class TwiceAsLarge(Row):
    @property
    def bytes(self):
        written_out = self.plan and any(
            action.unroll for unit in self.plan.units for action in unit.actions
        )
        return (2 if written_out else 1) * super().bytes


def test_where_written_out_layers_do_not_fit_loops_are_mixed_as_if_there_were_none(
    monkeypatch,
):
    def layer(x, w):
        return x + jnp.tanh(jnp.sin(x @ w)) @ w, None

    def loss(w, x):
        return jax.lax.scan(layer, x, w)[0].sum()

    w = jax.ShapeDtypeStruct((8, 256, 256), jnp.float32)
    x = jax.ShapeDtypeStruct((8192, 256), jnp.float32)
    ways = {"target": "cpu:1", "budget": "160MiB"}
    in_loops = rr.fit(loss, w, x, unroll=False, **ways)
    assert in_loops.plan.fits
    monkeypatch.setattr(_compiled, "Row", TwiceAsLarge)
    found = rr.fit(loss, w, x, **ways)
    assert found.plan.fits
    step_us = found.measurement.time.step_us
    assert step_us <= 1.01 * in_loops.measurement.time.step_us


class TwiceAsSlow(Row):
    @property
    def time_us(self):
        actions = self.plan.actions.values() if self.plan else ()
        on_host = any(action.on_host for few in actions for action in few)
        return (2 if on_host else 1) * super().time_us


@pytest.mark.slow
def test_where_the_host_turns_out_slow_the_best_mix_without_it_is_tried(monkeypatch):
    def layer(x, w):
        return x + jnp.tanh(jnp.sin(x @ w)) @ w.T, None

    def loss(w, x):
        return jax.lax.scan(layer, x, w)[0].sum()

    w = jax.ShapeDtypeStruct((8, 8192, 8192), jnp.bfloat16)
    x = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16)
    monkeypatch.setattr(_compiled, "Row", TwiceAsSlow)
    found = rr.fit(loss, w, x, target="h100:1", budget="4.2GiB")
    slow = [r for r in found.rows if r.time_us > 1.5 * r.measurement.time.step_us]
    assert slow  # by its prices, the host was worth it
    (unit,) = found.plan.units
    assert not any(action.on_host for action in unit.actions)
    assert len(set(unit.actions)) > 1
