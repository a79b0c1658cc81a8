"""Values that pass over layers: their gradients can be added up before each layer's."""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from experiments.bench.gradients import TOLERANCE, evaluate, relative_error
from revremat.program._loss import trace_loss
from revremat.program.units._passing import passing
from tests.program.unequal import chain, with_skips

ROWS, FIRST, GROWTH = 32, 16, 8


def dense(ws, x):
    """Every layer reads what all before it gave."""
    xs = [jnp.sin(x)]
    for w in ws:
        xs.append(jnp.tanh(jax.nn.silu(jnp.concatenate(xs, -1) @ w["up"]) @ w["down"]))
    return jnp.square(jnp.concatenate(xs, -1)).mean()


def weights(widths, dtype=jnp.float32):
    draw = iter(jax.random.split(jax.random.key(0), 64))
    make = lambda *shape: jax.random.normal(next(draw), shape, dtype) * 0.3
    return [make(a, b) for a, b in itertools.pairwise(widths)]


def dense_weights(layers, rows=ROWS, scale=1, dtype=jnp.float32):
    draw = iter(jax.random.split(jax.random.key(0), 64))
    make = lambda *shape: jax.random.normal(next(draw), shape, dtype) * 0.3
    first, growth = scale * FIRST, scale * GROWTH
    ws = []
    for k in range(layers):
        given, inner = first + k * growth, 3 * growth + 8 * k
        ws.append({"up": make(given, inner), "down": make(inner, growth)})
    return ws, make(rows, first)


WIDTHS = (8, 16, 32, 16, 8)
PROGRAMS = {
    "chain": lambda dtype: (
        chain,
        weights((8, 16, 24, 32, 24, 16), dtype),
        jnp.ones((ROWS, 8), dtype),
    ),
    "with_skips": lambda dtype: (
        with_skips,
        weights(WIDTHS, dtype),
        jnp.ones((ROWS, 8), dtype),
    ),
    "dense": lambda dtype: (dense, *dense_weights(5, dtype=dtype)),
}


@pytest.mark.parametrize(
    ("name", "passes"), [("chain", False), ("with_skips", True), ("dense", True)]
)
def test_what_is_used_after_a_layer_and_made_before_it_passes_over_it(name, passes):
    loss, *args = PROGRAMS[name](jnp.float32)
    found = trace_loss(loss, args).found
    assert bool(passing(found)) == passes


def test_what_has_no_gradient_and_weights_do_not_pass():
    def loss(ws, x):
        mask = jnp.cumsum(x, 0) > 0  # used by every layer, and has none
        shared = ws[0].astype(jnp.bfloat16).astype(jnp.float32)
        for k, w in enumerate(ws[1:]):
            x = jnp.where(mask[:, :1], (jnp.tanh, jnp.sin)[k % 2](x @ w @ w.T), 0.0)
        return jnp.square(x @ shared).mean()

    ws = [jnp.ones((8, 8)), *(jnp.ones((8, n)) for n in (16, 24, 32, 40))]
    assert not passing(trace_loss(loss, [ws, jnp.ones((ROWS, 8))]).found)


def of_all(graph):
    return {u.name: rr.RECOMPUTE for u in graph.units if not u.enclosing}


def of_some(graph):
    return dict(list(of_all(graph).items())[::2])


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("choose", [of_all, of_some, lambda graph: {}])
def test_no_gradient_is_another_where_they_are_added_up_first(name, choose):
    with jax.enable_x64(True):
        loss, *args = PROGRAMS[name](jnp.float64)
        graph = rr.trace(loss, *args)
        plan = graph.plan(choose(graph), gradient_barrier=True)
        run = functools.partial(jax.value_and_grad, argnums=(0, 1))
        pair = (evaluate(run(f), *args) for f in (loss, rr.apply(loss, plan)))
        errors = [relative_error(a, b) for a, b in zip(*pair, strict=True)]
    assert max(errors) <= TOLERANCE


def test_parts_of_gradients_do_not_wait_for_the_end_of_a_dense_network():
    ws, x = jax.eval_shape(lambda: dense_weights(8, rows=65_536, scale=4))
    graph = rr.trace(dense, ws, x)
    sizes = {}
    for barrier in (False, True):
        plan = graph.plan(of_all(graph), gradient_barrier=barrier)
        problem = rr.Problem(rr.apply(dense, plan), (ws, x))
        sizes[barrier] = rr.measure(problem, target="h100:1").memory.temp_bytes
    assert sizes[True] < 0.75 * sizes[False]


def test_a_search_adds_them_up_where_that_saves_much():
    ws, x = jax.eval_shape(lambda: dense_weights(8, rows=65_536, scale=4))
    problem = rr.Problem(dense, (ws, x))
    whole = rr.measure(problem, target="h100:1").memory.total_bytes
    found = rr.fit(problem, budget=whole // 2, target="h100:1", most_compiles=12)
    assert found.plan.fits
    assert found.plan.gradient_barrier
