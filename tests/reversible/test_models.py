"""The models that ship: each computes what its plain counterpart does, and says so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import revremat as rr
from revremat.reversible import (
    RevGPT,
    RevGPTConfig,
    RevNet,
    RevNetConfig,
    RevViT,
    RevViTConfig,
)
from tests.reversible.examples import assert_close, quick_jit

TRANSFORMER = {"width": 8, "num_layers": 3, "num_heads": 2, "mlp_width": 12}
NET = RevNetConfig(num_classes=3, channels=(4, 6), blocks=(2, 1))
VIT = RevViTConfig(**TRANSFORMER, image_size=8, num_classes=3, dropout=0.3)
GPT = RevGPTConfig(**TRANSFORMER, vocab_size=11, seq_len=6, dropout=0.3)


def images():
    return jax.random.normal(jax.random.key(1), (4, 8, 8, 3))


def tokens():
    return jax.random.randint(jax.random.key(2), (2, 6), 0, 11)


MODELS = {
    "RevNet": (RevNet, NET, images),
    "RevViT": (RevViT, VIT, images),
    "RevGPT": (RevGPT, GPT, tokens),
}


def parts(make, config, *, reversible):
    """Graph, parameters and the rest: random numbers in float64."""
    model = nnx.eval_shape(
        lambda: make(config, rngs=nnx.Rngs(0), reversible=reversible)
    )
    graph, params, state = nnx.split(model, nnx.Param, ...)
    rng = np.random.default_rng(0)

    def fill(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(3), leaf.shape)
        if jnp.issubdtype(leaf.dtype, jnp.integer):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return jnp.asarray(0.5 + 0.3 * rng.normal(size=leaf.shape))

    shrink = lambda leaf: fill(leaf) - 0.5  # statistics are positive, weights are not
    return graph, jax.tree.map(shrink, params), jax.tree.map(fill, state)


def loss_of(graph):
    def loss(params, state, x):
        model = nnx.merge(graph, params, state, copy=True)
        y = model(x)
        return (y * jnp.cos(y)).sum(), nnx.split(model, nnx.Param, ...)[2]

    return loss


@pytest.mark.every_commit("RevGPT")
@pytest.mark.parametrize("name", ["RevNet", "RevGPT", "RevViT"])
def test_gradients_and_state_are_those_of_the_plain_counterpart(name, float64):
    make, config, inputs = MODELS[name]

    def gradient(reversible):
        graph, params, state = parts(make, config, reversible=reversible)
        step = quick_jit(jax.value_and_grad(loss_of(graph), has_aux=True))
        (value, state), grads = step(params, state, inputs())
        moved = nnx.filter_state(state, nnx.Any(nnx.BatchStat, nnx.RngCount))
        return value, grads, nnx.to_pure_dict(moved)

    assert_close(gradient(True), gradient(False), 1e-9)


@pytest.mark.every_commit("RevViT", "RevGPT")
@pytest.mark.parametrize("name", MODELS)
def test_the_reversible_one_keeps_no_activation_of_its_layers(name):
    make, config, inputs = MODELS[name]

    def choices(reversible):
        model = nnx.eval_shape(
            lambda: make(config, rngs=nnx.Rngs(0), reversible=reversible)
        )
        graph, params, state = nnx.split(model, nnx.Param, ...)
        loss = loss_of(graph)
        return rr.trace(loss, params, state, jax.eval_shape(inputs)).fixed_units

    assert choices(False) == ()
    found = choices(True)
    assert sum(c.kept_bytes for c in found) == 0
    assert all(c.plain_bytes > 0 for c in found)


@pytest.mark.slow
def test_a_gpt_whose_layers_are_stored_and_inverted_in_turn(float64):
    graph, params, state = parts(RevGPT, GPT, reversible=False)
    loss = lambda *args: loss_of(graph)(*args)[0]
    specs = (params, state, tokens())
    plan = rr.trace(loss, *specs).plan({"layers": (rr.SAVE, rr.INVERT, rr.SAVE)})
    found, expected = (
        quick_jit(jax.grad(f))(*specs) for f in (rr.apply(loss, plan), loss)
    )
    assert_close(found, expected, 1e-9)


@pytest.mark.slow
def test_a_search_inverts_layers_of_a_gpt_where_nothing_else_fits():
    config = RevGPTConfig(
        width=2048, num_layers=8, num_heads=16, mlp_width=8192, vocab_size=256
    )
    model = nnx.eval_shape(lambda: RevGPT(config, rngs=nnx.Rngs(0), reversible=False))
    graph, params, state = nnx.split(model, nnx.Param, ...)
    loss = lambda *args: loss_of(graph)(*args)[0]
    specs = (params, state, jax.ShapeDtypeStruct((16, 128), jnp.int32))
    traced = rr.trace(loss, *specs)
    inverted, recomputed = (
        rr.measure(
            jax.grad(rr.apply(loss, traced.plan({"layers": action}))),
            *specs,
            target="h100:1",
        ).memory.total_bytes
        for action in (rr.INVERT, rr.RECOMPUTE)
    )
    budget = (inverted + recomputed) // 2
    plan = rr.search(loss, *specs, budget=budget, target="h100:1")
    kinds = {action.kind for action in plan.actions["layers"]}
    assert plan.fits
    assert "invert" in kinds


MISTAKES = {
    "odd channels": (lambda r: RevNetConfig(channels=(5,), blocks=(1,)), "such as 6"),
    "stages": (lambda r: RevNetConfig(channels=(4,)), "one of each for every stage"),
    "heads": (lambda r: RevGPTConfig(width=10), "cannot be cut in 4 heads"),
    "patches": (lambda r: RevViTConfig(image_size=30), "not a multiple of patch_size"),
    "tokens": (
        lambda r: nnx.eval_shape(
            lambda: RevGPT(GPT, rngs=nnx.Rngs(0))(jnp.ones((1, 7), int))
        ),
        "7 tokens is longer than the 6",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name):
    make, message = MISTAKES[name]
    with pytest.raises(rr.UserError, match=message) as caught:
        make(nnx.Rngs(0))
    assert "\n" not in str(caught.value)


def test_the_default_network_has_three_stages_of_three_blocks():
    model = nnx.eval_shape(lambda: RevNet(RevNetConfig(), rngs=nnx.Rngs(0)))
    sizes = [leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))]
    assert sum(sizes) == 724_106
