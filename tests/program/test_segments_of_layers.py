"""Segments of layers: only their inputs are kept, and gradients stay the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE, UserError
from revremat.program.engine._segments import segments
from tests.program_kinds import normal

LAYERS, WIDTH, ROWS = 11, 8, 4

ACTIONS = {
    "save": SAVE(segment_length=4),
    "recompute": RECOMPUTE(segment_length=4),
    "one name": RECOMPUTE(save=["hidden"], segment_length=3),
    "longer than the stack": RECOMPUTE(segment_length=64),
    "as long as the stack": SAVE(segment_length=LAYERS),
    "an assignment of several": (RECOMPUTE(segment_length=2),) * 5
    + (SAVE,) * 2
    + (SAVE(segment_length=3),) * 4,
    "one layer each": (SAVE(segment_length=2), RECOMPUTE(segment_length=2)) * 5
    + (RECOMPUTE,),
    "beside offloading": (OFFLOAD,) * 3 + (RECOMPUTE(segment_length=4),) * 8,
}


def layer(w, x):
    return x + rr.name(jnp.tanh(x @ w["a"]), "hidden") @ w["b"]


def arguments(seed=0):
    w = {"a": normal(seed, LAYERS, WIDTH, WIDTH), "b": normal(1, LAYERS, WIDTH, WIDTH)}
    return w, normal(2, ROWS, WIDTH)


def simple(w, x):
    return (jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)[0] ** 2).sum()


def backwards(w, x):
    step = lambda x, w: (layer(w, x), x.sum())
    x, ys = jax.lax.scan(step, x, w, reverse=True)
    return (x**2).sum() + (ys**3).sum()


def with_dropout(w, x):
    def step(x, wk):
        w, key = wk
        kept = jax.random.bernoulli(key, 0.7, x.shape)
        return layer(w, jnp.where(kept, x, 0)), None

    keys = jax.random.split(jax.random.key(3), LAYERS)
    return (jax.lax.scan(step, x, (w, keys))[0] ** 2).sum()


def with_a_key_carried(w, x):
    def step(state, w):
        x, key, iteration = state
        key, own = jax.random.split(key)
        x = layer(
            w, jnp.where(jax.random.bernoulli(own, 0.7, x.shape), x, x / iteration)
        )
        return (x, key, iteration + 1), (iteration, x[0])

    init = (x, jax.random.key(3), jnp.asarray(1))
    (x, _, iteration), (iterations, ys) = jax.lax.scan(step, init, w)
    return (x**2).sum() * iteration + (iterations[:, None] * ys**2).sum()


def closing_over(w, x):
    shared = jnp.sin(w["a"][0])
    step = lambda h, w: (layer(w, h @ shared + x), None)
    return (jax.lax.scan(step, x, w)[0] ** 2).sum()


def unrolled(w, x):
    for k in range(w["a"].shape[0]):
        x = layer(jax.tree.map(lambda a, k=k: a[k], w), x)
    return (x**2).sum()


FORMS = [unrolled, simple, backwards, with_dropout, with_a_key_carried, closing_over]


def gradients(loss, *args):
    return jax.tree.leaves(jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(*args))


def assert_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12 * np.abs(b).max())


@pytest.mark.slow
@pytest.mark.parametrize("loss", FORMS)
def test_gradients_are_those_of_plain_autodiff_under_all_actions(loss):
    assert_same_gradients(loss, ACTIONS.values())


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (backwards, ["an assignment of several", "recompute"]),
        (with_a_key_carried, ["one name"]),
        (closing_over, ["save"]),
        (unrolled, ["an assignment of several", "one name"]),
    ],
)
def test_gradients_are_those_of_plain_autodiff(loss, names):
    assert_same_gradients(loss, map(ACTIONS.get, names))


def assert_same_gradients(loss, actions, **about):
    """Of plain autodiff and under actions of its one unit, in plans that say more."""
    with jax.enable_x64(True):
        args = arguments()
        graph = rr.trace(lambda args: loss(*args), args)
        (unit,) = graph.units
        expected = gradients(loss, *args)
        for action in actions:
            plan = graph.plan({unit.name: action}, **about)
            planned = rr.apply(lambda args: loss(*args), plan)
            assert_equal(gradients(lambda *a, p=planned: p(a), *args), expected)


@pytest.mark.parametrize(
    "action",
    ["recompute", pytest.param("an assignment of several", marks=pytest.mark.slow)],
)
def test_gradients_agree_over_eight_devices(action):
    with jax.enable_x64(True):
        w, x = arguments()
        mesh = rr.target("cpu:8").mesh({"data": 4, "model": 2})
        put = lambda a, *spec: jax.device_put(a, NamedSharding(mesh, P(*spec)))
        w = {"a": put(w["a"], None, None, "model"), "b": put(w["b"], None, "model")}
        args = (w, put(x, "data"))
        plan = rr.trace(simple, *args).plan({"scan_0": ACTIONS[action]})
        expected = gradients(simple, *arguments())
        assert_equal(gradients(rr.apply(simple, plan), *args), expected)


def test_by_hand_as_by_plan():
    with jax.enable_x64(True):
        w, x = arguments()
        by_hand = lambda w, x: (
            rr.stack(layer, w, x, actions=RECOMPUTE(segment_length=4)) ** 2
        ).sum()
        assert_equal(gradients(by_hand, w, x), gradients(simple, w, x))


def kept_shapes(loss, *args):
    pullback = jax.eval_shape(
        lambda *a: jax.vjp(lambda w: loss(w, *a[1:]), a[0])[1], *args
    )
    return [leaf.shape for leaf in jax.tree.leaves(pullback)]


@pytest.mark.parametrize(("every", "iterations"), [(2, 5), (4, 2), (5, 2)])
def test_only_the_inputs_of_segments_are_kept(every, iterations):
    """By JAX's own account: the leaves of its pullback."""
    args = arguments()
    plan = rr.trace(simple, *args).plan({"scan_0": SAVE(segment_length=every)})
    shapes = kept_shapes(rr.apply(simple, plan), *args)
    kept = [shape for shape in shapes if shape[-2:] == (ROWS, WIDTH)]
    # All iterations but the last, which is shorter; and the stack's output, for the
    # loss.
    assert sorted(kept) == sorted(
        [(iterations, ROWS, WIDTH), (ROWS, WIDTH), (ROWS, WIDTH)]
    )


@pytest.mark.parametrize(
    "loss", [simple, pytest.param(unrolled, marks=pytest.mark.slow)]
)
def test_segments_save_memory_on_the_target(loss):
    w = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct((64, *a.shape[1:]), jnp.float32), arguments()[0]
    )
    specs = (w, jax.ShapeDtypeStruct((65536, WIDTH), jnp.float32))
    graph = rr.trace(loss, *specs)
    (unit,) = graph.units

    def size(action):
        planned = rr.apply(loss, graph.plan({unit.name: action}))
        step = jax.value_and_grad(planned)
        return rr.measure(step, *specs, target="h100:1").memory.total_bytes

    one = 65536 * WIDTH * 4
    full, segmented = size(RECOMPUTE), size(RECOMPUTE(segment_length=8))
    assert full > 64 * one
    assert segmented < (64 / 8 + 8 + 6) * one


def test_a_unit_knows_what_segments_keep():
    (unit,) = rr.trace(simple, *arguments()).units
    whole = unit.kept(RECOMPUTE)
    kept = unit.kept(RECOMPUTE(segment_length=4))
    assert kept.device_bytes == whole.device_bytes // 4
    assert kept.recompute_flops == whole.recompute_flops + unit.forward_flops


def test_a_plan_with_segments_is_read_back(tmp_path):
    args = arguments()
    plan = rr.trace(simple, *args).plan({"scan_0": ACTIONS["an assignment of several"]})
    plan.save(tmp_path / "plan.json")
    again = rr.Plan.load(tmp_path / "plan.json")
    assert again == plan
    assert (
        "5 x RECOMPUTE(segment_length=2), 2 x SAVE, 4 x SAVE(segment_length=3)"
        in str(again)
    )


def test_runs_are_cut_into_groups():
    found = segments((RECOMPUTE(segment_length=4),) * 10 + (SAVE,) * 3)
    assert [(s.start, s.repeats, s.group, s.num_layers) for s in found] == [
        (0, 2, 4, 8),
        (8, 1, 2, 2),
        (10, 3, 0, 3),
    ]


def without_layers(w, x):
    return (jnp.tanh(x @ w["a"][0]) ** 2).sum()


@pytest.mark.parametrize(
    ("loss", "action", "sentence"),
    [
        (without_layers, RECOMPUTE(segment_length=4), "is no stack"),
        (
            simple,
            OFFLOAD(segment_length=4),
            "`segment_length` goes with SAVE and RECOMPUTE",
        ),
        (
            simple,
            RECOMPUTE(ahead=["hidden"], segment_length=4),
            "`segment_length` goes with SAVE",
        ),
        (simple, INVERT(segment_length=4), "INVERT"),
    ],
)
def test_what_cannot_form_segments_is_refused(loss, action, sentence):
    graph = rr.trace(loss, *arguments())
    with pytest.raises(UserError, match=sentence):
        graph.plan({graph.units[0].name: action})
