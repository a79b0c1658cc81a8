"""Offloading in loops in loops and in branches: right, or refused by a sentence."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import OFFLOAD, RECOMPUTE, SAVE, UserError

LAYERS, ITERATIONS, WIDTH = 3, 2, 16


def iteration(x, w):
    return x + jnp.tanh(x @ w), None


def scan(x, w):
    return jax.lax.scan(iteration, x, w)[0], None


def stack(x, w):
    return rr.stack(lambda w, x: iteration(x, w)[0], w, x), None


def branch(x, w):
    return jax.lax.cond(x[0, 0] > 0, lambda x: scan(x, w)[0], jnp.sin, x), None


def marked_branch(x, w):
    marked = rr.block(lambda x: scan(x, w)[0], "marked")
    return jax.lax.switch(1, [jnp.sin, marked], x), None


def thrice(x, w):
    return jax.lax.scan(scan, x, jnp.stack([w, 2 * w]))[0], None


def over(layer):
    def loss(w, x):
        return (jax.lax.scan(layer, x, w)[0] ** 2).mean()

    rng = np.random.default_rng(0)
    w = jnp.asarray(
        rng.normal(size=(LAYERS, ITERATIONS, WIDTH, WIDTH)) / 8, jnp.float32
    )
    return loss, w, jnp.asarray(rng.normal(size=(WIDTH, WIDTH)), jnp.float32)


def inner_unit(graph):
    return graph.units[-1].name


@pytest.mark.parametrize("actions", [[OFFLOAD] * 2, [OFFLOAD, SAVE]], ids=str)
@pytest.mark.parametrize("layer", [scan, stack])
def test_a_loop_in_a_loop_sends_all_of_an_iteration_at_once(layer, actions):
    loss, w, x = over(layer)
    graph = rr.trace(loss, w, x)
    planned = rr.apply(loss, graph.plan({inner_unit(graph): actions}))
    found, expected = (jax.jit(jax.grad(f))(w, x) for f in (planned, loss))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layer", [scan, stack])
def test_a_card_compiles_a_loop_in_a_loop_that_offloads(layer):
    loss, w, x = over(layer)
    graph = rr.trace(loss, w, x)
    name = inner_unit(graph)
    planned = rr.apply(loss, graph.plan({name: OFFLOAD}))
    memory = rr.measure(jax.grad(planned), w, x, target="h100:1").memory
    kept = graph[name].kept(OFFLOAD).host_bytes
    assert memory.host_bytes == LAYERS * ITERATIONS * kept


@pytest.mark.parametrize("layer", [branch, marked_branch])
@pytest.mark.parametrize("kind", [OFFLOAD, SAVE, RECOMPUTE], ids=str)
def test_a_branch_does_not_offload(layer, kind):
    loss, w, x = over(layer)
    graph = rr.trace(loss, w, x)
    unit = graph[inner_unit(graph)]
    action = kind if kind == OFFLOAD else kind(offload=[unit.residuals[0].name])
    with pytest.raises(UserError, match="runs in a branch of"):
        graph.plan({unit.name: action})


def test_a_branch_without_a_loop_around_it_does_not_offload():
    _, w, x = over(scan)
    single = lambda w, x: (branch(x, w[0])[0] ** 2).mean()
    graph = rr.trace(single, w, x)
    with pytest.raises(UserError, match="write SAVE or RECOMPUTE"):
        graph.plan({inner_unit(graph): OFFLOAD})


def test_three_loops_offload_where_all_but_one_is_recomputed():
    loss, w, x = over(thrice)
    graph = rr.trace(loss, w, x)
    name, middle = inner_unit(graph), graph.units[-2].name
    with pytest.raises(UserError, match="inside of 2 scans, which would all keep"):
        graph.plan({name: OFFLOAD})
    planned = rr.apply(loss, graph.plan({middle: RECOMPUTE, name: OFFLOAD}))
    found, expected = (jax.jit(jax.grad(f))(w, x) for f in (planned, loss))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("layer", [branch, thrice])
def test_a_plan_written_by_hand_is_refused_by_the_same_sentence(layer):
    loss, w, x = over(layer)
    graph = rr.trace(loss, w, x)
    plan = graph.plan({inner_unit(graph): SAVE})
    (unit,) = plan.units
    sent = dataclasses.replace(
        unit,
        actions=(OFFLOAD,) * len(unit.actions),
        device_names=unit.host_names,
        host_names=unit.device_names,
    )
    planned = rr.apply(loss, dataclasses.replace(plan, units=(sent,)))
    with pytest.raises(UserError, match=r"would (send|all keep)") as caught:
        jax.grad(planned)(w, x)
    assert len(str(caught.value)) <= 400
