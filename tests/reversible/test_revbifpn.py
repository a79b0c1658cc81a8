"""RevBiFPN S0 to S6 against the published counts, to the integer."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from revremat.reversible import REVBIFPN, RevBiFPN
from revremat.reversible.nnx import RevSilo
from tests.reversible.counts import count

# Parameters, multiply-accumulates of convolutions and linear layers, and those by the
# rule of the published numbers.
PUBLISHED = {
    "S0": (3_419_196, 269_409_648, 308_039_716),
    "S1": (5_112_300, 550_806_528, 616_781_508),
    "S2": (10_576_528, 1_269_423_104, 1_370_329_000),
    "S3": (19_574_184, 3_123_379_040, 3_330_873_312),
    "S4": (48_687_336, 10_167_773_440, 10_632_222_080),
    "S5": (81_998_976, 21_103_385_712, 21_848_995_912),
    "S6": (142_307_972, 37_003_772_256, 38_084_434_748),
}
# Reversible stack, neck, head; then running means and variances.
SHARES = {
    "S0": (1_308_750, 247_578, 1_862_868, 43_008),
    "S1": (2_040_258, 399_466, 2_672_576, 54_688),
    "S2": (4_772_252, 948_788, 4_855_488, 86_016),
    "S3": (10_574_744, 1_592_406, 7_407_034, 141_216),
    "S4": (30_742_248, 3_712_104, 14_232_984, 262_912),
    "S5": (52_779_582, 6_438_098, 22_781_296, 346_464),
    "S6": (98_676_316, 10_030_270, 33_601_386, 508_512),
}


def size(module, kind=nnx.Param):
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, kind)))


OFTEN = ("S0",)
ALL = [
    name if name in OFTEN else pytest.param(name, marks=pytest.mark.slow)
    for name in REVBIFPN
]


@pytest.fixture(scope="module", params=ALL)
def variant(request):
    """A name and the model in the abstract."""
    config = REVBIFPN[request.param]
    model = nnx.eval_shape(lambda: RevBiFPN(config, rngs=nnx.Rngs(0)))
    model.eval()
    return request.param, model


@pytest.mark.slow
def test_parameters_and_macs_equal_the_published_ones(variant):
    name, model = variant
    graph, state = nnx.split(model)
    size_px = model.config.image_size
    images = jax.ShapeDtypeStruct((1, size_px, size_px, 3), jnp.float32)
    found = count(lambda state, x: nnx.merge(graph, state, copy=True)(x), state, images)
    # The published rule: one for each biased output, two for each number that batch
    # norm gives, eleven for each that up-sampling gives.
    assert found.norms == found.convs - found.biased_convs
    normed = found.conv_outputs - found.biased_outputs
    published = found.macs + found.biased_outputs + 2 * normed + 11 * found.upsampled
    assert (size(model), found.macs, published) == PUBLISHED[name]


def test_every_part_has_its_share(variant):
    name, model = variant
    shares = tuple(size(part) for part in (model.stack, model.neck, model.head))
    assert (*shares, size(model, nnx.BatchStat)) == SHARES[name]


@pytest.mark.parametrize("more_layers", [0, 1])
def test_depth_is_stochastic_but_where_a_stream_is_made(more_layers):
    """A map that makes a stream has nothing to be left out of."""
    config = replace(REVBIFPN["S0"], more_layers=more_layers, stochastic_depth=0.5)
    model = nnx.eval_shape(lambda: RevBiFPN(config, rngs=nnx.Rngs(0)))
    silos = [m for _, m in nnx.iter_modules(model.stack) if isinstance(m, RevSilo)]
    is_drop = lambda m: isinstance(m, nnx.Dropout)
    rate = lambda m: sum(d.rate for _, d in nnx.iter_modules(m) if is_drop(d))
    groups = 3 + more_layers
    assert [silo.num_inputs for silo in silos] == [1, 2, 3, 4, 4][:groups]
    for group, silo in enumerate(silos, start=1):
        for name, module in silo.maps.items():
            makes = group <= 3 and name.startswith("down") and name[-1] == str(group)
            expected = 0.0 if makes else 0.5 * group / groups
            assert rate(module) == pytest.approx(expected), (group, name)
