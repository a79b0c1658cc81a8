"""Units that are no plain chain of layers are found, costed and rewritten alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat._search import Request, answer, begin, decide, profile
from revremat._search._result import holders
from revremat.policies import smallest_bytes

LAYERS, WIDTH, ROWS = 4, 32, 512


def arrays(*shapes):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=s) / 4, jnp.float32) for s in shapes]


def weights():
    return arrays(*[(WIDTH, WIDTH)] * LAYERS)


def same_gradients(found, expected, *args):
    pairs = zip(
        jax.tree.leaves(jax.value_and_grad(found)(*args)),
        jax.tree.leaves(jax.value_and_grad(expected)(*args)),
        strict=True,
    )
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-3)


def gate_first(x, w, gate):
    return jnp.exp(jnp.sin(gate)) * jnp.sin(x @ w)


def gate_last(x, w, gate):
    return jnp.sin(x @ w) * jnp.exp(jnp.sin(gate))


def tried(state, ask, actions):
    """What is known with one more program by hand, and its row."""
    key = state.key_of(actions)
    state = ask(state, [Request(key, "by hand")])
    return state, state.row(key)


@pytest.mark.parametrize("layer", [gate_first, gate_last])
def test_layers_of_a_loop_may_share_what_was_computed(layer):
    def loss(ws, x, p):
        gate = jax.nn.sigmoid(x @ p)
        for w in ws:
            x = layer(x, w, gate)
        return (x**2).sum()

    args = (weights(), *arrays((ROWS, WIDTH), (WIDTH, 1)))
    graph = rr.trace(loss, *args)
    (unit,) = [unit for unit in graph.units if unit.num_layers == LAYERS]
    names = [residual.name for residual in unit.residuals]
    actions = [rr.RECOMPUTE(save=[name]) for name in names]
    for action in (*actions, rr.SAVE, rr.RECOMPUTE, rr.RECOMPUTE(segment_length=2)):
        plan = graph.plan({unit.name: (action,) * LAYERS})
        same_gradients(rr.apply(loss, plan), loss, *args)


def test_blocks_whose_results_are_used_again_are_mixed_by_true_costs():
    def loss(ws, x):
        outs = []
        for w in ws:
            x = rr.block(lambda w, x: jnp.tanh(jnp.sin(x @ w) @ w), "layer")(w, x)
            outs.append(x)
        return sum((out**2).sum() for out in outs)

    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    problem = rr.Problem(loss, ([shape(128, 128)] * LAYERS, shape(2048, 128)))
    state, ask = begin(problem, rr.target("cpu:1"))
    state = profile(state, ask)
    plain = state.baseline.bytes
    state = decide(state.within(int(0.8 * plain)), ask)
    found = answer(state, loss)
    kept, saved = rr.RECOMPUTE(save=["tanh_0"]), rr.SAVE
    _, by_hand = tried(state, ask, {"layer": (kept, kept, saved, saved)})
    assert by_hand.bytes <= 0.8 * plain
    assert found.measurement.time.step_us <= by_hand.time_us
    assert found.bound_us <= by_hand.time_us


def test_the_best_plan_may_be_one_without_costs():
    def loss(ws, x):
        for w in ws:
            x = rr.name(jnp.sin(rr.name(x @ w, "up")), "bent") @ w
        return (x**2).sum()

    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    problem = rr.Problem(loss, ([shape(64, 64)] * LAYERS, shape(512, 64)))
    state, ask = begin(problem, rr.target("cpu:1"))
    (unit,) = state.units
    few = tuple(c for c in state.candidates[unit.name] if c.action != rr.SAVE)
    state = profile(state.but(candidates={unit.name: few}), ask)
    state, row = tried(state, ask, {unit.name: (rr.SAVE,) * LAYERS})
    state = decide(state.within(row.bytes), ask)
    assert state.best.time_us <= row.time_us


@pytest.mark.slow
def test_costs_a_little_too_high_do_not_hide_what_is_faster():
    def loss(ws, x):
        for w in ws:
            x = rr.block(lambda w, x: jnp.tanh(jnp.sin(x @ w) @ w), "layer")(w, x)
        return (x**2).sum()

    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    problem = rr.Problem(loss, ([shape(64, 64)] * LAYERS, shape(2048, 64)))
    state, ask = begin(problem, rr.target("cpu:1"))
    kept = (rr.RECOMPUTE,) * (LAYERS - 1) + (rr.RECOMPUTE(save=["tanh_0"]),)
    _, row = tried(state, ask, {"layer": kept})
    state = profile(state, ask)
    more = 1.01 * row.bytes - smallest_bytes(state.options)
    state = state.but(calibration={"layer": state.calibration["layer"] + more})
    state = decide(state.within(row.bytes), ask)
    assert state.best.time_us <= row.time_us
    assert state.fits


def test_a_scan_of_no_layers_is_left_alone():
    def loss(w, x):
        iteration = lambda x, w: (jnp.tanh(x @ w), None)
        for part in (w[:0], w):
            x = jax.lax.scan(iteration, x, part)[0]
        return (x**2).sum()

    w, x = arrays((LAYERS, WIDTH, WIDTH), (ROWS, WIDTH))
    graph = rr.trace(loss, w, x)
    assert [unit.num_layers for unit in graph.units] == [LAYERS]
    plan = graph.plan({graph.units[0].name: (rr.RECOMPUTE,) * LAYERS})
    same_gradients(rr.apply(loss, plan), loss, w, x)


@pytest.mark.every_commit("False")
@pytest.mark.parametrize("is_marked", [False, True])
def test_what_is_kept_outside_of_units_is_told_where_it_does_not_fit(is_marked):
    def outside(x, w):
        for bend in (jnp.tanh, jnp.sin, jnp.cos, jax.nn.sigmoid, jnp.arctan):
            x = bend(x @ w)
        return x

    def loss(ws, x):
        x = (rr.block(outside, "outside") if is_marked else outside)(x, ws[0])
        for w in ws[1:]:
            x = rr.block(lambda w, x: jnp.tanh(jnp.sin(x @ w) @ w), "layer")(w, x)
        return (x**2).sum()

    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    problem = rr.Problem(loss, ([shape(64, 64)] * 3, shape(4096, 64)))
    found = rr.fit(problem, budget="2.5MiB", target="cpu:1")
    assert not found.plan.fits
    assert ("outside of all units" in found.plan.held_by) is not is_marked
    written = next(row for row in found.rows if row.plan is None)
    assert "of all units" not in holders(written, rr.trace(loss, *problem.specs), 1.0)


@pytest.mark.slow
def test_what_several_losses_keep_in_their_units_is_not_told_to_be_outside():
    layer = lambda w, x: x + jnp.tanh(x @ w["up"]) @ w["down"]
    loss = lambda w, x: jnp.square(rr.stack(layer, w, x)).mean()

    def step(loss):
        three = lambda w, a, b, c: loss(w, a) * loss(w, b) * loss(w, c)
        return jax.grad(three), (w, x, x, x)

    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    w, x = {"up": shape(6, 64, 256), "down": shape(6, 256, 64)}, shape(4096, 64)
    problem = rr.Problem(loss, (w, x), step)
    found = rr.fit(problem, budget="8MiB", target="cpu:1", unroll=False)
    assert not found.plan.fits
    assert " 18.0 MiB" in found.plan.held_by  # six inputs for each of three
    assert "outside of all units" not in found.plan.held_by
