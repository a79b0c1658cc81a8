"""Loops within loops: the search decides at the nesting where that is better."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat._search import answer, begin, decide
from revremat._search._start import nested_units
from revremat._search._state import OutOfCompiles
from revremat._search.passes._nested import nested
from tests.search.world import World, unit_of

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
    names = lambda nesting: [unit.name for unit in nested_units(graph, nesting)]
    assert names(0) == ["scan_0", "scan_1"]
    assert names(1) == ["scan_0/scan_0", "scan_1"]
    assert names(2) == names(1)


def around(kind, budget, room=None):
    """Layers with loops inside; both are known, and that nothing is without the outer.

    Recomputing all takes 46 bytes and 1600 us, saving all 170 and 800.
    """
    world = World(unit_names=("layers", "loops"))
    both, ask = world.state(budget)
    outer, inner = unit_of("layers", kind=kind), unit_of("loops", enclosing="layers")
    most = None if room is None else both.num_compiles + room
    fixed = {
        "graph": dataclasses.replace(both.space.graph, units=(outer, inner)),
        "most_compiles": most,
    }
    inside = dataclasses.replace(
        both.space, **fixed, units=(inner,), enclosing=(outer,), nesting=1
    )
    space = dataclasses.replace(both.space, **fixed, units=(outer,))
    deeper = both.but(space=inside, units=(inner,), is_profiled=room is None)
    known = {True: deeper, False: None}
    return both.but(space=space, units=(outer,), nested=known, bound_us=math.inf), ask


@pytest.mark.parametrize(
    ("kind", "budget", "bound_us"),
    [("block", 20, 0.0), ("block", 500, math.inf), ("scan", 500, math.inf)],
    ids=["nothing fits", "nothing to gain", "nothing to gain in a loop"],
)
def test_where_outer_layers_are_unrolled_and_may_gain_no_bound_is_known(
    kind, budget, bound_us
):
    state, ask = around(kind, budget)
    searched = lambda state, ask: pytest.fail("loops of unrolled layers are all alike")
    state = nested(searched)(state, ask)
    assert state.bound_us == bound_us
    assert state.skipped == ()


@pytest.mark.parametrize("kind", ["block", "scan"])
def test_where_compiles_end_inside_what_is_known_there_counts_outside(kind):
    state, ask = around(kind, 20, room=0)
    searched = lambda state, ask: pytest.fail("there is no room")
    with pytest.raises(OutOfCompiles) as cut:
        nested(searched)(state, ask)
    known = cut.value.state
    assert known.units == state.units
    assert known.num_compiles == state.num_compiles
    assert known.trials == state.trials


@pytest.mark.slow
@pytest.mark.parametrize("spare", [1.05, 2.0])
def test_no_slower_than_checkpointed_layers_within_a_loop(spare):
    checkpointed = by_hand()
    budget = int(spare * checkpointed.memory.total_bytes)
    found = rr.fit(over_microbatches, *specs(), budget=budget, target="h100:1")
    assert found.plan.fits
    assert found.plan.units[-1].name == "scan_0/scan_0"
    # A loop that zeroes its gradients' buffers inside another does it every time.
    assert found.measurement.time.step_us <= 1.01 * checkpointed.time.step_us
    rng = np.random.default_rng(0)
    make = lambda *s: jnp.asarray(rng.normal(size=s) / 8, jnp.float32)
    graph = rr.trace(over_microbatches, *(small := arguments(8, 4, make)))
    planned = rr.apply(over_microbatches, graph.plan(found.plan.actions))
    ours, plain = (jax.grad(f)(*small) for f in (planned, over_microbatches))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), ours, plain)


# ---- Both levels at once -------------------------------------------------------------


def time_steps(w, xs):
    """Layers over time: a scan over steps in a scan over layers."""

    def step(h, x, w):
        h = h / 2 + jnp.tanh((x + h) @ w["up"]) @ w["down"]
        return h, h

    def over_time(xs, w):
        zeros = jnp.zeros(xs.shape[1:], xs.dtype)
        return xs + jax.lax.scan(lambda h, x: step(h, x, w), zeros, xs)[1], None

    return jnp.square(jax.lax.scan(over_time, xs, w)[0]).mean()


def sequences(make, layers=4, steps=32, rows=512, width=256):
    up, down = (layers, width, 8 * width), (layers, 8 * width, width)
    return {"up": make(*up), "down": make(*down)}, make(steps, rows, width)


def abstract():
    return sequences(lambda *s: jax.ShapeDtypeStruct(s, jnp.float32))


def nested_actions(outer, inner):
    return {"scan_0": outer, "scan_0/scan_0": inner}


@pytest.mark.every_commit(
    "RECOMPUTE-SAVE", "RECOMPUTE(unroll=True)-RECOMPUTE(unroll=True)"
)
@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (rr.RECOMPUTE, rr.SAVE),
        (rr.RECOMPUTE, rr.RECOMPUTE),
        (rr.RECOMPUTE(segment_length=2), rr.RECOMPUTE(segment_length=4)),
        (rr.RECOMPUTE(unroll=True), rr.RECOMPUTE(unroll=True)),
    ],
    ids=repr,
)
def test_gradients_are_the_same_where_both_levels_are_decided(outer, inner):
    rng = np.random.default_rng(0)
    make = lambda *s: jnp.asarray(rng.normal(size=s) / 4, jnp.float32)
    args = sequences(make, layers=4, steps=8, rows=2, width=8)
    plan = rr.trace(time_steps, *args).plan(nested_actions(outer, inner))
    assert rr.Plan.from_json(plan.to_json()) == plan
    planned = rr.apply(time_steps, plan)
    ours, plain = (jax.value_and_grad(f)(*args) for f in (planned, time_steps))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), ours, plain)


def test_three_levels_at_once():
    def loss(w, xs):
        return jax.lax.scan(lambda s, x: (s + time_steps(w, x), None), 0.0, xs)[0]

    rng = np.random.default_rng(0)
    make = lambda *s: jnp.asarray(rng.normal(size=s) / 4, jnp.float32)
    w, x = sequences(make, layers=3, steps=4, rows=2, width=8)
    args = w, jnp.stack([x, 2 * x])
    graph = rr.trace(loss, *args)
    names = [unit.name for unit in graph.units]
    assert names == ["scan_0", "scan_0/scan_0", "scan_0/scan_0/scan_0"]
    planned = rr.apply(loss, graph.plan(dict.fromkeys(names, rr.RECOMPUTE)))
    ours, plain = (jax.grad(f)(*args) for f in (planned, loss))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5, 1e-6), ours, plain)


def compiled_bytes(actions):
    plan = rr.trace(time_steps, *abstract()).plan(actions)
    step = jax.grad(rr.apply(time_steps, plan))
    return rr.measure(step, *abstract(), target="h100:1").memory.total_bytes


def test_both_levels_take_less_than_either():
    both = compiled_bytes(nested_actions(rr.RECOMPUTE, rr.RECOMPUTE))
    assert both < 0.6 * compiled_bytes({"scan_0": rr.RECOMPUTE})
    assert both < 0.8 * compiled_bytes({"scan_0/scan_0": rr.RECOMPUTE})


@pytest.mark.slow
def test_where_neither_level_fits_both_are_decided():
    smallest = compiled_bytes(
        nested_actions(rr.RECOMPUTE, rr.RECOMPUTE(segment_length=8))
    )
    problem, target = rr.Problem(time_steps, abstract()), rr.target("h100:1")
    state, ask = begin(problem, target, unroll=False)
    state = decide(state.within(int(1.02 * smallest)), ask)
    found = answer(state, time_steps)
    assert found.plan.fits
    assert set(found.plan.actions) == set(nested_actions(0, 0))
    assert set(found.plan.actions["scan_0"]) == {rr.RECOMPUTE}
    graph = rr.trace(time_steps, *abstract())
    text = rr.export(found.plan, graph, "jax").text
    assert "Unit 'scan_0'," in text
    assert "Unit 'scan_0/scan_0'," in text
    # And where the inner one alone fits, but is slower; with what the first left.
    state = decide(state.within(int(1.12 * smallest)), ask)
    more = answer(state, time_steps)
    assert more.plan.fits
    assert more.measurement.time.step_us <= found.measurement.time.step_us


@pytest.mark.every_commit("9-200MiB")
@pytest.mark.parametrize(
    ("most", "budget"),
    [(9, "200MiB"), (14, "500MiB")],
)
def test_no_more_is_compiled_than_allowed_at_all_levels_together(most, budget):
    found = rr.fit(
        time_steps, *abstract(), budget=budget, target="h100:1", most_compiles=most
    )
    assert found.num_compiles <= most


def test_nothing_is_sent_to_the_host_from_within_a_branch():
    """The compiler refuses it."""

    def loss(w, x, is_on):
        layers = lambda x: jax.lax.scan(layer, x, w)[0]
        return jnp.square(jax.lax.cond(is_on, layers, lambda x: x, x)).mean()

    w, xs = specs()
    x = jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype)
    is_on = jax.ShapeDtypeStruct((), jnp.bool_)
    (unit,) = rr.trace(loss, w, x, is_on).units
    assert unit.in_branch
    plan = rr.search(loss, w, x, is_on, budget="150MiB", target="h100:1", unroll=False)
    assert plan.fits


def test_layers_that_keep_something_leave_nothing_to_decide_inside():
    graph = rr.trace(time_steps, *abstract())
    keeps_one = rr.RECOMPUTE(save=[graph["scan_0"].residuals[0].name])
    for outer in (rr.SAVE, rr.OFFLOAD, keeps_one):
        with pytest.raises(rr.UserError, match="or RECOMPUTE to 'scan_0'"):
            graph.plan(nested_actions(outer, rr.RECOMPUTE))


# ---- Loops within unrolled layers ----------------------------------------------------

CHUNKS = 4


def attends_in_chunks(w, x, wrap_chunk=False):
    """A layer whose attention goes over the queries chunk by chunk."""

    def chunk(_, queries):
        return None, jax.nn.softmax(queries @ x.swapaxes(-1, -2)) @ x

    if wrap_chunk:
        chunk = jax.checkpoint(chunk, prevent_cse=False)

    rows, steps, width = x.shape
    queries = (x @ w["query"]).reshape(rows, CHUNKS, steps // CHUNKS, width)
    _, found = jax.lax.scan(chunk, None, queries.swapaxes(0, 1))
    x = x + found.swapaxes(0, 1).reshape(x.shape)
    wide = x.astype(jnp.float32)
    normed = (wide / (1 + jnp.abs(wide).mean(-1, keepdims=True))).astype(x.dtype)
    return x + jnp.tanh(normed @ w["up"]) @ w["down"]


def unrolled(ws, x, wrap=lambda layer: layer, wrap_chunk=False):
    for w in ws:
        x = wrap(functools.partial(attends_in_chunks, wrap_chunk=wrap_chunk))(w, x)
    return jnp.square(x.astype(jnp.float32)).mean()


def chunked(make, layers=5, rows=4, steps=512, width=128):
    w = {
        "query": make(width, width),
        "up": make(width, 4 * width),
        "down": make(4 * width, width),
    }
    return [dict(w) for _ in range(layers)], make(rows, steps, width)


def chunked_specs(dtype=jnp.bfloat16):
    return chunked(lambda *s: jax.ShapeDtypeStruct(s, dtype))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32], ids=str)
def test_loops_over_activations_are_parts_of_unrolled_layers(dtype):
    units = rr.trace(unrolled, *chunked_specs(dtype)).units
    found = [(u.name, u.kind, u.num_layers, u.enclosing) for u in units]
    assert found == [
        ("repeat_0", "repeat", 5, ""),
        ("scan_0", "scan", 5 * CHUNKS, "repeat_0"),
    ]


def test_loops_over_layers_are_no_parts_of_anything():
    def towers(w, a, b):
        first, _ = jax.lax.scan(layer, a, w)
        second, _ = jax.lax.scan(layer, b, w)
        return jnp.square(first - second).mean()

    w, xs = specs()
    x = jax.ShapeDtypeStruct(xs.shape[1:], xs.dtype)
    units = rr.trace(towers, w, x, x).units
    assert [(u.kind, u.enclosing) for u in units] == [("scan", "")] * 2


@pytest.mark.every_commit("{'repeat_0': RECOMPUTE, 'scan_0': RECOMPUTE}")
@pytest.mark.parametrize(
    "actions",
    [
        {"repeat_0": [rr.RECOMPUTE(save=["dot_general_0"])] * 3 + [rr.SAVE] * 2},
        {"repeat_0": rr.RECOMPUTE, "scan_0": rr.RECOMPUTE},
        *(
            pytest.param(actions, marks=pytest.mark.slow)
            for actions in (
                {"scan_0": [rr.RECOMPUTE] * 7 + [rr.SAVE] * 13},
                {"scan_0": rr.RECOMPUTE(segment_length=2)},
                {"repeat_0": rr.RECOMPUTE, "scan_0": rr.SAVE},
            )
        ),
    ],
    ids=str,
)
def test_gradients_are_the_same_with_loops_within_unrolled_layers(actions):
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        make = lambda *s: jnp.asarray(rng.normal(size=s) / 4)
        args = chunked(make, rows=2, steps=8, width=8)
        planned = rr.apply(unrolled, rr.trace(unrolled, *args).plan(actions))
        ours, plain = (jax.grad(f)(*args) for f in (planned, unrolled))
    # Layers are normed in float32.
    same = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5)
    jax.tree.map(same, ours, plain)


def test_loops_of_unrolled_layers_are_all_alike_beside_an_action_of_the_layers():
    graph = rr.trace(unrolled, *chunked_specs())
    mixed = [rr.RECOMPUTE] * 3 + [rr.SAVE] * (5 * CHUNKS - 3)
    for layers, loops in ((rr.SAVE, rr.RECOMPUTE), (rr.RECOMPUTE, mixed)):
        with pytest.raises(rr.UserError, match="and one action to 'scan_0'"):
            graph.plan({"repeat_0": layers, "scan_0": loops})


@pytest.mark.slow
@pytest.mark.parametrize(
    "both",
    [
        pytest.param(False, id="layers"),
        pytest.param(True, id="loops, too", marks=pytest.mark.slow),
    ],
)
def test_unrolled_layers_with_loops_within_take_what_checkpointed_ones_do(both):
    graph = rr.trace(unrolled, *chunked_specs())
    names = ["repeat_0", "scan_0"] if both else ["repeat_0"]
    planned = rr.apply(unrolled, graph.plan(dict.fromkeys(names, rr.RECOMPUTE)))
    by_hand = functools.partial(unrolled, wrap=jax.checkpoint, wrap_chunk=both)
    ours, theirs = (
        rr.measure(jax.grad(f), *chunked_specs(), target="h100:1").memory.total_bytes
        for f in (planned, by_hand)
    )
    assert ours <= 1.02 * theirs
