"""Networks as Flax and Equinox users write them; makers as in `program_kinds`."""

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import nnx

from tests.program_kinds import LAYERS, WIDTH, normal


class LinenBlock(nn.Module):
    @nn.compact
    def __call__(self, x, _=None):
        dtype = jnp.result_type(float)
        h = nn.LayerNorm(param_dtype=dtype)(x)
        h = nn.gelu(nn.Dense(2 * WIDTH, param_dtype=dtype)(h))
        return x + nn.Dense(WIDTH, param_dtype=dtype)(h), None


class LinenUnrolled(nn.Module):
    @nn.compact
    def __call__(self, x):
        for _ in range(LAYERS):
            x, _ = LinenBlock()(x)
        return x


class LinenScanned(nn.Module):
    block: type[nn.Module] = LinenBlock

    @nn.compact
    def __call__(self, x):
        stacked = nn.scan(
            self.block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=LAYERS,
        )
        return stacked()(x, None)[0]


def linen(model):
    def make(rows):
        x = normal(0, rows, WIDTH)

        def loss(variables, x):
            return (model.apply(variables, x) ** 2).mean()

        return loss, model.init(jax.random.key(0), x[:1]), x

    return make


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        dtype = jnp.result_type(float)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs, param_dtype=dtype)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs, param_dtype=dtype)
        self.drop = nnx.Dropout(0.2, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs, param_dtype=dtype)

    def __call__(self, x):
        return x + self.down(self.drop(nnx.gelu(self.up(self.norm(x)))))


class NnxList(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([NnxBlock(rngs) for _ in range(LAYERS)])

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


class NnxScanned(nnx.Module):
    def __init__(self, rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked(rngs):
            return NnxBlock(rngs)

        self.layers = stacked(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, length=LAYERS)
        def run(x, layer):
            return layer(x)

        return run(x, self.layers)


def wide(x):
    return x.astype(float) if jnp.issubdtype(x.dtype, jnp.floating) else x


def with_nnx(module):
    """Parameters apart from everything else, which comes out beside the loss."""

    def make(rows):
        structure, params, others = nnx.split(module(nnx.Rngs(0)), nnx.Param, ...)
        others = jax.tree.map(wide, others)

        def loss(params, batch):
            x, others = batch
            model = nnx.merge(structure, params, others, copy=True)
            value = (model(x) ** 2).mean()
            return value, nnx.state(model, nnx.Not(nnx.Param))

        return loss, params, (normal(0, rows, WIDTH), others)

    return make


class EqxBlock(eqx.Module):
    norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        one, two = jax.random.split(key)
        dtype = jnp.result_type(float)
        self.norm = eqx.nn.LayerNorm(WIDTH, dtype=dtype)
        self.up = eqx.nn.Linear(WIDTH, 2 * WIDTH, key=one, dtype=dtype)
        self.down = eqx.nn.Linear(2 * WIDTH, WIDTH, key=two, dtype=dtype)

    def __call__(self, x):
        return x + self.down(jax.nn.gelu(self.up(self.norm(x))))


def equinox_unrolled(rows):
    keys = jax.random.split(jax.random.key(0), LAYERS)
    params, static = eqx.partition([EqxBlock(key) for key in keys], eqx.is_array)

    def loss(params, x):
        for layer in eqx.combine(params, static):
            x = jax.vmap(layer)(x)
        return (x**2).mean()

    return loss, params, normal(0, rows, WIDTH)


def equinox_scanned(rows):
    keys = jax.random.split(jax.random.key(0), LAYERS)
    params, static = eqx.partition(eqx.filter_vmap(EqxBlock)(keys), eqx.is_array)

    def loss(params, x):
        def step(x, one):
            return jax.vmap(eqx.combine(one, static))(x), None

        return (jax.lax.scan(step, x, params)[0] ** 2).mean()

    return loss, params, normal(0, rows, WIDTH)


MODULES = {
    "Linen, unrolled": linen(LinenUnrolled()),
    "Linen, nn.scan": linen(LinenScanned()),
    "Linen, nn.remat in nn.scan": linen(LinenScanned(nn.remat(LinenBlock))),
    "NNX, list of layers": with_nnx(NnxList),
    "NNX, nnx.scan": with_nnx(NnxScanned),
    "Equinox, unrolled": equinox_unrolled,
    "Equinox, scanned": equinox_scanned,
}
