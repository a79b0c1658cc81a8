"""The networks that RevBiFPN is compared with, against their published counts."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from experiments.models.efficientnet import EFFICIENTNET, EfficientNet
from experiments.models.hrnet import HRNET, HRNet, Pyramid

PARAMETERS = {
    "B0": 5_288_548,
    "B1": 7_794_184,
    "B2": 9_109_994,
    "B3": 12_233_232,
    "B4": 19_341_616,
    "B5": 30_389_784,
    "B6": 43_040_704,
    "B7": 66_347_960,
    "W18": 21_299_004,
    "W32": 41_232_680,
    "W48": 77_469_864,
}


def abstract(name):
    rngs = lambda: nnx.Rngs(0)
    if name in HRNET:
        return nnx.eval_shape(lambda: HRNet(HRNET[name], rngs=rngs()))
    return nnx.eval_shape(lambda: EfficientNet(EFFICIENTNET[name], rngs=rngs()))


@pytest.mark.parametrize("name", ["B0", "B7", "W18"])
def test_parameters_are_the_published_ones(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(PARAMETERS) - {"B0", "B7", "W18"}))
def test_parameters_of_the_others_are_the_published_ones(name):
    check(name)


def check(name):
    leaves = jax.tree.leaves(nnx.state(abstract(name), nnx.Param))
    assert sum(leaf.size for leaf in leaves) == PARAMETERS[name]


@pytest.mark.parametrize("name", ["B0", pytest.param("W18", marks=pytest.mark.slow)])
def test_logits_of_an_image(name):
    graph, state = nnx.split(abstract(name))
    image = jax.ShapeDtypeStruct((2, 64, 96, 3), jnp.float32)
    logits = jax.eval_shape(
        lambda s, x: nnx.merge(graph, s, copy=True)(x), state, image
    )
    assert logits.shape == (2, 1000)


def test_levels_of_a_pyramid():
    streams = tuple(
        jax.ShapeDtypeStruct((1, 64 // 2**k, 96 // 2**k, 18 * 2**k), jnp.float32)
        for k in range(4)
    )
    make = lambda: Pyramid((18, 36, 72, 144), dtype=None, rngs=nnx.Rngs(0))
    levels = nnx.eval_shape(lambda *s: make()(s), *streams)
    assert [level.shape for level in levels] == [
        (1, 64 // 2**k, 96 // 2**k, 256) for k in range(5)
    ]
