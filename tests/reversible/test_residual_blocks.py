"""Which modules are residual blocks, and the branches of each: by lists alone."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from revremat.reversible import REVBIFPN, RevBiFPNConfig, from_plain
from revremat.reversible._from_plain import (
    Increment,
    Passed,
    RevResidual,
    _Finder,
    _holds_arrays,
    _pairs,
)


class A(nnx.Module):
    def __init__(self, scale=1.0):
        self.scale = nnx.Param(jnp.float32(scale))

    def __call__(self, x):
        return x + jnp.sin(self.scale * x)


class B(A):
    pass


def runs(pattern, blocks=None):
    """Where runs begin and how long they are, in a list of modules by letters."""
    does = {"a": A, "b": B, "n": lambda: nnx.identity, "d": lambda: nnx.Dropout(0.1)}
    modules = [does[letter]() for letter in pattern]
    return [(start, len(run)) for start, run in _Finder(blocks).runs(modules)]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("", []),
        ("a", []),
        ("aa", [(0, 2)]),
        ("ab", []),
        ("aab", [(0, 2)]),
        ("abb", [(1, 2)]),
        ("abba", [(1, 2)]),
        ("aabb", [(0, 4)]),
        # What stands at the other end is no neighbour.
        ("aba", []),
        ("abab", []),
        ("aabaa", [(0, 2), (3, 2)]),
        ("naa", [(1, 2)]),
        ("aan", [(0, 2)]),
        ("ana", []),
        ("dd", []),  # Flax's own
        ("ddaa", [(2, 2)]),
    ],
)
def test_by_default_they_are_neighbours_of_one_class(pattern, found):
    assert runs(pattern) == found


@pytest.mark.parametrize(
    ("blocks", "found"),
    [
        (A, [(0, 2), (3, 1)]),  # and of classes made of it
        (B, [(1, 1)]),
        ((B, nnx.Dropout), [(1, 1), (4, 1)]),
        (lambda module: isinstance(module, B), [(1, 1)]),
        (lambda module: None, []),
        (lambda module: True, [(0, 2), (3, 2)]),
    ],
)
def test_they_are_what_is_said_to_be_one(blocks, found):
    assert runs("abnad", blocks) == found


def test_a_block_is_one_branch_unless_it_says_which():
    one, two = A(), B()
    find = lambda said: _Finder(lambda module: said).branches(one)
    (alone,) = find(True)
    assert isinstance(alone, Increment)
    assert alone.block is one
    assert find(False) is find(None) is None
    assert find([two]) == [two]
    first, second = find([(two, jnp.tanh), one])
    assert [*first.layers] == [two, jnp.tanh]
    assert second is one
    assert find([(two,)]) == [two]
    assert _Finder(None).branches(jnp.tanh) is None


@pytest.mark.parametrize("count", range(1, 6))
def test_branches_are_paired_and_the_last_may_be_alone(count):
    branches = [A() for _ in range(count)]
    pairs = _pairs(branches)
    assert len(pairs) == -(-count // 2)
    held = [[*pair.maps.values()] for pair in pairs]
    assert [one for pair in held for one in pair] == branches
    assert all(len(pair) == 2 for pair in held[:-1])


def closure(array):
    return lambda x: x + array


class Holder:
    weight = None

    def method(self, x):
        return x


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (jnp.tanh, False),
        (lambda x: x, False),
        (closure(2.0), False),
        (closure(jnp.ones(1)), True),
        (closure(A()), True),
        (A().__call__, True),
        (Holder().method, False),
    ],
)
def test_what_holds_arrays(function, found):
    assert _holds_arrays(function) == found


class Net(nnx.Module):
    """Two lists, one of which is held twice."""

    def __init__(self, one, two):
        self.one, self.two = nnx.List(one), nnx.List(two)
        self.again = self.one


def places(blocks):
    return [type(block) for block in blocks]


def test_every_list_of_blocks_is_replaced_once():
    model = from_plain(Net([A(), A(), B()], [B(), A(), A(), A()]))
    assert places(model.one) == [RevResidual, Passed, B]
    assert places(model.two) == [B, RevResidual, Passed, Passed]
    assert model.again is model.one


def test_a_list_gives_back_one_module_where_nothing_else_is_in_it():
    assert isinstance(from_plain([A(), A()]), RevResidual)
    assert isinstance(from_plain([A()], A), RevResidual)
    beside = from_plain([A(), A(), B()])
    assert places(beside) == [RevResidual, Passed, B]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_each_adds_to_one_stream_what_it_says_of_the_other(count):
    blocks = [A(0.5 + k) for k in range(count)]
    x = jnp.linspace(0.1, 1, 4)
    streams = [x, x]
    for k, block in enumerate(blocks):
        streams[k % 2] = streams[k % 2] + jnp.sin(block.scale * streams[1 - k % 2])
    found = from_plain(blocks, A)(x)
    assert jnp.allclose(found, streams[0] + streams[1] - x, atol=1e-6)


# ---- The published family ------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "image", "channels", "head", "groups", "dropout", "depth"),
    [
        ("S0", 224, (48, 64, 80, 160), (48, 64, 128, 320), 5, 0.25, 0.0),
        ("S1", 256, (64, 80, 96, 208), (64, 80, 160, 416), 5, 0.25, 0.0),
        ("S2", 256, (96, 128, 160, 320), (96, 128, 256, 640), 5, 0.3, 0.0),
        ("S3", 288, (128, 160, 208, 416), (128, 160, 336, 848), 6, 0.3, 0.05),
        ("S4", 320, (192, 256, 320, 640), (192, 256, 512, 1280), 7, 0.4, 0.1),
        ("S5", 352, (256, 336, 416, 848), (256, 336, 672, 1696), 7, 0.4, 0.1),
        ("S6", 352, (320, 416, 528, 1056), (320, 416, 848, 2128), 8, 0.6, 0.3),
    ],
)
def test_the_seven_that_were_published(
    name, image, channels, head, groups, dropout, depth
):
    config = REVBIFPN[name]
    assert config.image_size == image
    assert (config.channels, config.head_channels) == (channels, head)
    assert config.more_layers + 3 == groups
    assert (config.dropout, config.stochastic_depth) == (dropout, depth)
    assert (config.num_classes, config.neck) == (1000, True)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"image_size": 40}, "choose 64"),
        ({"image_size": 63}, "choose 64"),
        ({"neck": False}, "a classifier reads the neck"),
        ({"width": 0.33}, "leaves no channels"),
    ],
)
def test_configurations_that_are_none(given, said):
    with pytest.raises(ValueError, match=said):
        RevBiFPNConfig(**given)
    RevBiFPNConfig(image_size=64, width=1 / 3, neck=False, num_classes=None)


def test_copies_are_made_and_arrays_are_not():
    blocks = [A(), A()]
    made = from_plain(blocks)
    arrays = lambda one: {id(leaf) for leaf in jax.tree.leaves(nnx.state(one))}
    assert arrays(made) == arrays(nnx.List(blocks))
    assert [type(one) for one in blocks] == [A, A]
