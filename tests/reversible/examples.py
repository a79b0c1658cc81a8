"""Couplings of every kind with small parameters, for the contract suite."""

from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from revremat import reversible

BATCH, WIDTH = 2, 4

# Compiled without polish: these programs run once.
quick_jit = partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 0,
        "xla_llvm_disable_expensive_passes": True,
    },
)


@dataclass(frozen=True)
class Example:
    """A coupling, its parameters, what goes in, and what has no gradient."""

    coupling: Any
    params: Any
    x: Any
    rest: Any = None


class Numbers:
    """Reproducible random arrays of the default dtype."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape, scale=0.5):
        return jnp.asarray(self.rng.normal(size=shape) * scale)


def dense(w, x):
    return jnp.tanh(x @ w)


def dropped(w, x, key):
    kept = jax.random.bernoulli(key, 0.7, x.shape)
    return jnp.where(kept, dense(w, x), 0) / 0.7


def pair(w, x):
    return dense(w["s"], x), dense(w["t"], x)


def attend(w, x):
    q, k, v = (x @ w[name] for name in ("q", "k", "v"))
    return jax.nn.softmax(q @ k.swapaxes(-1, -2)) @ v


def square(n):
    return n(WIDTH, WIDTH)


def additive():
    n = Numbers()
    params = {"f": square(n), "g": square(n)}
    coupling = reversible.additive(dense, dense)
    return Example(coupling, params, (n(BATCH, WIDTH), n(BATCH, WIDTH)))


def additive_second_first():
    n = Numbers(1)
    params = {"f": square(n), "g": square(n)}
    coupling = reversible.additive(dense, dense, first=1)
    return Example(coupling, params, (n(BATCH, WIDTH), n(BATCH, WIDTH)))


def with_dropout():
    n = Numbers(2)
    params = {"f": square(n), "g": square(n)}
    keys = jax.random.split(jax.random.key(7), 2)
    coupling = reversible.additive(dropped, dropped)
    streams = (n(BATCH, WIDTH), n(BATCH, WIDTH))
    return Example(coupling, params, streams, {"f": keys[0], "g": keys[1]})


def affine():
    n = Numbers(3)
    params = {k: {"s": square(n), "t": square(n)} for k in "fg"}
    coupling = reversible.affine(pair, pair)
    return Example(coupling, params, (n(BATCH, WIDTH), n(BATCH, WIDTH)))


def momentum():
    n = Numbers(4)
    x = n(BATCH, WIDTH)
    coupling = reversible.momentum(dense, momentum=0.8)
    return Example(coupling, {"f": square(n)}, (x, x * 0))


def reformer():
    n = Numbers(5)
    params = {
        "attention": {name: square(n) for name in "qkv"},
        "feed_forward": square(n),
    }
    coupling = reversible.reformer(attend, dense)
    x = n(BATCH, 3, WIDTH)
    return Example(coupling, params, (x, x))


def halves():
    n = Numbers(6)
    params = {"f": square(n), "g": square(n)}
    coupling = reversible.Halves(reversible.additive(dense, dense))
    return Example(coupling, params, n(BATCH, 2 * WIDTH))


def space_and_depth():
    down = reversible.space_to_depth(2)
    return Example(down, None, Numbers(7)(BATCH, 4, 6, 3))


def streams_of_pytrees():
    n = Numbers(8)
    params = {"f": square(n), "g": square(n)}
    each = lambda w, x: {"a": dense(w, x["b"]), "b": dense(w, x["a"])}
    stream = lambda: {"a": n(BATCH, WIDTH), "b": n(BATCH, WIDTH)}
    return Example(reversible.additive(each, each), params, (stream(), stream()))


def lower(w, x, *, times):
    """From a finer stream to a coarser one: pooled, then other channels."""
    batch, length, channels = x.shape
    pooled = x.reshape(batch, length // times, times, channels).mean(2)
    return jnp.tanh(pooled @ w)


def higher(w, x, *, times):
    return jnp.repeat(jnp.sin(x @ w), times, axis=1)


def two(f):
    return lambda w, x: (f(w["s"], x), f(w["t"], x))


def silo(count, *, growing=False, affine=False):
    """Streams of length 8, 4, 2, 1 and width 2, 3, 4, 5."""
    n = partial(Numbers(count), scale=0.2 if affine else 0.5)
    width = lambda i: i + 2
    down, up, params = {}, {}, {}
    for i, j in combinations(range(count), 2):
        times = 2 ** (j - i)
        down[i, j] = partial(lower, times=times)
        up[j, i] = partial(higher, times=times)
        params[f"down_{i}_{j}"] = n(width(i), width(j))
        params[f"up_{j}_{i}"] = n(width(j), width(i))
        if affine:
            up[j, i] = two(up[j, i])
            w = n(width(j), width(i))
            params[f"up_{j}_{i}"] = {"s": w, "t": -w}
            if not (growing and j == count - 1):
                down[i, j] = two(down[i, j])
                w = n(width(i), width(j))
                params[f"down_{i}_{j}"] = {"s": w, "t": w / 2}
    inputs = count - 1 if growing else count
    join = reversible.Affine() if affine else reversible.Add()
    coupling = reversible.silo(down, up, join=join, num_inputs=inputs)
    x = tuple(n(BATCH, 8 // 2**i, width(i)) for i in range(inputs))
    return Example(coupling, params, x)


EQUAL = {
    "additive": additive,
    "additive, second first": additive_second_first,
    "additive with dropout": with_dropout,
    "affine": affine,
    "momentum": momentum,
    "reformer": reformer,
    "halves": halves,
    "streams of pytrees": streams_of_pytrees,
    "silo of 2": partial(silo, 2),
    "silo of 3": partial(silo, 3),
    "silo of 4": partial(silo, 4),
    "affine silo of 3": partial(silo, 3, affine=True),
}
GROWING = {
    "space to depth": space_and_depth,
    "silo growing to 2": partial(silo, 2, growing=True),
    "silo growing to 3": partial(silo, 3, growing=True),
    "silo growing to 4": partial(silo, 4, growing=True),
    "affine silo growing to 3": partial(silo, 3, growing=True, affine=True),
}
ALL = EQUAL | GROWING


def assert_close(found, expected, tolerance):
    """Equal to `tolerance` of the largest number (or a thousandth) in each array."""
    found, expected = jax.tree.leaves(found), jax.tree.leaves(expected)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        scale = max(1e-3, float(jnp.abs(b).max()))
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


def square_sum(tree):
    """A scalar in which every output counts differently."""
    leaves = jax.tree.leaves(tree)
    return sum((jnp.cos(leaf + k) * leaf).sum() for k, leaf in enumerate(leaves))


def stacked(tree, depth):
    """Different parameters for each layer; other keys too."""

    def stack(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.split(leaf, depth)
        scales = jnp.linspace(0.5, 1.0, depth).reshape(-1, *(1,) * leaf.ndim)
        return leaf * scales

    return jax.tree.map(stack, tree)
