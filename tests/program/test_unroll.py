"""Unrolled layers, not iterations of a loop: same gradients, other programs."""

import contextlib
import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE, UserError
from revremat.program.engine._segments import segments
from tests.program.test_segments_of_layers import (
    LAYERS,
    arguments,
    assert_equal,
    assert_same_gradients,
    backwards,
    closing_over,
    gradients,
    simple,
    unrolled,
    with_a_key_carried,
    with_dropout,
)

ACTIONS = {
    "save": SAVE(unroll=True),
    "recompute": RECOMPUTE(unroll=True),
    "one name": RECOMPUTE(save=["hidden"], unroll=True),
    "host": OFFLOAD(unroll=True),
    "ahead": RECOMPUTE(ahead=["hidden"], unroll=True),
    "segments": RECOMPUTE(segment_length=4, unroll=True),
    "beside a loop": (RECOMPUTE,) * 6 + (SAVE(unroll=True),) * 5,
    "between loops": (SAVE,) * 3 + (RECOMPUTE(unroll=True),) * 4 + (SAVE,) * 4,
    "two kinds": (RECOMPUTE(unroll=True),) * 6 + (SAVE(unroll=True),) * 5,
    "alternating": (RECOMPUTE(unroll=True), SAVE) * 5 + (SAVE(unroll=True),),
    "save, by 4": SAVE(unroll=4),
    "recompute, by 3": RECOMPUTE(unroll=3),
    "one name, by all": RECOMPUTE(save=["hidden"], unroll=LAYERS),
    "by 2 beside by 4": (RECOMPUTE(unroll=2),) * 6 + (SAVE(unroll=4),) * 5,
    "more than a run has": (RECOMPUTE(unroll=8),) * 3 + (SAVE,) * 8,
    "ahead, by 2": RECOMPUTE(ahead=["hidden"], unroll=2),
    "segments, by 2": RECOMPUTE(segment_length=2, unroll=2),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss", [simple, backwards, with_dropout, with_a_key_carried, closing_over]
)
def test_gradients_are_those_of_plain_autodiff_under_all_actions(loss):
    assert_same_gradients(loss, ACTIONS.values())


@pytest.mark.every_commit(
    "closing_over-names2", "backwards-names4", "with_dropout-names5"
)
@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (backwards, ["recompute", "two kinds"]),
        (with_a_key_carried, ["save", "between loops"]),
        (closing_over, ["one name", "beside a loop"]),
        (simple, ["ahead", "segments", "alternating"]),
        (backwards, ["save, by 4", "by 2 beside by 4"]),
        (with_dropout, ["recompute, by 3", "more than a run has"]),
        (simple, ["ahead, by 2", "segments, by 2", "one name, by all"]),
    ],
)
def test_gradients_are_those_of_plain_autodiff(loss, names):
    assert_same_gradients(loss, map(ACTIONS.get, names))


@pytest.mark.parametrize(
    ("loss", "names", "about"),
    [
        (simple, ["two kinds", "between loops", "ahead"], {"num_devices": 8}),
        (backwards, ["segments", "alternating", "host"], {"num_devices": 8}),
        (with_dropout, ["recompute"], {"num_devices": 8}),
        (with_a_key_carried, ["one name"], {"num_devices": 8}),
        (closing_over, ["two kinds", "beside a loop"], {"num_devices": 8}),
        (closing_over, ["two kinds", "beside a loop"], {"puts_gradients_off": True}),
    ],
)
def test_gradients_are_those_of_plain_autodiff_whenever_they_are_due(
    loss, names, about
):
    assert_same_gradients(loss, map(ACTIONS.get, names), **about)


def test_of_actions_by_hand_a_constraint_tells_that_there_are_devices():
    mesh = rr.target("cpu:8").mesh({"data": 8})
    cut = NamedSharding(mesh, P("data"))
    args = jnp.ones((3, 8, 8)), jnp.ones((16, 8))

    def number_of_barriers(constrained):
        def layer(w, x):
            if constrained:
                x = jax.lax.with_sharding_constraint(x, cut)
            return x + jnp.tanh(x @ w)

        def loss(w, x):
            how = RECOMPUTE(unroll=True)
            return rr.stack(layer, w, x, actions=how).sum()

        program = jax.make_jaxpr(jax.grad(loss))(*args)
        ends = [eqn.outvars for eqn in program.eqns if "barrier" in str(eqn.primitive)]
        return [len(few) for few in ends]

    # Recomputing waits for the carry's cotangent; then come gradients of a layer: of
    # its own, or of the layer above, of which there is none at first.
    assert number_of_barriers(False) == [3, 2] * 3
    assert number_of_barriers(True) == [3, 1, 3, 2, 3, 2]


@pytest.mark.parametrize("put_off", [False, True])
def test_gradients_of_a_python_loop_are_due_one_layer_later(put_off):
    how = {"num_devices": 8, "puts_gradients_off": put_off}
    actions = [RECOMPUTE, (RECOMPUTE, SAVE, SAVE) * 3 + (RECOMPUTE,) * 2]
    assert_same_gradients(unrolled, actions, **how)


@pytest.mark.parametrize(
    ("actions", "lags"),
    [
        ((RECOMPUTE(unroll=True),) * 2, True),
        ((RECOMPUTE, SAVE(unroll=True)), True),
        ((SAVE(unroll=True),) * 2, False),
        ((RECOMPUTE,) * 2, False),
        ((RECOMPUTE(unroll=4),) * 2, False),
        ((RECOMPUTE(unroll=True),), False),
        ((RECOMPUTE(segment_length=2, unroll=True),) * 2, False),
        ((RECOMPUTE(ahead=["hidden"], unroll=True),) * 2, False),
    ],
)
def test_which_layers_leave_others_time_for_their_gradients(actions, lags):
    (unit,) = rr.trace(simple, *arguments()).units
    assert unit.lags(actions) is lags


def test_layers_of_a_python_loop_do_where_they_follow_one_another():
    (unit,) = rr.trace(unrolled, *arguments()).units
    assert unit.lags((SAVE,) * LAYERS)
    assert not unit.lags((SAVE,))


@pytest.mark.parametrize(
    "names",
    [
        ["two kinds", "between loops", "beside a loop"],
        pytest.param([*ACTIONS], marks=pytest.mark.slow),
    ],
)
def test_gradients_agree_over_eight_devices(names):
    with jax.enable_x64(True):
        w, x = arguments()
        mesh = rr.target("cpu:8").mesh({"data": 4, "model": 2})
        put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
        w = {"a": put(w["a"], None, None, "model"), "b": put(w["b"], None, "model")}
        args = (w, put(x, "data"))
        graph = rr.trace(simple, *args)
        assert graph.num_devices == 8
        expected = gradients(simple, *arguments())
        for name in names:
            plan = graph.plan({"scan_0": ACTIONS[name]})
            assert_equal(gradients(rr.apply(simple, plan), *args), expected)


@pytest.mark.parametrize("unroll", [True, 4])
def test_inverted_layers_are_unrolled(unroll):
    def layer(w, xs):
        a, b = xs
        a = a + jnp.tanh(b @ w)
        return a, b + jnp.sin(a @ w)

    def inverse(w, ys):
        a, b = ys
        b = b - jnp.sin(a @ w)
        return a - jnp.tanh(b @ w), b

    def loss(w, x, actions=SAVE):
        a, b = rr.stack(layer, w, (x, x), inverse=inverse, actions=actions)
        return (a * b).sum()

    with jax.enable_x64(True):
        weights, x = arguments()
        args = (weights["a"] / 4, x)
        inverted = lambda w, x: loss(w, x, INVERT(unroll=unroll))
        assert_equal(gradients(inverted, *args), gradients(loss, *args))


def over_time(reverse, w, xs):
    """A recurrence whose every step has an input and a result of its own."""

    def step(h, x):
        h = jnp.tanh(h @ w["a"] + x)
        return h @ w["b"], jnp.sin(h)

    h, ys = jax.lax.scan(
        step, jnp.zeros_like(xs[0] @ w["a"] @ w["b"]), xs, None, reverse
    )
    return (h**2).sum() + (ys * jnp.arange(ys.size).reshape(ys.shape)).sum()


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(
    "actions",
    [
        RECOMPUTE(unroll=4),
        (RECOMPUTE(unroll=4),) + (SAVE,) * 10,
        (SAVE,) * 2 + (RECOMPUTE(unroll=3),) * 8 + (RECOMPUTE(save=[]),),
        (RECOMPUTE(unroll=2),) * 4 + (SAVE(unroll=5),) * 7,
    ],
    ids=["all", "one alone", "in the middle", "two kinds"],
)
def test_what_each_layer_is_given_and_gives_lies_in_its_place(actions, reverse):
    with jax.enable_x64(True):
        random = np.random.default_rng(0)
        make = lambda *shape: jnp.asarray(random.normal(size=shape) / 2)
        args = {"a": make(4, 4), "b": make(4, 4)}, make(11, 3, 4)
        loss = partial(over_time, reverse)
        plan = rr.trace(loss, *args).plan({"scan_0": actions})
        assert_equal(gradients(rr.apply(loss, plan), *args), gradients(loss, *args))


def test_results_of_an_iteration_s_layers_are_written_at_once():
    w, xs = jnp.ones((8, 8)), jnp.ones((16, 2, 8))

    def loss(w, xs):
        step = lambda h, x: (jnp.tanh((h + x) @ w), jnp.sin(h + x))
        h, ys = jax.lax.scan(step, jnp.ones((2, 8)), xs)
        return (h**2).sum() + (ys**2).sum()

    def writes(actions):
        plan = rr.trace(loss, w, xs).plan({"scan_0": actions})
        gradient = jax.grad(rr.apply(loss, plan), argnums=(0, 1))
        return str(jax.make_jaxpr(gradient)(w, xs)).count("dynamic_update_slice")

    assert writes(RECOMPUTE) > 0
    assert writes(RECOMPUTE(unroll=4)) == 0


@pytest.mark.parametrize("action", [SAVE, RECOMPUTE, RECOMPUTE(save=["hidden"])])
def test_an_iteration_of_a_loop_runs_as_many_layers_as_is_said(action):
    def loops(unroll):
        plan = rr.trace(simple, *arguments()).plan({"scan_0": action(unroll=unroll)})
        text = str(jax.make_jaxpr(jax.grad(rr.apply(simple, plan)))(*arguments()))
        return {int(number) for number in re.findall(r"\bunroll=(\d+)", text)}

    assert loops(False) == {1}
    assert loops(5) == {5}
    assert loops(True) <= {LAYERS}


def test_they_are_no_turns_of_a_loop():
    found = segments((SAVE, SAVE(unroll=True)) * 2 + (RECOMPUTE(unroll=True),) * 4)
    assert [(s.start, s.num_layers, s.unroll) for s in found] == [
        (0, 1, False),
        (1, 1, True),
        (2, 1, False),
        (3, 1, True),
        (4, 4, True),
    ]

    def loops(action):
        plan = rr.trace(simple, *arguments()).plan({"scan_0": action})
        step = jax.jit(jax.grad(rr.apply(simple, plan)))
        return step.lower(*arguments()).as_text().count("stablehlo.while")

    assert loops(RECOMPUTE) == 2
    assert loops(RECOMPUTE(unroll=True)) == 0


@pytest.mark.slow
def test_gradients_of_weights_are_not_put_off():
    """Not to the end of the step, with all that they are made from."""
    batch, length, width, layers = 16, 512, 256, 4

    def layer(x, w):
        q, k, v = jnp.split(x @ w["qkv"], 3, -1)
        scores = (q @ k.transpose(0, 2, 1)).astype(jnp.float32)
        x = x + (jax.nn.softmax(scores, -1).astype(x.dtype) @ v) @ w["out"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

    def loss(w, x):
        return (jax.lax.scan(layer, x, w)[0].astype(jnp.float32) ** 2).sum()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    shapes = {"qkv": (1, 3), "out": (1, 1), "up": (1, 4), "down": (4, 1)}
    w = {n: array(layers, a * width, b * width) for n, (a, b) in shapes.items()}
    specs = (w, array(batch, length, width))
    graph = rr.trace(loss, *specs)

    def size(action):
        step = jax.grad(rr.apply(loss, graph.plan({"scan_0": action})))
        return rr.measure(step, *specs, target="h100:1").memory.total_bytes

    assert size(RECOMPUTE(unroll=True)) <= 1.1 * size(RECOMPUTE)


@pytest.mark.parametrize("told_by", ["a constraint", "types", "arguments"])
def test_devices_add_up_gradients_while_the_next_layer_is_differentiated(told_by):
    """Nothing of that may be waited for at once, nor be put off to the end."""
    target, layers, width, rows = rr.target("h100:8"), 6, 2048, 65_536
    mesh = target.mesh({"data": 8})
    cut = lambda *axes: NamedSharding(mesh, P(*axes))

    def layer(x, w):
        if told_by == "a constraint":
            x = jax.lax.with_sharding_constraint(x, cut("data"))
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    def scanned(w, x):
        return jax.lax.scan(layer, x, w)[0].astype(jnp.float32).sum()

    def plain(w, x):
        for t in range(layers):
            at = {name: each[t] for name, each in w.items()}
            x, _ = jax.checkpoint(layer)(x, at)
        return x.astype(jnp.float32).sum()

    array = lambda where, *shape: jax.ShapeDtypeStruct(
        shape, jnp.bfloat16, sharding=where
    )
    w = {
        "up": array(cut(None, "data"), layers, width, 4 * width),
        "down": array(cut(None, None, "data"), layers, 4 * width, width),
    }
    x = array(cut("data"), rows, width)
    cuts = specs = (w, x)
    if told_by != "arguments":
        specs = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), cuts)
    with jax.set_mesh(mesh) if told_by == "types" else contextlib.nullcontext():
        graph = rr.trace(scanned, *specs)
        assert graph.num_devices == 8
        plan = graph.plan({"scan_0": RECOMPUTE(unroll=True)})
        off = dataclasses.replace(plan, puts_gradients_off=True)
        ours, put_off, theirs = (
            rr.measure(jax.grad(loss), *cuts, target=target)
            for loss in (rr.apply(scanned, plan), rr.apply(scanned, off), plain)
        )
    assert ours.time.exposed_collective_us <= theirs.time.exposed_collective_us
    assert ours.memory.total_bytes <= 0.8 * theirs.memory.total_bytes
    assert put_off.time.step_us <= 1.01 * theirs.time.step_us
    assert put_off.memory.total_bytes <= theirs.memory.total_bytes
    assert put_off.memory.total_bytes > 1.1 * ours.memory.total_bytes


def test_what_is_kept_takes_no_more_than_in_a_loop():
    def layer(x, w):
        return x + jnp.tanh(x @ w["up"]) @ w["down"], None

    def loss(w, x):
        return (jax.lax.scan(layer, x, w)[0].astype(jnp.float32) ** 2).sum()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    w = {"up": array(6, 1024, 4096), "down": array(6, 4096, 1024)}
    specs = (w, array(16_384, 1024))
    graph = rr.trace(loss, *specs)

    def size(action):
        step = jax.grad(rr.apply(loss, graph.plan({"scan_0": action})))
        return rr.measure(step, *specs, target="h100:1").memory.total_bytes

    assert size(SAVE(unroll=True)) <= 1.02 * size(SAVE)


@pytest.mark.every_commit("False")
@pytest.mark.parametrize("unrolled", [True, False])
def test_what_is_drawn_at_random_is_drawn_again(unrolled):
    """Or else the compiler finds that it was, by the same key, and keeps it."""
    rows, width = 16_384, 512
    split = lambda: jax.random.split(jax.random.key(3), 4)

    def layer(x, w_and_key):
        w, key = w_and_key
        kept = jax.random.bernoulli(key, 0.9, x.shape)
        return x + jnp.where(kept, jnp.tanh(x @ w), 0), None

    def scanned(w, x):
        return (jax.lax.scan(layer, x, (w, split()))[0] ** 2).sum()

    def repeated(w, x):
        for one in zip(w, split(), strict=True):
            x, _ = layer(x, one)
        return (x**2).sum()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    specs = (array(4, width, width), array(rows, width))
    loss = repeated if unrolled else scanned
    graph = rr.trace(loss, *specs)
    (unit,) = graph.units
    how = RECOMPUTE if unrolled else RECOMPUTE(unroll=True)
    step = jax.grad(rr.apply(loss, graph.plan({unit.name: how})))
    found = rr.measure(step, *specs, target="h100:1").memory.where(dtype="bool*")
    assert found.bytes <= 2 * rows * width


def test_a_plan_with_them_is_read_back(tmp_path):
    plan = rr.trace(simple, *arguments()).plan({"scan_0": ACTIONS["two kinds"]})
    plan.save(tmp_path / "plan.json")
    again = rr.Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert "6 x RECOMPUTE(unroll=True), 5 x SAVE(unroll=True)" in str(again)


def test_what_is_no_loop_cannot_be_unrolled():
    graph = rr.trace(unrolled, *arguments())
    (unit,) = graph.units
    assert unit.num_layers == LAYERS
    with pytest.raises(UserError, match="is no loop"):
        graph.plan({unit.name: RECOMPUTE(unroll=True)})
