"""Candidates that had no cost at first get one where they seem to gain."""

import math

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._search import Asking, Heuristics, answer, begin, decide
from revremat._search.passes._column_generation import (
    _with_estimates,
    column_generation,
    exposed_us,
    without_cost,
)
from revremat.policies import LayerCost, Pool
from tests.policies.units import transformer
from tests.search.programs import CASES
from tests.search.tape import Model, Tape, TapeOracle, measurement, state_of

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
FEW = 3


def searched(share, name="reversible-cpu", **how):
    """Of three candidates at first, which is fewer than there should be."""
    case = CASES[name]
    tape = Tape.load(case.name)
    oracle = TapeOracle(tape, Model(tape.graph, on_host=not name.endswith("cpu")))
    heuristics = Heuristics(most_candidates=FEW, **how)
    state, ask = state_of(case, tape, heuristics=heuristics), Asking(oracle)
    plain = measurement(tape.measured["baseline"]).memory.total_bytes
    return decide(state.within(int(share * plain)), ask), ask


def names(options):
    return {cost.name for cost in options.costs}


@pytest.mark.parametrize("share", [0.5, 0.75])
def test_what_the_first_candidates_miss_is_found(share):
    state, _ = searched(share)
    without, _ = searched(share, most_column_rounds=0)
    assert state.fits
    assert state.best.time_us < without.best.time_us
    assert state.generated
    # What needs least may be asked for without it, by any budget.
    at_first = state.options_without(("generated",))
    for options in at_first:
        first = {c.name for c in state.space.proposed[options.unit]}
        assert first <= names(options)
        assert not names(options) & {
            n for unit, n in state.generated if unit == options.unit
        }
    assert {unit for unit, _ in state.generated} <= {
        options.unit for options in at_first
    }


def test_what_is_chosen_gives_an_estimate_beside_the_nearest_neighbour():
    """The better one counts: a set whose neighbours are all slow may still be fast."""
    state, _ = searched(0.75, "reversible-h100", most_column_rounds=0)
    chosen = state.assign(state.options, state.budget_bytes)
    assert chosen is not None
    better = 0
    for options in state.options:
        new = without_cost(state, state.space.graph[options.unit])
        for candidate in new:
            one = lambda how, options=options, few=(candidate,): {
                cost.name: cost.time_us
                for cost in _with_estimates(state, options, few, how).costs
            }.get(few[0].name, math.inf)
            near, both = one(frozenset()), one(chosen.support)
            assert both <= near
            better += both < near
    assert better


def test_nothing_is_asked_where_nothing_is_to_be_gained():
    state, ask = searched(100, "two_kinds-h100")
    assert column_generation(state, ask) is state


@pytest.mark.slow
def test_a_limit_of_compiles_holds():
    most = 20
    problem = rr.Problem(loss, specs())
    state, ask = begin(problem, rr.target("h100:1"), most_compiles=most)
    assert decide(state.within(BUDGET), ask).num_compiles <= most


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


@pytest.mark.slow
@pytest.mark.slow
def test_what_no_device_holds_fits_with_inputs_on_the_host():
    square = jax.ShapeDtypeStruct((12, 2048, 2048), jnp.bfloat16)
    wide = jax.ShapeDtypeStruct((65536, 2048), jnp.bfloat16)

    def stacked(w, x):
        return rr.stack(lambda w, x: x + jnp.tanh(x @ w) @ w, w, x).sum()

    problem, target = rr.Problem(stacked, (square, wide)), rr.target("h100:1")
    state, ask = begin(problem, target, unroll=False)
    (unit,) = state.units
    state = ask(state, [state.all_recomputed()])
    state = decide(state.within(state.reference.bytes // 2), ask)
    fit = answer(state, stacked)
    assert fit.plan.fits
    assert any(on_the_host(a, unit) for a in fit.plan.actions[unit.name])


def test_a_wait_for_the_host_is_what_no_pass_hides():
    unit = transformer()  # its backward pass has twice the work of the forward pass
    kept = unit.kept(rr.SAVE)
    us = lambda size: exposed_us(unit, kept, LayerCost("", 0, 0, size, 300.0), 1e6)
    share = unit.forward_flops / (unit.forward_flops + unit.backward_flops)
    forward_us = 300.0 * share
    assert us(forward_us) == pytest.approx(0.0)
    assert us(forward_us + 10) == pytest.approx(10.0)
    assert us(310) == pytest.approx(320.0)


def test_a_maximum_that_is_better_not_kept_is_in_nothing_that_is_proposed():
    wide, x = (jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in [(6, 64, 64), (512, 64)])
    attends = lambda w, x: x + jax.nn.softmax(x @ w) @ w
    stacked = lambda w, x: rr.stack(attends, w, x).sum()
    state, _ = begin(rr.Problem(stacked, (wide, x)), rr.target("h100:1"))
    (unit,) = state.units
    proposed = lambda: [c.action for c in without_cost(state, unit)]
    assert any("reduce_max_0" in a.save and a.on_host for a in proposed())
    dropped = {unit.name: frozenset({"reduce_max_0"})}
    state = state.but(dropped_maxima=dropped)
    assert not any("reduce_max_0" in action.save for action in proposed())
    assert any(action.on_host for action in proposed())
    assert len(set(proposed())) == len(proposed())
