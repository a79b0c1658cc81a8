"""Loops whose inputs are kept in few slots: gradients, memory, what runs again."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import RECOMPUTE, SAVE, UserError
from revremat._resolve import least_again
from revremat.program.engine._segments import segments
from tests.program.test_segments_of_layers import (
    LAYERS,
    arguments,
    assert_equal,
    assert_same_gradients,
    backwards,
    closing_over,
    gradients,
    kept_shapes,
    layer,
    simple,
    unrolled,
    with_a_key_carried,
    with_dropout,
)

ACTIONS = {
    "one": RECOMPUTE(slots=1),
    "two": RECOMPUTE(slots=2),
    "three": RECOMPUTE(slots=3),
    "as many as layers": RECOMPUTE(slots=LAYERS),
    "more than layers": RECOMPUTE(slots=100),
    "beside others": (SAVE,) * 2 + (RECOMPUTE(slots=2),) * 5 + (RECOMPUTE,) * 4,
    "of one layer": (RECOMPUTE(slots=2),) + (SAVE,) * 9 + (RECOMPUTE(slots=1),),
    "two runs": (RECOMPUTE(slots=2),) * 6 + (RECOMPUTE(slots=3),) * 5,
}


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        (backwards, ["two", "beside others"]),
        (with_a_key_carried, ["three"]),
    ],
)
def test_gradients_are_those_of_plain_autodiff(loss, names):
    assert_same_gradients(loss, map(ACTIONS.get, names))


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss", [simple, backwards, with_dropout, with_a_key_carried, closing_over]
)
def test_gradients_are_those_of_plain_autodiff_under_all_actions(loss):
    assert_same_gradients(loss, ACTIONS.values())


def rollout(number, count=None):
    """So many equal steps of one state; each calls `count`, if there is one.

    Ten units of time in all: a rounding error grows with those.
    """
    size = 10 / number

    def loss(w, x):
        def step(x, _):
            if count is not None:
                shape = jax.ShapeDtypeStruct((), x.dtype)
                zero = jax.pure_callback(count, shape, jax.lax.stop_gradient(x[0, 0]))
                x = x + jnp.sin(zero) * x
            return x + size * jnp.tanh(jnp.sin(x @ w)), None

        return (jax.lax.scan(step, x, None, length=number)[0] ** 2).mean()

    return loss


def normal(*shape):
    return jnp.asarray(np.random.default_rng(0).normal(size=shape) / 3)


@pytest.mark.parametrize(("number", "slots"), [(20, 1), (60, 4), (100, 12), (30, 30)])
def test_as_many_steps_run_again_as_the_closed_form_says(number, slots):
    ran = []

    def count(x):
        ran.append(1)
        return np.zeros((), x.dtype)

    with jax.enable_x64(True):
        args = normal(4, 4), normal(2, 4)
        loss = rollout(number, count)
        plan = rr.trace(loss, *args).plan({"scan_0": RECOMPUTE(slots=slots)})
        jax.block_until_ready(jax.jit(jax.grad(rr.apply(loss, plan)))(*args))
    # Every step runs forward, and once more where it is differentiated.
    assert len(ran) == 2 * number + least_again(number, slots)


@pytest.mark.parametrize(
    ("number", "slots"),
    [(1000, 17), pytest.param(10_000, 60, marks=pytest.mark.slow)],
)
def test_gradients_of_a_rollout_are_exact(number, slots):
    with jax.enable_x64(True):
        args = normal(4, 4), normal(2, 4)
        loss = rollout(number)
        plan = rr.trace(loss, *args).plan({"scan_0": RECOMPUTE(slots=slots)})
        assert_equal(gradients(rr.apply(loss, plan), *args), gradients(loss, *args))


def test_by_hand_as_by_plan():
    with jax.enable_x64(True):
        w, x = arguments()
        by_hand = lambda w, x: (
            rr.stack(layer, w, x, actions=RECOMPUTE(slots=3)) ** 2
        ).sum()
        assert_equal(gradients(by_hand, w, x), gradients(simple, w, x))


@pytest.mark.parametrize("slots", [1, 3, 7])
def test_only_the_slots_are_kept(slots):
    """By JAX's own account: the leaves of its pullback."""
    args = arguments()
    plan = rr.trace(simple, *args).plan({"scan_0": RECOMPUTE(slots=slots)})
    rows = args[1].shape
    kept = [s for s in kept_shapes(rr.apply(simple, plan), *args) if s[-2:] == rows]
    assert sorted(kept) == sorted([(slots + 1, *rows), rows])


@pytest.mark.parametrize("slots", [5, 17, 44])
def test_a_rollout_takes_its_slots_and_next_to_nothing_else(slots):
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((32, 32), (4096, 32))]
    loss, one = rollout(1000), 4 * 4096 * 32
    plan = rr.trace(loss, *args).plan({"scan_0": RECOMPUTE(slots=slots)})
    step = jax.grad(rr.apply(loss, plan))
    memory = rr.measure(step, *args, target="h100:1").memory
    # The input, the state's gradient, and what one step is differentiated with.
    assert memory.total_bytes <= (slots + 1 + 6) * one


def test_a_unit_knows_what_slots_keep():
    (unit,) = rr.trace(simple, *arguments()).units
    whole, kept = unit.kept(RECOMPUTE), unit.kept(RECOMPUTE(slots=3))
    assert kept.device_bytes == -(-4 * whole.device_bytes // LAYERS)
    again = round(least_again(LAYERS, 3) * unit.forward_flops / LAYERS)
    assert kept.recompute_flops == whole.recompute_flops + again


def test_a_plan_with_slots_is_read_back(tmp_path):
    plan = rr.trace(simple, *arguments()).plan({"scan_0": ACTIONS["beside others"]})
    plan.save(tmp_path / "plan.json")
    assert rr.Plan.load(tmp_path / "plan.json") == plan
    assert "5 x RECOMPUTE(slots=2)" in str(plan)


def test_neighbours_are_one_run():
    found = segments((RECOMPUTE(slots=4),) * 10 + (SAVE,) * 3)
    about = [(s.start, s.repeats, s.group, s.slots, s.num_layers) for s in found]
    assert about == [(0, 1, 10, 4, 10), (10, 3, 0, 0, 3)]


@pytest.mark.parametrize(
    ("loss", "action", "sentence"),
    [
        (unrolled, lambda: RECOMPUTE(slots=4), "it is no loop"),
        (simple, lambda: SAVE(slots=4), "`slots` goes with RECOMPUTE alone"),
        (simple, lambda: RECOMPUTE(save=["hidden"], slots=4), "with RECOMPUTE alone"),
        (simple, lambda: RECOMPUTE(segment_length=2, slots=4), "with RECOMPUTE alone"),
        (simple, lambda: RECOMPUTE(unroll=True, slots=4), "with RECOMPUTE alone"),
        (simple, lambda: RECOMPUTE(slots=-1), "is no number of inputs"),
        (simple, lambda: RECOMPUTE(slots=True), "is no number of inputs"),
    ],
)
def test_what_cannot_have_slots_is_refused(loss, action, sentence):
    graph = rr.trace(loss, *arguments())
    with pytest.raises(UserError, match=sentence):
        graph.plan({graph.units[0].name: action()})
