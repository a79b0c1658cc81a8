"""Each table of rules leaves gradients and statistics of an unmodified model as one."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from revremat import sharding

BATCH, LENGTH, WIDTH, HIDDEN = 8, 16, 8, 16
STREAM = "batch", "norm_length", "embed"
RULES = {
    "data": ({"data": 8}, sharding.data_parallel()),
    "fsdp": ({"data": 2, "fsdp": 4}, sharding.data_parallel(fsdp="fsdp")),
    "tensor": ({"data": 2, "model": 4}, sharding.megatron()),
    "sequence": ({"data": 2, "model": 4}, sharding.megatron(sequence=True)),
    "context": ({"data": 2, "context": 4}, sharding.context_parallel()),
    "all": (
        {"data": 1, "fsdp": 2, "context": 2, "model": 2},
        sharding.megatron(sequence=True, fsdp="fsdp", context="context"),
    ),
}


class Model(nn.Module):
    """A residual MLP with statistics of its batch, and dropout."""

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        named = lambda *names: nn.with_logical_partitioning(init, names)
        x = nn.with_logical_constraint(x, STREAM)
        y = nn.BatchNorm(use_running_average=False)(x)
        y = nn.Dense(HIDDEN, use_bias=False, kernel_init=named("embed", "mlp"))(y)
        y = nn.with_logical_constraint(jnp.tanh(y), ("batch", "length", "mlp"))
        y = nn.Dense(WIDTH, use_bias=False, kernel_init=named("mlp", "embed"))(y)
        y = nn.Dropout(0.25, deterministic=False)(y)
        return nn.with_logical_constraint(x + y, STREAM)


def loss(params, stats, x):
    out, changed = Model().apply(
        {"params": params, "batch_stats": stats},
        x,
        rngs={"dropout": jax.random.key(1)},
        mutable=["batch_stats"],
    )
    return (out**3).mean(), changed["batch_stats"]


def state(dtype):
    keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
    x = jnp.asarray(np.random.default_rng(0).normal(size=(BATCH, LENGTH, WIDTH)), dtype)
    made = Model().init(keys, x)
    cast = lambda tree: jax.tree.map(lambda leaf: leaf.astype(dtype), tree)
    return made["params"], cast(made["batch_stats"]), x


@pytest.mark.every_commit("all-float64-1e-10")
@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-10), ("float32", 1e-6)])
@pytest.mark.parametrize("case", RULES)
def test_gradients_and_statistics_are_those_of_one_device(case, dtype, error):
    sizes, rules = RULES[case]
    mesh = sharding.make_mesh(sizes)
    with jax.enable_x64(dtype == "float64"):
        params, stats, x = state(dtype)
        place = sharding.resolve([sharding.Logical(rules)], params, mesh)
        params = jax.tree.map(lambda leaf: leaf.astype(dtype), nn.unbox(params))
        spread = jax.tree.map(jax.device_put, params, nn.unbox(place))
        grad = lambda loss: jax.jit(jax.grad(loss, (0, 2), has_aux=True))
        found = grad(sharding.under(mesh, rules)(loss))(spread, stats, x)
        expected = grad(loss)(params, stats, x)
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=error)
