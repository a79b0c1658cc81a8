"""What inverting costs, by the compilers: evaluations and bytes."""

import re

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import reversible

WIDTH, TOKENS = 64, 256


def dense(w, x):
    return jnp.tanh(x @ w)


def square(*leading):
    return jax.ShapeDtypeStruct((*leading, WIDTH, WIDTH), jnp.float32)


def stream():
    return jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.float32)


def count_products(f, *specs):
    """Matrix products and convolutions of a compiled program without loops."""
    text = jax.jit(f).lower(*specs).compile().as_text()
    pattern = r" dot\(| convolution\(|custom_call_target=\"\S*(?:matmul|conv|gemm)"
    return len(re.findall(pattern, text))


def gradient(run):
    return jax.grad(lambda p, x: sum((s**2).sum() for s in run(p, x)), argnums=(0, 1))


def plain(couplings):
    def run(params, x):
        for coupling, own in zip(couplings, params, strict=True):
            x = coupling.forward(own, x)
        return x

    return run


def inverted(couplings):
    return lambda params, x: reversible.chain(couplings, params, x)


def test_every_map_is_evaluated_once_forward_and_once_backward():
    """A product is one forward, two for its gradients, and one more to invert."""
    depth, maps = 3, 2
    couplings = [reversible.additive(dense, dense)] * depth
    specs = ([{"f": square(), "g": square()}] * depth, (stream(), stream()))
    assert count_products(gradient(plain(couplings)), *specs) == 3 * maps * depth
    assert count_products(gradient(inverted(couplings)), *specs) == 4 * maps * depth


def test_a_chain_of_mixed_actions_evaluates_no_map_more_often():
    depth, maps = 3, 2
    couplings = [reversible.additive(dense, dense)] * depth
    actions = (rr.INVERT, rr.SAVE, rr.RECOMPUTE)
    run = lambda p, x: reversible.chain(couplings, p, x, actions=actions)
    specs = ([{"f": square(), "g": square()}] * depth, (stream(), stream()))
    assert count_products(gradient(run), *specs) == maps * (4 + 3 + 4)


def test_every_map_of_a_silo_is_evaluated_once_forward_and_once_backward():
    def conv(w, x, stride=1):
        return jax.lax.conv_general_dilated(
            x, w, (stride,) * 2, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    pooled = lambda w, x: jnp.tanh(conv(w, x, 2))
    raised = lambda w, x: jnp.repeat(jnp.repeat(jnp.tanh(conv(w, x)), 2, 1), 2, 2)
    silo = reversible.silo({(0, 1): pooled, (1, 2): pooled}, {(1, 0): raised})
    kernel = jax.ShapeDtypeStruct((3, 3, 8, 8), jnp.float32)
    params = [dict.fromkeys(silo.maps, kernel)] * 2
    x = tuple(
        jax.ShapeDtypeStruct((2, 16 // 2**k, 16 // 2**k, 8), jnp.float32)
        for k in range(3)
    )
    maps = len(silo.maps) * 2
    assert count_products(gradient(plain([silo] * 2)), params, x) == 3 * maps
    assert count_products(gradient(inverted([silo] * 2)), params, x) == 4 * maps


def test_halves_let_go_of_the_whole():
    """Three streams beside the result; half of one more while the whole stayed."""
    tokens, width = 4096, 128
    half = lambda w, x: dense(w, dense(w, x))
    layer = reversible.Halves(reversible.additive(half, half))
    loss = lambda p, x: (reversible.chain([layer] * 3, p, x) ** 2).sum()
    own = jax.ShapeDtypeStruct((width // 2, width // 2), jnp.float32)
    x = jax.ShapeDtypeStruct((tokens, width), jnp.float32)
    step = jax.grad(loss, argnums=(0, 1))
    found = rr.measure(step, [{"f": own, "g": own}] * 3, x, target="h100:1")
    assert found.memory.temp_bytes <= 3.01 * 4 * tokens * width


def repeated(depth):
    layer = reversible.additive(dense, dense)
    run = inverted([reversible.Repeat(layer, depth)])
    return lambda params, x: run([params], x)


def on_the_engine(depth, actions=rr.INVERT):
    del depth
    layer = reversible.additive(dense, dense)
    return lambda params, x: rr.stack(
        layer.forward, params, x, actions=actions, inverse=layer.inverse
    )


def inverted_ahead(depth):
    return on_the_engine(depth, rr.INVERT(ahead=["tanh_0"]))


def test_undoing_a_layer_early_evaluates_no_map_more_often():
    """One layer ahead of the loop, one in it, beside another's gradients."""
    depth, maps = 3, 2
    specs = ({"f": square(depth), "g": square(depth)}, (stream(), stream()))
    forward, undone, gradients = maps, 2 * maps, 2 * 2 * maps
    found = count_products(gradient(inverted_ahead(depth)), *specs)
    assert found == forward + undone + gradients


@pytest.mark.parametrize("actions", [rr.INVERT, (rr.SAVE, rr.INVERT)], ids=str)
def test_the_engine_evaluates_every_map_once_to_invert_it(actions):
    """Also where a layer's map reads what an earlier map of the layer changed."""
    layer, maps = reversible.additive(dense, dense), 2
    run = lambda params, x: rr.stack(
        layer.forward, params, x, actions=actions, inverse=layer.inverse
    )
    depth = 2
    specs = ({"f": square(depth), "g": square(depth)}, (stream(), stream()))
    # Loops write a layer once: one loop, or one layer of each action.
    inverted, stored = (1, 0) if actions == rr.INVERT else (1, 1)
    expected = maps * (4 * inverted + 3 * stored)
    assert count_products(gradient(run), *specs) == expected


def unrolled(depth):
    layer = reversible.additive(dense, dense)

    def run(params, x):
        own = [jax.tree.map(lambda w, k=k: w[k], params) for k in range(depth)]
        return reversible.chain([layer] * depth, own, x)

    return run


def stored(depth):
    layer = reversible.additive(dense, dense)
    return lambda params, x: jax.lax.scan(
        lambda x, p: (layer.forward(p, x), None), x, params, length=depth
    )[0]


TOKENS_IN_MEMORY = 1 << 16


def activation_bytes(make, depth, target):
    """Bytes of a training gradient beyond those of the weights and their gradients."""
    params = {"f": square(depth), "g": square(depth)}
    x = jax.ShapeDtypeStruct((TOKENS_IN_MEMORY, WIDTH), jnp.float32)
    loss = lambda p, x: sum((s**2).mean() for s in make(depth)(p, x))
    m = rr.measure(jax.grad(loss), params, (x, x), target=target)
    weights = 2 * depth * WIDTH * WIDTH * 4
    return m.memory.total_bytes - 2 * weights


DEPTHS = (4, 16, 64)
STREAM = TOKENS_IN_MEMORY * WIDTH * 4


@pytest.mark.every_commit(
    "repeated-cpu:1", "on_the_engine-h100:1", "inverted_ahead-h100:1"
)
@pytest.mark.parametrize(
    ("make", "target"),
    [
        *((make, t) for make in (repeated, on_the_engine) for t in ("h100:1", "cpu:1")),
        (inverted_ahead, "h100:1"),
    ],
)
def test_another_block_adds_no_activation(make, target):
    found = [activation_bytes(make, depth, target) for depth in DEPTHS]
    assert max(found) - min(found) < 0.001 * STREAM


@pytest.mark.every_commit("cpu:1")
@pytest.mark.parametrize("target", ["h100:1", "cpu:1"])
def test_another_block_unrolled_adds_no_activation(target):
    """Weights are taken from the stack one by one, which may keep a copy of each."""
    found = [activation_bytes(unrolled, depth, target) for depth in (3, 6)]
    assert found[1] - found[0] < 4 * 4 * WIDTH * WIDTH * 4


def with_dropout(depth):
    """The same key is there in both passes: masks must not be found to be equal."""

    def dropped(w, x, key):
        return jnp.where(jax.random.bernoulli(key, 0.9, x.shape), dense(w, x), 0)

    layer = reversible.additive(dropped, dropped)
    keys = jax.random.split(jax.random.key(0), 2 * depth)
    rest = [{"f": keys[2 * k], "g": keys[2 * k + 1]} for k in range(depth)]

    def run(params, x):
        own = [jax.tree.map(lambda w, k=k: w[k], params) for k in range(depth)]
        return reversible.chain([layer] * depth, own, x, rest)

    return run


@pytest.mark.slow
def test_another_block_with_dropout_adds_no_mask():
    found = [activation_bytes(with_dropout, depth, "h100:1") for depth in (3, 6)]
    assert found[1] - found[0] < STREAM / 4  # one byte for each element of a mask


def test_another_stored_block_adds_its_activations():
    """The measurement itself: plain autodiff does pay for depth."""
    found = [activation_bytes(stored, depth, "h100:1") for depth in (4, 16)]
    assert found[1] - found[0] > 12 * 2 * STREAM * 0.99
