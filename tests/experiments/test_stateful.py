"""Modules as pure functions: the same function, statistics that come back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.models.stateful import Stateful


class Small(nnx.Module):
    """Every kind of array there is: in a list, with statistics, with draws."""

    def __init__(self, rngs: nnx.Rngs):
        self.convs = nnx.List(nnx.Conv(3, 3, (3, 3), rngs=rngs) for _ in range(2))
        self.norm = nnx.BatchNorm(3, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.linear = nnx.Linear(3, 4, rngs=rngs)

    def __call__(self, x):
        for conv in self.convs:
            x = conv(x)
        return self.linear(self.dropout(self.norm(x)))


MODEL = Stateful(Small)
X = jax.random.normal(jax.random.key(0), (4, 5, 5, 3)) + 1


@pytest.fixture(scope="module")
def params():
    return jax.jit(MODEL.init)(jax.random.key(1))


def test_keys_are_text_as_checkpoints_need_them(params):
    paths = [k for k, _ in jax.tree.flatten_with_path(params)[0]]
    assert all(isinstance(part.key, str) for path in paths for part in path)
    assert params["convs"]["1"]["kernel"].shape == (3, 3, 3, 3)


def test_a_step_in_training_moves_the_statistics_once(params):
    state = MODEL.init_state()
    y, moved = MODEL(params, state, jax.random.key(2), X)
    assert y.shape == (4, 5, 5, 4)
    inner = X
    for k in "01":
        conv = nnx.eval_shape(lambda: Small(nnx.Rngs(0))).convs[0]
        graph = nnx.graphdef(conv)
        inner = nnx.merge(graph, params["convs"][k])(inner)
    mean = 0.1 * inner.mean((0, 1, 2))
    np.testing.assert_allclose(moved["norm"]["mean"], mean, rtol=1e-4, atol=1e-6)
    expected = 0.9 + 0.1 * inner.var((0, 1, 2))
    np.testing.assert_allclose(moved["norm"]["var"], expected, rtol=1e-4)


def test_draws_are_those_of_the_key(params):
    state = MODEL.init_state()
    of = lambda key: MODEL(params, state, jax.random.key(key), X)[0]
    np.testing.assert_array_equal(of(2), of(2))
    assert not np.array_equal(of(2), of(3))


def test_without_a_key_nothing_is_drawn_or_moved(params):
    state = MODEL.init_state()
    y, after = MODEL(params, state, None, X)
    jax.tree.map(np.testing.assert_array_equal, after, state)
    shifted = MODEL(params, {"norm": {**state["norm"], "mean": jnp.ones(3)}}, None, X)
    assert not np.allclose(y, shifted[0]), "running statistics are used"


def test_initial_values_have_the_spread_of_kaimings_and_pytorchs():
    big = lambda rngs: nnx.Dict(
        conv=nnx.Conv(64, 32, (3, 3), rngs=rngs), linear=nnx.Linear(400, 300, rngs=rngs)
    )
    params = Stateful(big).init(jax.random.key(0))
    kernel, weights = params["conv"]["kernel"], params["linear"]["kernel"]
    assert float(kernel.std()) == pytest.approx((2 / (9 * 32)) ** 0.5, rel=0.03)
    assert float(jnp.abs(weights).max()) == pytest.approx(1 / 20, rel=0.01)
    assert float(weights.std()) == pytest.approx(1 / 20 / 3**0.5, rel=0.03)
    assert not params["linear"]["bias"].any()
