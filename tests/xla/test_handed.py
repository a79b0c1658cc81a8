"""What may be handed over as a step: functions, and what `jit`s make of them."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import revremat as rr
from tests.xla.programs import spec

W, X = spec(64, 64), spec(16, 64)


def update(w, x):
    return w - 0.1 * jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).sum())(w)


def scaled(w, x, times):
    return update(w, x) * times if times > 2 else w


def chosen(w, x, *, kind):
    return update(w, x) if kind == "all" else w


JITTED = jax.jit(update, donate_argnums=0)
ONES = jnp.ones(W.shape)
SAME = {
    "partial": (functools.partial(JITTED, ONES), (X,)),
    "partial by name": (functools.partial(JITTED, x=jnp.ones(X.shape)), (W,)),
    "partial of a partial": (functools.partial(functools.partial(JITTED), ONES), (X,)),
    "Partial": (jax.tree_util.Partial(JITTED, ONES), (X,)),
    "traced": (JITTED.trace(W, X), ()),
    "problem": (rr.Problem(update, (W, X), step=lambda f: (JITTED, (W, X))), ()),
}


@pytest.mark.parametrize("how", SAME)
@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
def test_a_jitted_step_is_the_same_however_it_is_handed_over(how, target):
    step, specs = SAME[how]
    found = rr.measure(step, *specs, target=target)
    own = rr.measure(update, W, X, target=target, donate=(0,))
    assert found.memory.total_bytes == own.memory.total_bytes
    assert found.memory.alias_bytes == 4 * W.size
    assert found.program == "update"


STATIC = {
    "position": (jax.jit(scaled, static_argnums=2), (W, X, 3)),
    "name": (jax.jit(scaled, static_argnames="times"), (W, X, 3)),
    "bound": (functools.partial(jax.jit(chosen, static_argnames="kind"), kind="all"),),
    "eqx.filter_jit": (eqx.filter_jit(update),),
}


@pytest.mark.parametrize("how", STATIC)
def test_static_arguments_stay_what_they_are(how):
    step, *specs = STATIC[how]
    found = rr.measure(step, *(specs[0] if specs else (W, X)), target="h100:1")
    assert found.memory.argument_bytes == 4 * (W.size + X.size)
    assert found.memory.temp_bytes > 0


@pytest.mark.parametrize("stage", ["lowered", "compiled"])
def test_a_step_lowered_for_another_machine_is_refused(stage):
    step = JITTED.lower(W, X)
    step = step.compile() if stage == "compiled" else step
    assert rr.measure(step, target="cpu:1").memory.alias_bytes == 4 * W.size
    for target in ("h100:1", "cpu:8"):
        with pytest.raises(rr.UserError, match=f"was {stage} for 1 device of .*itself"):
            rr.measure(step, target=target)


def test_nor_is_one_for_another_card():
    sharding = jax.sharding.SingleDeviceSharding(rr.target("h100:1").devices[0])
    lowered = jax.jit(jnp.tanh).lower(spec(8, sharding=sharding))
    assert rr.measure(lowered, target="h100:1").memory.argument_bytes == 32
    with pytest.raises(rr.UserError, match=r"H100.*a100:1 has 1 of kind 'NVIDIA A100"):
        rr.measure(lowered, target="a100:1")


def test_donation_that_cannot_be_seen_is_refused():
    step = eqx.filter_jit(update, donate="all")
    with pytest.raises(rr.UserError, match=r"hand over the function itself"):
        rr.measure(step, W, X, target="cpu:1")


@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
def test_a_step_without_arguments_is_the_targets(target):
    step = lambda: jnp.ones((256, 256)) @ jnp.ones((256, 256))
    m = rr.measure(step, target=target)
    assert m.memory.output_bytes == 4 * 256 * 256
    assert rr.measure(jax.jit(step), target=target).memory == m.memory


@pytest.mark.parametrize("target", ["cpu:8", "h100:8", "h100:1"])
def test_pmap_is_refused_for_it_splits_arguments_when_it_is_called(target):
    step = jax.pmap(lambda x: x * 2)
    with pytest.raises(rr.UserError, match=r"jax\.pmap.*function itself.*target\.mesh"):
        rr.measure(step, spec(8, 16), target=target)


@pytest.fixture(scope="module")
def trained():
    model = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
    return model, optimizer, jnp.ones((16, 64))


def train(model, optimizer, x):
    value, gradients = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
    optimizer.update(model, gradients)
    return value


NNX = {
    "jit": lambda m, o, x: (nnx.jit(train), m, o, x),
    "jit, as a tree": lambda m, o, x: (nnx.jit(train, graph=False), m, o, x),
    "partial": lambda m, o, x: (functools.partial(nnx.jit(train), m, o), x),
    "traced": lambda m, o, x: (nnx.jit(train).trace(m, o, x),),
}


@pytest.mark.parametrize("how", NNX)
@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
def test_steps_of_flax_are_measured(how, target, trained):
    """Weights and moments come in and go out: what `nnx.jit` makes of it."""
    m = rr.measure(*NNX[how](*trained), target=target)
    state = 4 * 3 * (64 * 64 + 64)
    assert state <= m.memory.argument_bytes - 4 * 16 * 64 < state + 64
    assert m.memory.output_bytes >= state
    assert m.memory.alias_bytes == 0


@pytest.mark.parametrize("stage", ["lowered", "compiled"])
def test_so_are_stages_of_flax(stage, trained):
    step = nnx.jit(train).lower(*trained)
    step = step.compile() if stage == "compiled" else step
    own = rr.measure(nnx.jit(train), *trained, target="cpu:1").memory.total_bytes
    assert rr.measure(step, target="cpu:1").memory.total_bytes == own
    with pytest.raises(rr.UserError, match="hand over the function itself"):
        rr.measure(step, target="h100:1")


def test_donation_of_flax_is_seen(trained):
    step = nnx.jit(train, donate_argnums=(0, 1))
    m = rr.measure(step, *trained, target="h100:1")
    assert m.memory.alias_bytes >= 4 * 3 * (64 * 64 + 64)
    times = nnx.jit(lambda model, x, n: model(x) * n, static_argnums=2)
    assert rr.measure(times, trained[0], trained[2], 3, target="cpu:1").fits
