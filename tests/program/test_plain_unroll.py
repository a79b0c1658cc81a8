"""Loops unrolled with nothing around them: what plain JAX makes of `unroll=True`."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import OFFLOAD, RECOMPUTE, SAVE
from revremat.program.ir._late_moves import late_moves
from revremat.program.ir._ops import flatten
from tests.program.test_segments_of_layers import assert_equal, gradients

LAYERS, ROWS, WIDTH = 5, 32, 16


def forwards(w, x, unroll=1):
    layer = lambda x, w: (x + jnp.tanh(x @ w), None)
    return (jax.lax.scan(layer, x, w, unroll=unroll)[0] ** 2).sum()


def backwards(w, x, unroll=1):
    layer = lambda x, w: (x + jnp.sin(x @ w), None)
    return (jax.lax.scan(layer, x, w, reverse=True, unroll=unroll)[0] ** 2).sum()


def with_results_of_each(w, x, unroll=1):
    layer = lambda x, w: (jnp.tanh(x @ w), x.sum())
    out, sums = jax.lax.scan(layer, x, w, unroll=unroll)
    return (out**2).sum() + (sums**2).sum()


def closing_over(w, x, unroll=1):
    scale = w.sum(0)
    layer = lambda x, w: (jnp.tanh(x @ (w * scale)), None)
    return (jax.lax.scan(layer, x, w, unroll=unroll)[0] ** 2).sum()


def with_keys(w, x, unroll=1):
    keys = jax.random.split(jax.random.key(0), LAYERS)

    def layer(x, w_and_key):
        w, key = w_and_key
        return x + jnp.where(jax.random.bernoulli(key, 0.9, x.shape), x @ w, 0), None

    return (jax.lax.scan(layer, x, (w, keys), unroll=unroll)[0] ** 2).sum()


PROGRAMS = [forwards, backwards, with_results_of_each, closing_over, with_keys]


def arguments(dtype=jnp.float32):
    w = 0.1 * jax.random.normal(jax.random.key(1), (LAYERS, WIDTH, WIDTH), dtype)
    return w, jax.random.normal(jax.random.key(2), (ROWS, WIDTH), dtype)


def planned(loss, action, *args):
    graph = rr.trace(loss, *args)
    return rr.apply(loss, graph.plan({graph.units[0].name: action}))


@pytest.mark.every_commit("forwards-True", "with_results_of_each-True", "forwards-2")
@pytest.mark.parametrize(
    ("loss", "unroll"), [*((loss, True) for loss in PROGRAMS), (forwards, 2)]
)
def test_saved_and_unrolled_layers_take_what_plain_jax_takes(loss, unroll):
    args = arguments()
    plain = lambda w, x: loss(w, x, unroll)
    target = "h100:1"
    ours, theirs = (
        rr.measure(jax.value_and_grad(one), *args, target=target)
        for one in (planned(loss, SAVE(unroll=unroll), *args), plain)
    )
    assert ours.memory.total_bytes == theirs.memory.total_bytes
    assert ours.time.step_us == pytest.approx(theirs.time.step_us, rel=1e-3)


@pytest.mark.every_commit("backwards", "closing_over", "with_keys")
@pytest.mark.parametrize("loss", PROGRAMS)
def test_gradients_are_those_of_plain_autodiff(loss):
    with jax.enable_x64(True):
        args = arguments(jnp.float64)
        for action in (SAVE(unroll=True), RECOMPUTE(unroll=True)):
            found = gradients(planned(loss, action, *args), *args)
            assert_equal(found, gradients(loss, *args))


def test_no_function_with_a_derivative_of_its_own_is_around_them():
    args = arguments()

    def text(action):
        return str(jax.make_jaxpr(planned(forwards, action, *args))(*args))

    assert "custom_vjp" not in text(SAVE(unroll=True))
    assert f"unroll={LAYERS}" in text(SAVE(unroll=True))
    assert "custom_vjp" not in text(SAVE(unroll=3))
    assert "unroll=3" in text(SAVE(unroll=3))
    for other in (SAVE, RECOMPUTE(unroll=True), [SAVE(unroll=True)] * 4 + [SAVE]):
        assert "custom_vjp" in text(other)


def test_derivatives_in_forward_mode_are_left():
    args = arguments()
    loss = planned(forwards, SAVE(unroll=True), *args)
    found, expected = (jax.jvp(f, args, args)[1] for f in (loss, forwards))
    assert jnp.allclose(found, expected, rtol=1e-5)


def test_actions_that_a_user_wrote_are_found_again():
    layer = lambda w, x: jnp.tanh(x @ w)
    loss = lambda w, x: rr.stack(layer, w, x, actions=SAVE(unroll=True)).sum()
    (found,) = rr.trace(loss, *arguments()).fixed_units
    assert found.actions == (SAVE(unroll=True),) * LAYERS


@pytest.mark.parametrize(
    "action",
    [
        RECOMPUTE(unroll=True),
        OFFLOAD(unroll=True),
        [RECOMPUTE(unroll=True)] * 2 + [SAVE(unroll=True)] * 3,
    ],
)
def test_gradients_of_unrolled_layers_are_not_written_into_stacks(action):
    args = arguments()
    step = jax.jit(jax.grad(planned(forwards, action, *args)))
    assert "dynamic_update_slice" not in step.lower(*args).as_text()


@pytest.mark.parametrize(
    ("loss", "early", "moves"),
    [
        (lambda x: (x * 2).astype(jnp.float32), ["mul"], ["convert_element_type"]),
        (lambda x: (x * 2).T.reshape(-1), ["mul"], ["transpose", "reshape"]),
        (lambda x: x * 2, ["mul"], []),
        # What is narrower afterwards is held so.
        (lambda x: jnp.sin(x).astype(jnp.int8), ["sin", "convert_element_type"], []),
    ],
)
def test_results_get_their_form_late_unless_they_shrink(loss, early, moves):
    x = jax.ShapeDtypeStruct((2, 3), jnp.bfloat16)
    program = flatten(jax.make_jaxpr(loss)(x))
    found = late_moves(program, 1)
    assert [op.kind for op in found.early.ops] == early
    assert [op.kind for op in found.moves] == moves
    ones = jnp.ones((2, 3), jnp.bfloat16)
    (now,) = found.finish(found.early(ones))
    assert (now == program(ones)[0]).all()
