"""Layers that come at several places are one unit, whatever stands between them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import revremat as rr
from revremat.program.units._substrings import repeated

ROWS, WIDTH = 32, 8


def look(w, x):
    """Attention and what follows, with much inside and little going in and out."""
    scores = jax.nn.softmax((x @ w["q"]) @ (x @ w["k"]).T)
    x = x + scores @ (x @ w["v"])
    return x + jax.nn.silu(x @ w["up"]) @ w["down"]


def odd(w, x, wide):
    """No two of these are equal."""
    return x + jnp.tanh(jnp.tile(x, (1, wide)) @ w)


def looks(number):
    """That many `look`s, an `odd` of another width before each."""

    def loss(params, x):
        for k in range(number):
            x = odd(params["odd"][k], x, k + 1)
            x = look(params["look"][k], x)
        return (x**2).sum()

    return loss, params_of(number, number)


def loops_apart(places, iterations):
    """Python loops of `look`s at several places."""

    def loss(params, x):
        own = iter(params["look"])
        for k in range(places):
            x = odd(params["odd"][k], x, k + 1)
            for _ in range(iterations):
                x = look(next(own), x)
        return (x**2).sum()

    return loss, params_of(places, places * iterations)


def params_of(num_odd, num_looks):
    random = np.random.default_rng(0)
    array = lambda *shape: jnp.asarray(random.normal(size=shape) / 4, jnp.float32)
    widths = {"q": WIDTH, "k": WIDTH, "v": WIDTH, "up": 8 * WIDTH}
    one = lambda: {
        **{name: array(WIDTH, out) for name, out in widths.items()},
        "down": array(8 * WIDTH, WIDTH),
    }
    return {
        "odd": [array((k + 1) * WIDTH, WIDTH) for k in range(num_odd)],
        "look": [one() for _ in range(num_looks)],
    }, array(ROWS, WIDTH)


PROGRAMS = {
    "apart": (*looks(4), 4),
    "in loops apart": (*loops_apart(3, 2), 6),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_layers_apart_are_one_unit(name):
    loss, args, num_layers = PROGRAMS[name]
    units = rr.trace(loss, *args).units
    at_stake = {u.name: u.num_layers * u.kept(rr.SAVE).device_bytes for u in units}
    largest = max(units, key=lambda u: at_stake[u.name])
    assert largest.num_layers == num_layers
    assert at_stake[largest.name] > 0.8 * sum(at_stake.values())


@pytest.mark.every_commit(
    "every_other0-apart", "every_other1-in loops apart", "every_other2-apart"
)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("every_other", [rr.RECOMPUTE, rr.SAVE, rr.OFFLOAD])
def test_gradients_are_those_of_plain_autodiff(name, every_other):
    loss, args, _ = PROGRAMS[name]
    graph = rr.trace(loss, *args)
    actions = {
        u.name: tuple(
            every_other if k % 2 else rr.RECOMPUTE for k in range(u.num_layers)
        )
        for u in graph.units
    }
    planned = rr.apply(loss, graph.plan(actions))
    for found, expected in zip(
        jax.tree.leaves(jax.jit(jax.value_and_grad(planned))(*args)),
        jax.tree.leaves(jax.jit(jax.value_and_grad(loss))(*args)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_layer_begins_and_ends_where_little_goes_in_and_out():
    loss, args, _ = PROGRAMS["apart"]
    unit = max(rr.trace(loss, *args).units, key=lambda u: u.num_layers)
    kept = unit.kept(rr.RECOMPUTE)
    assert kept.device_bytes <= 4 * ROWS * WIDTH


@given(st.lists(st.integers(0, 3), max_size=40))
def test_repeated_finds_every_stretch_that_comes_twice(tokens):
    n = len(tokens)
    places: dict[tuple[int, ...], list[int]] = {}
    for length in range(1, n):
        for start in range(n - length + 1):
            stretch = tuple(tokens[start : start + length])
            places.setdefault(stretch, []).append(start)
    longest: dict[tuple[int, ...], int] = {}
    for stretch, starts in places.items():
        if len(starts) > 1:
            key = tuple(starts)
            longest[key] = max(longest.get(key, 0), len(stretch))
    found = {
        tuple(sorted(starts.tolist())): length
        for starts, length in repeated(np.array(tokens, np.int64))
    }
    assert found == longest
