"""Activations in one's own code: laid out, gathered and scattered by their names."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import UserError, sharding

WIDTH, HIDDEN, BATCH, LENGTH = 8, 16, 2, 8


@pytest.fixture(scope="module")
def mesh():
    return sharding.make_mesh({"data": 2, "model": 4})


def block(layout, w, x):
    """A residual MLP whose norm is cut along the sequence."""
    normed = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1.0)
    whole = layout.gather(normed, name="normed")
    h = layout(jnp.tanh(whole @ w["up"]), "batch", "length", "mlp")
    return x + layout.scatter(h @ w["down"])


def plain(w, x):
    normed = x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1.0)
    return ((x + jnp.tanh(normed @ w["up"]) @ w["down"]) ** 2).mean()


def arguments():
    random = np.random.default_rng(0)
    w = {
        "up": random.normal(size=(WIDTH, HIDDEN)),
        "down": random.normal(size=(HIDDEN, WIDTH)),
    }
    return jax.tree.map(jnp.asarray, w), jnp.asarray(
        random.normal(size=(BATCH, LENGTH, WIDTH))
    )


def by_compiler(mesh, rules):
    layout = sharding.Layout(mesh, rules)
    return lambda w, x: (
        block(layout, w, layout(x, "batch", "norm_length", "embed")) ** 2
    ).mean()


def by_hand(mesh, rules):
    """The same inside of `jax.shard_map`, where gather and scatter are collectives."""
    layout = sharding.Layout(mesh, rules)
    place = functools.partial(rules.spec, axis_sizes=dict(mesh.shape))
    stream = place(("batch", "norm_length", "embed"), (BATCH, LENGTH, WIDTH))
    weights = {"up": jax.P(None, "model"), "down": jax.P("model")}

    def part(w, x):
        squares = (block(layout, w, x) ** 2).sum()
        return jax.lax.psum(squares, ("data", "model")) / (BATCH * LENGTH * WIDTH)

    return jax.shard_map(part, mesh=mesh, in_specs=(weights, stream), out_specs=jax.P())


@pytest.mark.parametrize("form", [by_compiler, by_hand])
def test_gradients_are_those_of_one_device(mesh, form):
    with jax.enable_x64(True):
        w, x = arguments()
        loss = form(mesh, sharding.megatron(sequence=True))
        found = jax.jit(jax.grad(loss, (0, 1)))(w, x)
        expected = jax.grad(plain, (0, 1))(w, x)
    for one, other in zip(
        jax.tree.leaves(found), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("sequence", [False, True])
def test_a_layer_has_the_collectives_of_its_kind(sequence):
    """With sequence parallelism the stream is gathered and scattered."""
    target = rr.target("h100:8")
    mesh = target.mesh({"data": 1, "model": 8})
    rules = sharding.megatron(sequence=sequence)
    layout = sharding.Layout(mesh, rules)
    width, length = 256, 1024

    def loss(w, x):
        x = layout(x, "batch", "norm_length", "embed")
        return (block(layout, w, x) ** 2).mean()

    shard = lambda *entries: jax.NamedSharding(mesh, jax.P(*entries))
    like = lambda shape, where: jax.ShapeDtypeStruct(shape, jnp.float32, sharding=where)
    w = {
        "up": like((width, 4 * width), shard(None, "model")),
        "down": like((4 * width, width), shard("model")),
    }
    step = jax.grad(loss)
    text = rr.xla.compile_step(step, (w, like((1, length, width), shard())), target).hlo
    kinds = [
        i.opcode
        for c in rr.xla.Module.from_bytes(text).computations.values()
        for i in c.instructions
    ]
    count = lambda kind: sum(k in (kind, f"{kind}-start") for k in kinds)
    assert count("all-to-all") == 0
    assert bool(count("all-gather")) == sequence
    assert bool(count("reduce-scatter")) == sequence


def test_the_line_of_a_mistake_is_told(mesh):
    layout = sharding.Layout(mesh, sharding.megatron())
    with pytest.raises(UserError, match=r"float32 array at test_layout.py:\d+ of"):
        layout(jnp.ones((2, 8)), "batch", "hidden")


def test_a_shard_map_over_a_part_of_the_mesh_is_refused(mesh):
    layout = sharding.Layout(mesh, sharding.megatron())
    half = jax.shard_map(
        lambda x: layout(x, "batch"),
        mesh=mesh,
        in_specs=jax.P("data"),
        out_specs=jax.P("data"),
        axis_names={"data"},
    )
    with pytest.raises(UserError, match=r"leaves axes .* \['model'\]"):
        jax.jit(half)(jnp.ones(4))
