"""Gradients are computed in order where a compiler that puts them off takes more."""

import math

import jax
import jax.numpy as jnp

import revremat as rr
from revremat._choose import Search
from revremat._order import put_in_order, try_without_order

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
    search = Search(problem, rr.target("h100:1"))
    search.written()
    return search


def all_alike(search, action):
    return {unit.name: (action,) * unit.num_layers for unit in search.units}


def test_over_microbatches_plans_in_order_go_where_none_went():
    search = made_of(accumulated)
    put_in_order(search)
    assert search.in_order
    rebuilt = all_alike(search, rr.RECOMPUTE)
    put_off = search.add("put off", rebuilt, in_order=False)
    ordered = search.add("in order", rebuilt)
    assert ordered.bytes < 0.7 * put_off.bytes
    step, specs = accumulated(rr.apply(loss, ordered.plan))
    again = rr.measure(step, *specs, target="h100:1")
    assert again.memory.total_bytes == ordered.bytes

    assert ordered.name.endswith("; gradients in order")

    kept = all_alike(search, rr.RECOMPUTE(save=["dot_general_0"]))
    search.add("in order", kept)
    search.budget = search.written().bytes - 1
    # Its prices are of programs in order: what is faster without has no bound.
    assert try_without_order(search, math.inf) == 0.0
    best = search.best(search.budget)
    assert not best.plan.in_order
    assert try_without_order(search, 1.0) == 1.0
    assert best.time_us < search.add("in order", kept).time_us


def test_a_plain_step_is_left_to_the_compiler():
    search = made_of()
    put_in_order(search)
    assert not search.in_order
