"""Everything runs where JAX mixes no dtypes by itself (`numpy_dtype_promotion`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE, layers
from revremat.reversible import to_grid

LAYERS = 8


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_dtype_promotion("strict"):
        yield


def layer(weights, x):
    return x + jnp.tanh(x @ weights)


def undone(weights, y):
    """The input of a layer that adds to its input, by iteration."""
    x = y
    for _ in range(20):
        x = y - jnp.tanh(x @ weights)
    return x


@pytest.mark.parametrize(
    "actions",
    [
        SAVE,
        RECOMPUTE,
        OFFLOAD,
        INVERT,
        RECOMPUTE(save=["dot_general_0"]),
        RECOMPUTE(ahead=["tanh_0"]),
        RECOMPUTE(unroll=True),
        SAVE(unroll=3),
        RECOMPUTE(segment_length=3),
        RECOMPUTE(slots=3),
        [SAVE] * 3 + [RECOMPUTE] * 5,
    ],
    ids=str,
)
def test_stacks_have_plain_gradients(actions):
    random = np.random.default_rng(0)
    weights = jnp.asarray(random.normal(size=(LAYERS, 4, 4)) / 10, jnp.float32)
    x = jnp.asarray(random.normal(size=(3, 4)), jnp.float32)

    def loss(weights, x):
        y = rr.stack(layer, weights, x, actions=actions, inverse=undone)
        return (y * y).mean()

    def plain(weights, x):
        for k in range(LAYERS):
            x = layer(weights[k], x)
        return (x * x).mean()

    found, wanted = (jax.jit(jax.grad(f))(weights, x) for f in (loss, plain))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("chunks", [None, 2])
def test_a_head_has_its_loss(dtype, chunks):
    hidden, table = jnp.ones((1, 4, 2), dtype), jnp.ones((2, 8), dtype)
    labels = jnp.zeros((1, 4), jnp.int32)
    loss = lambda hidden: rr.cross_entropy(hidden, table, labels, chunks=chunks)
    found, gradient = jax.value_and_grad(loss)(hidden)
    assert found.dtype == jnp.float32
    assert float(found) == pytest.approx(np.log(8))
    assert gradient.dtype == dtype


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda x: layers.softmax(x), jnp.bfloat16),
        (lambda x: layers.rms_norm(x, jnp.ones(4)), jnp.bfloat16),
        (lambda x: layers.layer_norm(x, jnp.ones(4), jnp.zeros(4)), jnp.bfloat16),
        (to_grid, jnp.float32),
    ],
    ids=["softmax", "rms_norm", "layer_norm", "to_grid"],
)
def test_what_calculates_in_float32_takes_half_precision(function, wanted):
    x = jnp.ones((3, 4), jnp.bfloat16)
    assert function(x).dtype == wanted
    gradient = jax.grad(lambda x: function(x).astype(jnp.float32).sum())(x)
    assert gradient.dtype == jnp.bfloat16
