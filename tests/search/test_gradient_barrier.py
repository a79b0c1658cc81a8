"""Gradients are held together where a compiler that puts them off takes more."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._search import BASELINE, ProgramKey, Request, begin
from revremat._search.passes._baseline import baseline
from revremat._search.passes._gradient_barrier import (
    gradient_barrier,
    put_off,
    with_barrier,
    without_barrier,
)
from tests.search.world import World, measured

WIDTH, ROWS, MICROBATCHES = 256, 4096, 4


def sines(w, x):
    return x + jnp.sin(jnp.tanh(x @ w["up"])) @ w["down"]


def gates(w, x):
    up = x @ w["up"]
    return x + (jax.nn.silu(up) * jnp.cos(up)) @ w["down"]


def weighted(w, x):
    up = jax.nn.softmax(x @ w["up"])
    return x + (up * jnp.exp(-up)) @ w["down"]


LAYERS = (sines, gates, weighted) * 2


def loss(ws, x):
    for layer, w in zip(LAYERS, ws, strict=True):
        x = rr.block(layer, layer.__name__)(w, x)
    return jnp.square(x).mean()


def array(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


WEIGHTS = [{"up": array(WIDTH, 4 * WIDTH), "down": array(4 * WIDTH, WIDTH)}] * 6


def accumulated(loss):
    def step(ws, batches):
        def one(total, x):
            value, gradients = jax.value_and_grad(loss)(ws, x)
            return jax.tree.map(jnp.add, total, gradients), value

        return jax.lax.scan(one, jax.tree.map(jnp.zeros_like, ws), batches)

    return step, (WEIGHTS, array(MICROBATCHES, ROWS, WIDTH))


def made_of(step=None):
    """A search that has seen the program as it is written."""
    problem = rr.Problem(loss, (WEIGHTS, array(ROWS, WIDTH)), step)
    state, ask = begin(problem, rr.target("h100:1"))
    return baseline(state, ask), ask


def alike(state, ask, action, barrier=None):
    """What is known with a program more whose layers are alike, and its row."""
    actions = {unit.name: (action,) * unit.num_layers for unit in state.units}
    key = state.key_of(actions, barrier)
    state = ask(state, [Request(key, "alike")])
    return state, state.row(key)


@pytest.mark.slow
def test_over_microbatches_gradients_are_held_together_where_they_were_put_off():
    state, ask = made_of(accumulated)
    state = gradient_barrier(state, ask)
    assert state.gradient_barrier
    state, put_off = alike(state, ask, rr.RECOMPUTE, barrier=False)
    state, held = alike(state, ask, rr.RECOMPUTE)
    assert held.bytes < 0.7 * put_off.bytes
    step, specs = accumulated(rr.apply(loss, held.plan))
    again = rr.measure(step, *specs, target="h100:1")
    assert again.memory.total_bytes == held.bytes
    assert held.name.endswith("; gradient barrier")

    state, kept = alike(state, ask, rr.RECOMPUTE(save=["dot_general_0"]))
    state = state.within(state.rows[BASELINE].bytes - 1)
    # Its costs are of programs with a barrier: what is faster without has no bound.
    found = without_barrier(state.but(bound_us=math.inf), ask)
    assert found.bound_us == 0.0
    assert not found.best.plan.gradient_barrier
    assert found.best.time_us < kept.time_us
    assert without_barrier(state.but(bound_us=1.0), ask).bound_us == 1.0


def test_without_its_barrier_a_plan_is_otherwise_the_same():
    state, _ = World(kind="repeat").state(1000)
    held = ProgramKey.of({"u": (rr.SAVE,) * 8}, True, 90)
    state = state.with_measured(Request(held, "held"), measured(10, 0.1))
    asked = []

    def ask(state, requests):
        asked.extend(request.key for request in requests)
        return state

    without_barrier(state.but(gradient_barrier=True), ask)
    assert asked == [dataclasses.replace(held, gradient_barrier=False)]


@pytest.mark.slow
def test_a_plain_step_is_left_to_the_compiler():
    state, ask = made_of()
    assert not gradient_barrier(state, ask).gradient_barrier


@pytest.fixture(scope="module")
def over_devices():
    """A search that knows one unrolled program over eight devices, and its row."""
    target = rr.target("h100:8")
    mesh = target.mesh({"data": 8})

    def stacked(w, x):
        layer = lambda w, x: x + jnp.tanh(x @ w["up"]) @ w["down"]
        return rr.stack(layer, w, x).astype(jnp.float32).sum()

    def cut(a, *axes):
        where = jax.NamedSharding(mesh, jax.P(*axes))
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where)

    w = {
        "up": cut(array(6, 1024, 4096), None, "data"),
        "down": cut(array(6, 4096, 1024), None, None, "data"),
    }
    problem = rr.Problem(stacked, (w, cut(array(65_536, 1024), "data")))
    state, ask = begin(problem, target)
    state, lagging = alike(baseline(state, ask), ask, rr.RECOMPUTE(unroll=True))
    return state, ask, lagging


def test_over_devices_a_barrier_makes_unrolled_layers_fit_that_do_not_without(
    over_devices,
):
    """Waiting for one another's gradients, they take a layer less, and longer."""
    state, ask, lagging = over_devices
    asked = with_barrier(state.within(lagging.bytes), ask).num_compiles
    assert asked == state.num_compiles
    held = with_barrier(state.within(lagging.bytes - 1), ask).best
    assert held.plan.gradient_barrier
    assert held.bytes < lagging.bytes
    assert held.time_us > lagging.time_us


def test_over_devices_gradients_are_put_off_where_there_is_room(over_devices):
    state, ask, lagging = over_devices
    asked = put_off(state.within(lagging.bytes - 1), ask).num_compiles
    assert asked == state.num_compiles
    found = put_off(state.within(2 * lagging.bytes), ask)
    *_, off = found.rows.values()
    assert off.name.endswith("; gradients put off")
    assert off.plan == dataclasses.replace(lagging.plan, puts_gradients_off=True)
    assert off.bytes > lagging.bytes
    assert put_off(found, ask).num_compiles == found.num_compiles
    assert not found.is_costed(off)


def test_of_plans_with_their_gradients_put_off_no_bound_is_known(over_devices):
    state, _, lagging = over_devices
    asked = []

    def says(time_us):
        def ask(state, requests):
            time = dataclasses.replace(lagging.measurement.time, step_us=time_us)
            outcome = dataclasses.replace(lagging.measurement, time=time)
            for request in requests:
                asked.append(request)
                state = state.with_measured(request, outcome)
            return state

        return ask

    state = state.within(lagging.bytes).but(bound_us=0.9 * lagging.time_us)
    found = put_off(state, says(0.95 * lagging.time_us))
    assert found.best.plan.puts_gradients_off
    assert found.key_of_row(found.best).puts_gradients_off
    assert found.known_bound_us == 0
    found = put_off(state, says(1.1 * lagging.time_us))
    assert found.best == lagging
    assert found.known_bound_us == state.bound_us
    # Nothing is asked where all that is exchanged in sight would not make up for it.
    key = state.key_of({u.name: (rr.SAVE,) * u.num_layers for u in state.units})
    least_us = lagging.time_us - lagging.measurement.time.exposed_collective_us
    state = says(0.99 * least_us)(state, [Request(key, "by hand")])
    asked.clear()
    assert put_off(state, says(1.0)) == state
    assert not asked
