"""Layers of groups are layers: of several kinds in turn, each kind is one unit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr

ROWS, WIDTH, GROUPS = 64, 8, 3


def look(w, x, at):
    """A layer that looks at something, itself or an image, and computes on."""
    scores = jax.nn.softmax((x @ w["q"]) @ (at @ w["k"]).T)
    x = x + scores @ (at @ w["v"])
    return x + jax.nn.silu(x @ w["up"]) @ w["down"]


def gate(w, x):
    """Another kind of layer."""
    return x + jnp.tanh(x @ w["up"]) * jax.nn.sigmoid(x @ w["gate"]) @ w["mix"]


def images(params, x, image, wrap=lambda layer: layer):
    """Of four layers, the last one looks at an image."""
    for k in range(GROUPS):
        for w in params[4 * k : 4 * k + 3]:
            x = wrap(lambda w, x: look(w, x, x))(w, x)
        x = wrap(look)(params[4 * k + 3], x, image)
    return jnp.square(x).mean()


def gates(params, x, image, wrap=lambda layer: layer):
    """Of five layers, the third one looks; rows go on from group to group."""
    for k, w in enumerate(params):
        layer = (lambda w, x: look(w, x, x)) if k % 5 == 2 else gate
        x = wrap(layer)(w, x)
    return jnp.square(x).mean()


def images_then_gates(params, x, image):
    """Groups of layers, and below them a row of another kind, which is no group."""
    for k in range(GROUPS):
        for w in params[4 * k : 4 * k + 3]:
            x = look(w, x, x)
        x = look(params[4 * k + 3], x, image)
    for w in params[4 * GROUPS :]:
        x = gate(w, x)
    return jnp.square(x).mean()


def experts(params, x, image, wrap=lambda layer: layer):
    """Layers that add up what three experts give."""

    def layer(ws, x):
        normed = x / jnp.abs(x).max()
        return x + sum(jnp.tanh(normed @ w["up"]) @ w["down"] for w in ws)

    for k in range(4):
        x = wrap(layer)(params[3 * k : 3 * k + 3], x)
    return jnp.square(x).mean()


def squares(params, x, image, wrap=lambda layer: layer):
    """Two products follow one another from layer to layer; neither is a layer."""
    layer = lambda w, x: jnp.sin(x @ w["square"]) @ w["square"]
    for w in params:
        x = wrap(layer)(w, x)
    return jnp.square(x).mean()


def params_of(num_layers):
    random = np.random.default_rng(0)
    array = lambda *shape: jnp.asarray(random.normal(size=shape) / 4, jnp.float32)
    widths = {
        "q": WIDTH,
        "k": WIDTH,
        "v": WIDTH,
        "square": WIDTH,
        "up": 4 * WIDTH,
        "gate": 4 * WIDTH,
    }
    one = lambda: {
        **{name: array(WIDTH, out) for name, out in widths.items()},
        "down": array(4 * WIDTH, WIDTH),
        "mix": array(4 * WIDTH, WIDTH),
    }
    layers = [one() for _ in range(num_layers)]
    return layers, array(ROWS, WIDTH), array(2 * ROWS, WIDTH)


PROGRAMS = {
    "images": (images, params_of(4 * GROUPS), [3 * GROUPS, GROUPS]),
    "gates": (gates, params_of(5 * GROUPS), [4 * GROUPS, GROUPS]),
    "experts": (experts, params_of(12), [4]),
    "squares": (squares, params_of(4), [4]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_kind_of_layer_is_a_unit(name):
    loss, args, num_layers = PROGRAMS[name]
    units = rr.trace(loss, *args).units
    assert [unit.num_layers for unit in units] == num_layers


def test_a_row_beside_groups_is_a_unit_of_its_own():
    units = rr.trace(images_then_gates, *params_of(4 * GROUPS + 4)).units
    assert [unit.num_layers for unit in units] == [3 * GROUPS, GROUPS, 4]


@pytest.mark.every_commit(
    "every_other0-experts", "every_other1-gates", "every_other2-images"
)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("every_other", [rr.RECOMPUTE, rr.SAVE, rr.OFFLOAD])
def test_gradients_are_those_of_plain_autodiff(name, every_other):
    loss, args, _ = PROGRAMS[name]
    graph = rr.trace(loss, *args)
    actions = {
        unit.name: tuple(
            every_other if k % 2 else rr.RECOMPUTE for k in range(unit.num_layers)
        )
        for unit in graph.units
    }
    planned = jax.jit(jax.grad(rr.apply(loss, graph.plan(actions))))(*args)
    plain = jax.jit(jax.grad(loss))(*args)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-6),
        planned,
        plain,
    )


@pytest.mark.every_commit("experts")
@pytest.mark.parametrize(
    "name",
    [name for name in PROGRAMS],
)
def test_recomputed_layers_take_what_checkpointed_ones_do(name):
    loss, _, _ = PROGRAMS[name]
    args = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(tuple(128 * n for n in a.shape), jnp.bfloat16),
        PROGRAMS[name][1],
    )
    graph = rr.trace(loss, *args)
    plan = graph.plan({unit.name: rr.RECOMPUTE for unit in graph.units})
    by_hand = lambda *args: loss(*args, wrap=jax.checkpoint)
    ours, theirs = (
        rr.measure(jax.grad(fn), *args, target="h100:1").memory.total_bytes
        for fn in (rr.apply(loss, plan), by_hand)
    )
    assert ours <= 1.02 * theirs
