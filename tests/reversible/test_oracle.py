"""RevSilo against a naive implementation by plain autodiff, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from revremat import reversible
from tests.reversible import examples
from tests.reversible.examples import assert_close, quick_jit, square_sum

pytestmark = pytest.mark.usefixtures("float64")


def naive_silo(params, x, num_outputs):
    """As the paper writes it: all `D` read the inputs, all `U` the middle values."""
    count, grows = num_outputs, len(x) < num_outputs
    middle = []
    for j in range(count):
        total = 0.0 if grows and j == count - 1 else x[j]
        for i in range(j):
            pooled = x[i].reshape(x[i].shape[0], -1, 2 ** (j - i), x[i].shape[2])
            total = total + jnp.tanh(
                jnp.einsum("blc,cd->bld", pooled.mean(2), params[f"down_{i}_{j}"])
            )
        middle.append(total)
    outputs = []
    for i in range(count):
        total = middle[i]
        for j in range(i + 1, count):
            raised = jnp.sin(
                jnp.einsum("blc,cd->bld", middle[j], params[f"up_{j}_{i}"])
            )
            index = np.arange(raised.shape[1] * 2 ** (j - i)) // 2 ** (j - i)
            total = total + raised[:, index]
        outputs.append(total)
    return tuple(outputs)


@pytest.mark.every_commit("2-growing", "3-full", "4-growing")
@pytest.mark.parametrize("growing", [False, True], ids=["full", "growing"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_a_silo_agrees_with_the_naive_one(count, growing):
    e = examples.silo(count, growing=growing)
    coupling, params, x = e.coupling, e.params, e.x
    naive = lambda p, x: naive_silo(p, x, count)
    ours = lambda p, x: reversible.chain([coupling], [p], x)
    both = lambda f: quick_jit(
        lambda p, x: (f(p, x), jax.grad(lambda *a: square_sum(f(*a)), (0, 1))(p, x))
    )(params, x)
    (found, gradients), (expected, expected_gradients) = both(ours), both(naive)
    assert_close(found, expected, 1e-12)
    assert_close(gradients, expected_gradients, 1e-9)


def test_three_silos_agree_with_three_naive_ones():
    count = 3
    e = examples.silo(count)
    each = [jax.tree.map(lambda w, k=k: w * (1 + k / 3), e.params) for k in range(3)]

    def naive(params, x):
        for own in params:
            x = naive_silo(own, x, count)
        return x

    ours = lambda params, x: reversible.chain([e.coupling] * 3, params, x)
    gradient = lambda f: quick_jit(
        jax.grad(lambda *args: square_sum(f(*args)), argnums=(0, 1))
    )(each, e.x)
    assert_close(gradient(ours), gradient(naive), 1e-9)
