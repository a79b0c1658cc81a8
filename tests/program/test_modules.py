"""Modules that are all different are layers, where equal ones say little."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat.program.units._modules import _label

WIDTHS = (8, 16, 24)


class Stage(nn.Module):
    width: int
    gated: bool

    @nn.compact
    def __call__(self, x):
        y = nn.Dense(self.width, name="wider")(x)
        h = nn.Dense(4 * self.width)(nn.LayerNorm()(y))
        if self.gated:
            h = nn.silu(h) * nn.Dense(4 * self.width)(y)
        return y + nn.Dense(self.width)(nn.gelu(h) + jnp.sin(h))


class Net(nn.Module):
    """Of one width: equal stages; of several: no two alike."""

    widths: tuple[int, ...] = WIDTHS

    @nn.compact
    def __call__(self, x):
        x = nn.Dense(self.widths[0])(x)
        for k, width in enumerate(self.widths):
            x = Stage(width, gated=k % 2 == 1 and len(set(self.widths)) > 1)(x)
        return x


def made(net, rows=32):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(rows, 8)), jnp.float32)
    params = net.init(jax.random.key(0), x)
    return (lambda params, x: (net.apply(params, x) ** 2).mean()), params, x


def units(net):
    graph = rr.trace(*made(net))
    return [(unit.name, unit.kind, unit.num_layers) for unit in graph.units]


@pytest.mark.slow
def test_each_is_a_unit_by_its_name():
    names = ["Stage", "Stage_1", "Stage_2"]
    assert units(Net()) == [(name, "module", 1) for name in names]


def test_equal_ones_are_layers_of_a_loop_as_before():
    assert {kind for _, kind, _ in units(Net((8,) * 6))} == {"repeat"}


@pytest.mark.every_commit("action0-False", "action1-True")
@pytest.mark.parametrize("gradient_barrier", [False, True])
@pytest.mark.parametrize("action", [rr.SAVE, rr.RECOMPUTE])
def test_gradients_are_those_of_plain_autodiff(action, gradient_barrier):
    loss, params, x = made(Net())
    graph = rr.trace(loss, params, x)
    actions = {unit.name: action for unit in graph.units}
    planned = rr.apply(loss, graph.plan(actions, gradient_barrier=gradient_barrier))
    pairs = zip(
        jax.tree.leaves(jax.jit(jax.grad(planned))(params, x)),
        jax.tree.leaves(jax.jit(jax.grad(loss))(params, x)),
        strict=True,
    )
    for found, expected in pairs:
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_recomputing_them_takes_what_checkpointing_each_does():
    specs = jax.eval_shape(lambda: made(Net(), rows=1 << 16)[1:])
    loss, *_ = made(Net())
    graph = rr.trace(loss, *specs)
    actions = {unit.name: rr.RECOMPUTE for unit in graph.units}
    planned = rr.apply(loss, graph.plan(actions))
    size = lambda f: rr.measure(jax.grad(f), *specs, target="h100:1").memory.total_bytes
    assert size(planned) < 0.6 * size(loss)


@pytest.mark.parametrize(
    ("scope", "name"),
    [
        ("stage_5", "stage"),
        ("vmap(stage_5)", "stage"),
        ("transpose(jvp(stage_5))", "stage"),
        ("_0", "_0"),
    ],
)
def test_names_are_without_numbers_and_transformations(scope, name):
    assert _label(scope) == name
