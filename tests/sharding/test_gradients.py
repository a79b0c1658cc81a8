"""Each table of rules leaves gradients and statistics of an unmodified model as one."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from revremat import sharding

BATCH, LENGTH, WIDTH, HIDDEN, HEADS, HEAD = 8, 16, 8, 16, 4, 2
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
    """Statistics of its batch, attention, an MLP, and dropout in both."""

    @nn.compact
    def __call__(self, x):
        init = nn.initializers.lecun_normal()
        named = lambda *names: nn.with_logical_partitioning(init, names)
        dropped = nn.Dropout(0.25, deterministic=False)
        x = nn.with_logical_constraint(x, STREAM)
        y = nn.BatchNorm(use_running_average=False)(x)
        y = nn.DenseGeneral(
            (3, HEADS, HEAD),
            use_bias=False,
            kernel_init=named("embed", None, "heads", "kv"),
        )(y)
        heads = "batch", "length", "heads", "kv"
        q, k, v = (nn.with_logical_constraint(y[:, :, i], heads) for i in range(3))
        pairs = dropped(jax.nn.softmax(jnp.einsum("blhk,bmhk->bhlm", q, k)))
        y = nn.with_logical_constraint(jnp.einsum("bhlm,bmhk->blhk", pairs, v), heads)
        y = nn.DenseGeneral(
            WIDTH,
            axis=(-2, -1),
            use_bias=False,
            kernel_init=named("heads", "kv", "embed"),
        )(y)
        x = nn.with_logical_constraint(x + y, STREAM)
        y = nn.BatchNorm(use_running_average=False)(x)
        y = nn.Dense(HIDDEN, use_bias=False, kernel_init=named("embed", "mlp"))(y)
        y = nn.with_logical_constraint(jnp.tanh(y), ("batch", "length", "mlp"))
        y = nn.Dense(WIDTH, use_bias=False, kernel_init=named("mlp", "embed"))(y)
        return nn.with_logical_constraint(x + dropped(y), STREAM)


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


def spread(params, dtype, mesh, *rules):
    """Parameters of a dtype, where rules place them."""
    place = sharding.resolve([*rules], params, mesh)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), nn.unbox(params))
    return params, jax.tree.map(jax.device_put, params, nn.unbox(place))


def check(found, expected, error):
    """Leaf by leaf, relative to a leaf's largest entry where that is above one."""
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        most = error * max(1.0, float(jnp.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=0, atol=most)


@pytest.mark.every_commit("all-float64-1e-10")
@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-10), ("float32", 1e-6)])
@pytest.mark.parametrize("case", RULES)
def test_gradients_and_statistics_are_those_of_one_device(case, dtype, error):
    sizes, rules = RULES[case]
    mesh = sharding.make_mesh(sizes)
    with jax.enable_x64(dtype == "float64"):
        params, stats, x = state(dtype)
        params, placed = spread(params, dtype, mesh, sharding.Logical(rules))
        grad = lambda loss: jax.jit(jax.grad(loss, (0, 2), has_aux=True))
        found = grad(sharding.under(mesh, rules)(loss))(placed, stats, x)
        check(found, grad(loss)(params, stats, x), error)


ALL = sharding.FSDP("data", min_size=0)
STAGES = {
    # Where weights, moments and gradients lie (Rajbhandari et al. 2020).
    1: ((sharding.Replicate(),), (ALL,), (sharding.Replicate(),)),
    2: ((sharding.Replicate(),), (ALL,), (ALL,)),
    3: ((ALL,), (ALL,), (ALL,)),
}


@pytest.mark.every_commit("2-float64-1e-10")
@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-10), ("float32", 1e-6)])
@pytest.mark.parametrize("stage", STAGES)
def test_steps_with_zero_are_those_of_one_device(stage, dtype, error):
    """Two steps with momentum: weights, moments and statistics."""
    mesh, rules = sharding.make_mesh({"data": 8}), sharding.data_parallel()
    tx = optax.sgd(0.1, momentum=0.9)

    def train(loss, place=lambda gradients: gradients):
        def step(params, moments, stats, x):
            gradients, stats = jax.grad(loss, has_aux=True)(params, stats, x)
            updates, moments = tx.update(place(gradients), moments)
            return optax.apply_updates(params, updates), moments, stats

        return jax.jit(step)

    with jax.enable_x64(dtype == "float64"):
        params, stats, x = state(dtype)
        whole = jax.tree.map(lambda leaf: leaf.astype(dtype), nn.unbox(params))
        where = [sharding.resolve([*r], whole, mesh) for r in STAGES[stage]]
        of_moments = sharding.resolve([*STAGES[stage][1]], tx.init(whole), mesh)
        place = lambda g: jax.tree.map(jax.lax.with_sharding_constraint, g, where[2])
        alone = whole, tx.init(whole), stats
        cut = (
            jax.tree.map(jax.device_put, whole, where[0]),
            jax.tree.map(jax.device_put, tx.init(whole), of_moments),
            stats,
        )
        one, all_of_them = (
            train(loss),
            train(sharding.under(mesh, rules)(loss), place),
        )
        for _ in range(2):
            alone, cut = one(*alone, x), all_of_them(*cut, x)
        check(cut, alone, error)
        parts = {leaf.sharding.num_devices for leaf in jax.tree.leaves(cut[1])}
        assert parts == {8}
