"""Ways back that had no price at first get one where they seem to gain."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import _choose
from revremat._choose import Search
from revremat._finer import _exposed_us, _unpriced, look_closer
from revremat.policies import Pool, Price
from tests.policies.units import transformer

ROWS, WIDTH, LAYERS = 8192, 512, 12


def layer(x, w):
    normed = x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + 1e-6)
    hidden = jax.nn.silu(normed @ w["gate"]) * (normed @ w["up"])
    hidden = jnp.sin(jnp.tanh(hidden @ w["mix"])) @ w["down"]
    return x + jnp.tanh(hidden), None


def loss(params, x):
    return jax.lax.scan(layer, x, params)[0].sum()


def specs():
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    wide, square = array(LAYERS, WIDTH, 4 * WIDTH), array(LAYERS, 4 * WIDTH, 4 * WIDTH)
    down = array(LAYERS, 4 * WIDTH, WIDTH)
    params = {"gate": wide, "up": wide, "mix": square, "down": down}
    return params, array(ROWS, WIDTH)


BUDGET = 1_288_490_188
FEW = 4


def searched(budget):
    """Of four candidates at first, which is fewer than there should be."""
    problem, target = rr.Problem(loss, specs()), rr.target("h100:1")
    search = Search(problem, target, unroll=False)
    return search, search.fit(budget)


def names(menu):
    return {price.name for price in menu.prices}


def test_what_the_first_candidates_miss_is_found(monkeypatch):
    monkeypatch.setattr(_choose, "_MOST_CANDIDATES", FEW)
    monkeypatch.setattr(Search, "can_send", lambda *_: False)
    search, fit = searched(BUDGET)
    (unit,) = search.units
    first = search.pools[unit.name].worth_compiling(most=FEW)
    found = set(fit.plan.actions[unit.name]) - {c.action for c in first}
    assert found
    # What needs least may be asked for without it, by any budget.
    (menu,) = search.menus_without(("closer",))
    choices = search.choices[unit.name]
    at_first = {choices[name].action for name in names(menu)}
    assert not found & at_first
    assert {c.name for c in first} <= names(menu)
    monkeypatch.setattr(_choose, "look_closer", lambda search: False)
    _, without = searched(BUDGET)
    assert fit.plan.fits
    assert fit.measurement.time.step_us < 0.995 * without.measurement.time.step_us


def test_nothing_is_asked_where_nothing_is_to_be_gained(monkeypatch):
    monkeypatch.setattr(_choose, "_MOST_CANDIDATES", FEW)
    search, fit = searched(100 * 2**30)
    done = search.done
    assert not look_closer(search)
    assert search.done == done == fit.num_compiles


def test_a_limit_of_compiles_holds():
    most = 20
    search = Search(rr.Problem(loss, specs()), rr.target("h100:1"), None, most)
    assert search.fit(BUDGET).num_compiles <= most


def test_sets_proposed_are_of_values_on_the_device_and_all_different():
    (unit,) = rr.trace(loss, *specs()).units
    pool = Pool(unit)
    kept = [frozenset(unit.kept(c.action).saved) for c in pool.sets]
    assert len(set(kept)) == len(kept) > 12
    assert not any(c.action.on_host for c in pool.sets)
    assert len({c.name for c in pool.sets}) == len(pool.sets)


def on_the_host(action, unit):
    kept = unit.kept(action)
    return kept.host_bytes and not kept.device_bytes


def test_what_no_device_holds_fits_with_inputs_on_the_host():
    square = jax.ShapeDtypeStruct((24, 2048, 2048), jnp.bfloat16)
    wide = jax.ShapeDtypeStruct((65536, 2048), jnp.bfloat16)

    def stacked(w, x):
        return rr.stack(lambda w, x: x + jnp.tanh(x @ w) @ w, w, x).sum()

    problem, target = rr.Problem(stacked, (square, wide)), rr.target("h100:1")
    search = Search(problem, target, unroll=False)
    (unit,) = search.units
    rebuilt = search.add("full", {unit.name: (rr.RECOMPUTE,) * unit.num_layers})
    fit = search.fit(rebuilt.bytes // 2)
    assert fit.plan.fits
    assert any(on_the_host(a, unit) for a in fit.plan.actions[unit.name])


def test_a_wait_for_the_host_is_what_no_pass_hides():
    unit = transformer()  # its backward pass has twice the work of the forward pass
    kept = unit.kept(rr.SAVE)
    us = lambda size: _exposed_us(unit, kept, Price("", 0, 0, size, 300.0), 1e6)
    share = unit.forward_flops / (unit.forward_flops + unit.backward_flops)
    forward_us = 300.0 * share
    assert us(forward_us) == pytest.approx(0.0)
    assert us(forward_us + 10) == pytest.approx(10.0)
    assert us(310) == pytest.approx(320.0)


def test_a_maximum_that_is_better_not_kept_is_in_nothing_that_is_proposed():
    wide, x = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in [(6, 64, 64), (512, 64)])
    attends = lambda w, x: x + jax.nn.softmax(x @ w) @ w
    stacked = lambda w, x: rr.stack(attends, w, x).sum()
    search = Search(rr.Problem(stacked, (wide, x)), rr.target("h100:1"))
    (prices,) = search.prices
    proposed = lambda: [c.action for c in _unpriced(search, prices)]
    assert any("reduce_max_0" in a.save and a.on_host for a in proposed())
    prices.slower_maxima.add("reduce_max_0")
    assert not any("reduce_max_0" in action.save for action in proposed())
    assert any(action.on_host for action in proposed())
    assert len(set(proposed())) == len(proposed())
