"""The stack engine: values and gradients of a plain scan, whatever the actions."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE, UserError

LAYERS, WIDTH, BATCH = 4, 4, 3

MIXTURES = {
    "save": SAVE,
    "recompute": RECOMPUTE,
    "offload": OFFLOAD,
    "one name": RECOMPUTE(save=["hidden"]),
    "one name on the host": RECOMPUTE(offload=["hidden"]),
    "input on the host": RECOMPUTE(offload=["input"]),
    "saved but for one on the host": SAVE(offload=["hidden"]),
    "ahead": RECOMPUTE(ahead=["hidden"]),
    "alternating": (SAVE, RECOMPUTE) * 2,
    "two runs": (SAVE,) * 2 + (RECOMPUTE,) * 2,
    "irregular": (
        RECOMPUTE,
        RECOMPUTE(ahead=["hidden"]),
        RECOMPUTE(ahead=["hidden"]),
        OFFLOAD,
    ),
}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def problem():
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape) / 2)
    params = (normal(LAYERS, WIDTH, 2 * WIDTH), normal(LAYERS, 2 * WIDTH, WIDTH))
    keys = jax.random.split(jax.random.key(0), LAYERS)
    return params, normal(WIDTH), normal(BATCH, WIDTH), keys


def make_layer(scale):
    def layer(w, x, key):
        hidden = rr.name(jnp.tanh(x @ w[0]), "hidden")
        kept = jax.random.bernoulli(key, 0.8, hidden.shape)
        out = x + jax.nn.softmax(jnp.where(kept, hidden, 0) @ w[1]) * scale
        return out, hidden.sum()

    return layer


def loss(params, scale, x, keys, actions=None, reverse=False):
    y, sums = rr.stack(
        make_layer(scale),
        params,
        x,
        keys,
        has_ys=True,
        actions=actions,
        reverse=reverse,
    )
    return (y**2).sum() + (sums * jnp.arange(LAYERS)).sum()


def assert_close(found, expected, rtol=1e-12):
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


gradients = jax.jit(
    jax.value_and_grad(loss, argnums=(0, 1, 2)), static_argnames=("actions", "reverse")
)


@pytest.mark.every_commit(
    "recompute", "one name", "input on the host", "ahead", "alternating", "irregular"
)
@pytest.mark.parametrize("actions", MIXTURES.values(), ids=MIXTURES)
def test_gradients_are_those_of_a_plain_scan(actions):
    args = problem()
    assert_close(gradients(*args, actions=actions), gradients(*args, actions=None))


@pytest.mark.every_commit("irregular")
@pytest.mark.parametrize("mixture", ["two runs", "irregular"])
def test_gradients_of_a_stack_that_runs_backwards(mixture):
    args, actions = problem(), MIXTURES[mixture]
    found = gradients(*args, actions=actions, reverse=True)
    assert_close(found, gradients(*args, actions=None, reverse=True))


def test_a_loop_over_layers_says_the_same():
    params, scale, x, keys = problem()

    def by_hand(params, scale, x):
        layer, total = make_layer(scale), 0.0
        for k in range(LAYERS):
            x, y = layer(jax.tree.map(lambda w, k=k: w[k], params), x, keys[k])
            total += k * y
        return (x**2).sum() + total

    gradient = jax.jit(jax.value_and_grad(by_hand, argnums=(0, 1, 2)))
    expected = gradient(params, scale, x)
    assert_close(gradients(params, scale, x, keys, actions=RECOMPUTE), expected)


def couple(w, pair):
    a, b = pair
    a = a + rr.name(jnp.tanh(b @ w), "shift")
    return a, b + jnp.sin(a @ w)


def uncouple(w, pair):
    a, b = pair
    b = b - jnp.sin(a @ w)
    return a - jnp.tanh(b @ w), b


@pytest.mark.every_commit(
    "INVERT",
    "INVERT(save=['input_1'], ahead=['shift'])",
    "(SAVE, INVERT, INVERT, RECOMPUTE)",
    "(INVERT, RECOMPUTE, INVERT(save=['shift']), INVERT)",
)
@pytest.mark.parametrize(
    "actions",
    [
        INVERT,
        INVERT(save=["shift"]),
        INVERT(save=["input_1"]),
        INVERT(ahead=["shift"]),
        INVERT(ahead=["shift"], save=["input_1"]),
        (SAVE, INVERT, INVERT, RECOMPUTE),
        (INVERT, INVERT(ahead=["shift"]), INVERT(ahead=["shift"]), SAVE),
        (RECOMPUTE, INVERT(ahead=["shift"]), INVERT, INVERT(ahead=["shift"])),
        (INVERT, RECOMPUTE, INVERT(save=["shift"]), INVERT),
    ],
    ids=str,
)
def test_a_layer_with_an_inverse_gives_its_input_back(actions):
    params, _, x, _ = problem()
    w = params[0][:, :, :WIDTH]

    def total(w, x, actions):
        a, b = rr.stack(couple, w, (x, x), actions=actions, inverse=uncouple)
        return (a * jnp.cos(b)).sum()

    gradient = jax.jit(jax.grad(total, argnums=(0, 1)), static_argnums=2)
    assert_close(gradient(w, x, actions), gradient(w, x, None), rtol=1e-10)


def test_inverting_keeps_no_activation_of_any_layer():
    params, _, x, _ = problem()
    w = params[0][:, :, :WIDTH]

    def kept_bytes(actions):
        run = lambda w: rr.stack(couple, w, (x, x), actions=actions, inverse=uncouple)
        pullback = jax.eval_shape(lambda w: jax.vjp(run, w)[1], w)
        leaves = [leaf for leaf in jax.tree.leaves(pullback) if leaf.shape != w.shape]
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)

    assert kept_bytes(INVERT) == 2 * x.nbytes  # the last layer's output
    assert kept_bytes(RECOMPUTE) == 2 * LAYERS * x.nbytes


@pytest.mark.slow
def test_vmap_over_a_stack():
    params, scale, x, keys = problem()
    xs = jnp.stack([x, 2 * x, -x])

    @partial(jax.jit, static_argnums=0)
    def run(actions):
        gradient = lambda x: jax.grad(loss)(params, scale, x, keys, actions)
        return jax.vmap(gradient)(xs)

    assert_close(run(MIXTURES["two runs"]), run(None))


def test_gradient_accumulation_around_a_stack():
    params, scale, x, keys = problem()
    batches = jnp.stack([x, 2 * x, -x])

    @partial(jax.jit, static_argnums=0)
    def accumulate(actions):
        def iteration(total, x):
            gradient = jax.grad(loss)(params, scale, x, keys, actions)
            return jax.tree.map(jnp.add, total, gradient), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        return jax.lax.scan(iteration, zeros, batches)[0]

    assert_close(accumulate(MIXTURES["alternating"]), accumulate(None))


@pytest.mark.slow
def test_second_derivatives():
    params, scale, x, keys = problem()

    def slope(params, actions):
        g = jax.grad(loss)(params, scale, x, keys, actions)
        return sum((leaf**2).sum() for leaf in jax.tree.leaves(g))

    gradient = jax.jit(jax.grad(slope), static_argnums=1)
    assert_close(gradient(params, MIXTURES["alternating"]), gradient(params, None))


def test_weights_shared_by_all_layers_get_one_gradient():
    _, scale, x, keys = problem()
    w = jnp.eye(WIDTH) / 2

    @partial(jax.jit, static_argnums=1)
    def total(w, actions):
        layer = lambda _, x, key: x + jnp.sin(x @ w) * scale
        return rr.stack(layer, {}, x, keys, actions=actions).sum()

    assert_close(jax.grad(total)(w, RECOMPUTE), jax.grad(total)(w, None))


def test_frozen_weights_have_no_gradient_buffer():
    params, scale, x, keys = problem()
    frozen, trained = params

    def total(trained, actions):
        return loss((frozen, trained), scale, x, keys, actions=actions)

    text = str(jax.make_jaxpr(jax.grad(total), static_argnums=1)(trained, RECOMPUTE))
    shape = ",".join(map(str, frozen.shape))
    zeros = [
        line
        for line in text.splitlines()
        if f"f64[{shape}]" in line and "broadcast_in_dim" in line
    ]
    assert not zeros
    assert_close(jax.grad(total)(trained, RECOMPUTE), jax.grad(total)(trained, None))


def test_carries_and_inputs_of_any_kind():
    def layer(w, carry, extra):
        x, (count, key) = carry["x"], carry["rest"]
        key, own = jax.random.split(key)
        hidden = rr.name(jnp.tanh(x @ w), "hidden")
        x = x + hidden * extra["scale"][count] * jax.random.normal(own)
        return {"x": x, "rest": (count + 1, key)}, {"n": count, "key": own}

    params, _, x, _ = problem()
    w = params[0][:, :, :WIDTH]
    extra = {"scale": jnp.ones((LAYERS, LAYERS)), "on": jnp.ones(LAYERS, bool)}
    first = {"x": x, "rest": (jnp.int32(0), jax.random.key(3))}

    def total(w, actions):
        last, ys = rr.stack(layer, w, first, extra, has_ys=True, actions=actions)
        return last["x"].sum(), (ys["n"], jax.random.key_data(ys["key"]))

    gradient = jax.jit(jax.grad(total, has_aux=True), static_argnums=1)
    expected = gradient(w, None)
    for actions in (RECOMPUTE, MIXTURES["irregular"]):
        assert_close(gradient(w, actions), expected)


def test_what_is_kept_is_what_the_actions_say():
    params, scale, x, keys = problem()
    hidden_bytes = BATCH * 2 * WIDTH * 8

    def kept_bytes(actions):
        pullback = jax.eval_shape(
            lambda p: jax.vjp(lambda p: loss(p, scale, x, keys, actions), p)[1], params
        )
        stacked = [
            leaf
            for leaf in jax.tree.leaves(pullback)
            if leaf.ndim == 3 and leaf.shape[1:] in [(BATCH, WIDTH), (BATCH, 2 * WIDTH)]
        ]
        return sum(leaf.size * 8 for leaf in stacked)

    assert kept_bytes(RECOMPUTE) == LAYERS * x.nbytes
    both = kept_bytes(RECOMPUTE(save=["hidden"]))
    assert both == LAYERS * (x.nbytes + hidden_bytes)
    half = kept_bytes((RECOMPUTE(save=["hidden"]),) * 2 + (RECOMPUTE,) * 2)
    assert half == LAYERS * x.nbytes + 2 * hidden_bytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"actions": (SAVE,) * 5}, "has 4 layers and was given 5 actions"),
        ({"actions": INVERT}, "INVERT: it has no inverse"),
        ({"actions": RECOMPUTE(save=["hiden"])}, "no value named 'hiden'"),
        (
            {"actions": RECOMPUTE(save=["hidden"], offload=["hidden"])},
            "both `save` and `offload` list 'hidden'",
        ),
        ({"actions": RECOMPUTE(chunks=2)}, "it cannot be split"),
        ({"x": jnp.ones((BATCH, WIDTH), jnp.float32)}, "it must return what it takes"),
        ({"params": {}}, "must be arrays stacked along a first axis"),
        (
            {"params": (jnp.ones((6, 4, 8)), jnp.ones((5, 8, 4)))},
            r"lengths \(4, 5, 6\)",
        ),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence(change, message):
    params, scale, x, keys = problem()
    given = {"params": params, "x": x, "actions": RECOMPUTE} | change
    xs = None if given["params"] == {} else keys
    layer = make_layer(scale) if xs is not None else lambda w, x: (x, x)

    def total(params):
        args = (params, given["x"], xs)
        return rr.stack(layer, *args, actions=given["actions"], has_ys=True)[0].sum()

    with pytest.raises(UserError, match=message) as caught:
        jax.grad(total)(given["params"])
    assert "\n" not in str(caught.value)


def test_an_inverse_that_returns_something_else_is_refused():
    params, _, x, _ = problem()
    with pytest.raises(UserError, match="must return what the block takes"):
        rr.stack(couple, params[0][:, :, :4], (x, x), inverse=lambda w, y: y[0])


@pytest.mark.slow
def test_inverting_works_beside_any_value_kept_in_either_place():
    """Also where what is kept is of no use to the derivative but is to the inverse."""

    def half(w, x):
        h = jax.nn.sigmoid(x @ w)
        return h / (1 + jnp.cumsum(h, axis=-1)).max(-1, keepdims=True)

    def forward(w, x):
        a, b = x
        a = a + half(w, b)
        return a, b + half(w.T, a)

    def inverse(w, y):
        a, b = y
        b = b - half(w.T, a)
        return a - half(w, b), b

    def loss(w, x):
        a, b = rr.stack(forward, w, x, inverse=inverse)
        return (a * jnp.cos(b)).sum()

    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        w = jnp.asarray(rng.normal(size=(3, 4, 4)))
        x = tuple(jnp.asarray(rng.normal(size=(2, 2, 4))))
        graph = rr.trace(loss, w, x)
        expected = jax.grad(loss)(w, x)
        names = list(graph["stack"].position)
        assert {"input_0", "input_1"} < set(names)
        for name, where in itertools.product(names, ("save", "offload")):
            plan = graph.plan({"stack": rr.INVERT(**{where: [name]})})
            found = jax.grad(rr.apply(loss, plan))(w, x)
            np.testing.assert_allclose(found, expected, rtol=1e-9, err_msg=name)


def swap(w, c):
    return c[1], c[0] + jnp.tanh(c[1] @ w)


def swap_back(w, c):
    return c[1] - jnp.tanh(c[0] @ w), c[0]


def beside_a_position(w, c):
    return c[0], c[1] + jnp.tanh(c[0] * w.sum())


def away_from_it(w, c):
    return c[0], c[1] - jnp.tanh(c[0] * w.sum())


@pytest.mark.parametrize(
    ("layer", "inverse", "first"),
    [
        (swap, swap_back, jnp.ones((BATCH, WIDTH))),
        (beside_a_position, away_from_it, jnp.float32(0.1)),
        (beside_a_position, away_from_it, jnp.int32(3)),
    ],
    ids=["coupling", "position", "number"],
)
def test_layers_that_hand_something_on_unchanged_have_an_inverse(layer, inverse, first):
    numbers = lambda *shape: jnp.asarray(np.sin(np.arange(np.prod(shape))), "float32")
    w = numbers(LAYERS, WIDTH, WIDTH).reshape(LAYERS, WIDTH, WIDTH) / 2
    x = numbers(BATCH, WIDTH).reshape(BATCH, WIDTH)

    def loss(w, x, actions=None):
        out = rr.stack(layer, w, (first, x), inverse=inverse, actions=actions)
        return jnp.sum(jnp.sin(out[1]) * out[0])

    assert rr.trace(loss, w, x)["stack"].invertible
    plain = jax.grad(loss, argnums=(0, 1))(w, x)
    undone = jax.grad(partial(loss, actions=INVERT), argnums=(0, 1))(w, x)
    for found, expected in zip(undone, plain, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
