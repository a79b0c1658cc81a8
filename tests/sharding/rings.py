"""What rings are held against: attention by one device, in values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from revremat import sharding

SHAPE = 2, 32, 2, 4


def arrays():
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=SHAPE)) for _ in range(3)]


def by_one_device(causal, q, k, v):
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), v)


def in_order(attend, parts, causal, q, k, v):
    """What attends in a ring of so many parts, in the order that it wants."""
    if not causal:
        return attend(q, k, v)
    order = functools.partial(sharding.zigzag, parts=parts)
    return order(attend(*map(order, (q, k, v)), causal="zigzag"), undo=True)


def assert_is_as_by_one_device(ring, causal):
    """Values and gradients in float64.

    Args:
      ring: Attends to `q`, `k` and `v`.
      causal: Whether a position sees only those up to itself.
    """
    weigh = lambda attend: lambda *args: (attend(*args) ** 3).sum()
    plain = functools.partial(by_one_device, causal)
    with jax.enable_x64(True):
        args = arrays()
        found, expected = (
            jax.jit(jax.value_and_grad(weigh(attend), (0, 1, 2)))(*args)
            for attend in (ring, plain)
        )
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)
