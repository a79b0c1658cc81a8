"""Kernels of attention under tables of rules: no device sends anything for them."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import revremat as rr
from revremat import sharding

pytestmark = pytest.mark.filterwarnings("ignore:The Pallas Triton backend")
HEADS = "batch", "length", "heads", "kv"
TARGET = rr.target("h100:8")


def by_cudnn(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation="cudnn")


def double(x_ref, y_ref):
    y_ref[...] = x_ref[...] * 2


@jax.custom_vjp
def by_pallas(x):
    """A kernel with a derivative that is one, too."""
    batch, length, heads, width = x.shape
    spec = pl.BlockSpec((1, 128, 1, width), lambda b, n, h: (b, n, h, 0))
    return pl.pallas_call(
        double,
        grid=(batch, length // 128, heads),
        in_specs=[spec],
        out_specs=spec,
        out_shape=jax.typeof(x),
    )(x)


by_pallas.defvjp(lambda x: (by_pallas(x), None), lambda _, g: (by_pallas(g),))


def spread(sizes, rules):
    """A layout, and queries, keys and values where their names say."""
    layout = sharding.Layout(TARGET.mesh(sizes), rules)
    like = jax.ShapeDtypeStruct((4, 1024, 8, 64), jnp.bfloat16)
    where = jax.NamedSharding(layout.mesh, layout.spec(like, *HEADS))
    x = jax.ShapeDtypeStruct(like.shape, like.dtype, sharding=where)
    return layout, (x, x, x)


def collectives(layout, attend, specs):
    loss = lambda q, k, v: (layout(attend(q, k, v), *HEADS) ** 2).sum()
    gradient = lambda *args: jax.tree.map(
        lambda g: layout(g, *HEADS), jax.grad(loss, (0, 1, 2))(*args)
    )
    found = rr.measure(gradient, *specs, target=TARGET).collectives
    return [one.kind for one in found if one.bytes > 8]


RULES = {
    "tensor": ({"data": 1, "model": 8}, sharding.megatron()),
    "sequence": ({"data": 2, "model": 4}, sharding.megatron(sequence=True)),
    "fsdp": ({"data": 2, "model": 2, "fsdp": 2}, sharding.megatron(fsdp="fsdp")),
}


@pytest.mark.parametrize("case", RULES)
def test_attention_by_cudnn_exchanges_nothing(case):
    """XLA has a partitioner for it: heads and batches are cut."""
    layout, specs = spread(*RULES[case])
    assert collectives(layout, by_cudnn, specs) == []


@pytest.mark.parametrize("case", RULES)
def test_a_kernel_of_pallas_exchanges_nothing_within_shard_map(case):
    layout, specs = spread(*RULES[case])
    spec = layout.spec(specs[0], *HEADS)
    one = jax.shard_map(
        by_pallas, mesh=layout.mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    assert collectives(layout, lambda q, k, v: one(q) + one(k) * one(v), specs) == []


def test_by_itself_it_is_gathered():
    """Nothing tells XLA how to cut it."""
    layout, specs = spread(*RULES["tensor"])
    found = collectives(layout, lambda q, k, v: by_pallas(q) + k * v, specs)
    assert set(found) == {"all-gather"}
