"""Rules: from path and shape to a partition spec, by table and by property."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from revremat._errors import UserError
from revremat.sharding import FSDP, ByPath, Replicate, make_mesh, place, resolve

SIZES = {"data": 2, "fsdp": 2, "model": 2}
MEGATRON = ByPath(((r"up/kernel$", P(None, "model")), (r"down/kernel$", P("model"))))


@pytest.mark.parametrize(
    ("rules", "path", "shape", "spec"),
    [
        ((), "w", (8, 8), P()),
        # FSDP cuts the largest dimension, and the last of equals.
        ((FSDP(min_size=1),), "w", (4, 8), P(None, "fsdp")),
        ((FSDP(min_size=1),), "w", (16, 8), P("fsdp")),
        ((FSDP(min_size=1),), "w", (8, 8), P(None, "fsdp")),
        # ... that the axis divides.
        ((FSDP(min_size=1),), "w", (9, 8), P(None, "fsdp")),
        ((FSDP(min_size=65),), "w", (8, 8), P()),
        ((FSDP(min_size=64),), "w", (8, 8), P(None, "fsdp")),
        # ... and never the one a scan runs over.
        ((FSDP(min_size=1, scanned="blocks"),), "blocks/w", (64, 8), P(None, "fsdp")),
        ((FSDP(min_size=1, scanned="blocks"),), "w", (64, 8), P("fsdp")),
        # Tensor parallelism counts dimensions from the last.
        ((MEGATRON,), "up/kernel", (8, 8), P(None, "model")),
        ((MEGATRON,), "up/kernel", (3, 8, 8), P(None, None, "model")),
        ((MEGATRON,), "opt/mu/down/kernel", (3, 8), P(None, "model")),
        ((MEGATRON,), "up/bias", (8,), P()),
        # Two patterns may say the same; the second rule takes what is free.
        ((ByPath((("w", P("data")), ("^w", P("data")))),), "w", (8,), P("data")),
        ((MEGATRON, FSDP(min_size=1)), "up/kernel", (8, 64), P("fsdp", "model")),
        (
            (ByPath((("w", P(("data", "fsdp"), None)),)),),
            "w",
            (8, 3),
            P(("data", "fsdp")),
        ),
        # A None in a spec leaves to a dimension what an earlier rule gave it.
        ((FSDP(min_size=1), MEGATRON), "up/kernel", (64, 8), P("fsdp", "model")),
        (
            (FSDP(min_size=1), ByPath((("w", P(None, None, "model")),))),
            "w",
            (8, 64, 8),
            P(None, "fsdp", "model"),
        ),
        (
            (
                ByPath((("w", P("data", None)),)),
                ByPath((("w", P(None, "model")),)),
                ByPath((("w", P(None, None)),)),
            ),
            "w",
            (8, 8),
            P("data", "model"),
        ),
        # Replicate closes a leaf for the rules behind it only.
        ((Replicate("w"), FSDP(min_size=1)), "w", (8,), P()),
        ((Replicate("v"), FSDP(min_size=1)), "w", (8,), P("fsdp")),
        ((FSDP(min_size=1), Replicate("w")), "w", (8,), P("fsdp")),
    ],
)
def test_placement(rules, path, shape, spec):
    assert place(rules, path, shape, SIZES) == spec


def test_an_axis_of_size_one_leaves_the_array_whole():
    assert place((MEGATRON,), "up/kernel", (8, 7), SIZES | {"model": 1}) == P()


@pytest.mark.parametrize(
    ("rules", "path", "shape", "sentence"),
    [
        ((MEGATRON,), "up/kernel", (8, 7), "2 parts, which do not divide 7"),
        ((MEGATRON,), "up/kernel", (8,), "has 2 entries .* has 1 dimensions"),
        ((ByPath((("w", P("tp")),)),), "w", (8,), "has only: data, fsdp, model"),
        ((FSDP("zero", min_size=1),), "w", (8,), "has only: data, fsdp, model"),
        ((ByPath((("w", P("data", "data")),)),), "w", (8, 8), "is used twice"),
        ((FSDP(min_size=1),), "w", (7, 9), "no free dimension"),
        (
            (ByPath((("w", P("data")), ("^w$", P("model")))),),
            "w",
            (8,),
            r"'w' and '\^w\$' both match 'w' \(8,\), and say",
        ),
        (
            (ByPath(((r"up/", P("data")), (r"kernel$", P(None, "model")))),),
            "up/kernel",
            (8, 8),
            "make one of them narrower",
        ),
        (
            (FSDP(min_size=1), ByPath((("w", P("model")),))),
            "w",
            (8,),
            "where an earlier rule put",
        ),
    ],
)
def test_impossible_placements_are_refused(rules, path, shape, sentence):
    with pytest.raises(UserError, match=sentence):
        place(rules, path, shape, SIZES)


def test_resolve_names_a_pattern_that_matches_nothing():
    mesh = make_mesh(SIZES)
    shapes = {"a": jax.ShapeDtypeStruct((8,), "float32")}
    with pytest.raises(UserError, match=r"'b.kernel' matches none of the 1 arrays"):
        resolve((ByPath((("b.kernel", P("model")),)),), shapes, mesh)


def test_resolve_keeps_the_tree_and_the_mesh():
    mesh = make_mesh(SIZES)
    shapes = {"a": [jax.ShapeDtypeStruct((8, 4), "float32")], "b": np.zeros(3)}
    where = resolve((FSDP(min_size=8),), shapes, mesh)
    assert where["a"][0].spec == P("fsdp")
    assert where["b"].spec == P()
    assert where["b"].mesh == mesh


def test_paths_are_keys_and_places_with_slashes_between():
    shapes = {"a": [jax.ShapeDtypeStruct((8, 4), "float32")] * 2}
    rule = ByPath((("a/0", P("model")),))
    where = resolve((rule,), shapes, make_mesh(SIZES))
    assert [one.spec for one in where["a"]] == [P(None, "model"), P()]


@given(
    shape=st.lists(st.integers(1, 24), max_size=4).map(tuple),
    min_size=st.integers(0, 200),
    sizes=st.fixed_dictionaries(
        {"fsdp": st.sampled_from([1, 2, 4, 8]), "model": st.sampled_from([1, 2, 4])}
    ),
)
def test_every_placement_divides_its_array(shape, min_size, sizes):
    rules = (FSDP("model", min_size), FSDP("fsdp", min_size))
    try:
        spec = place(rules, "w", shape, sizes)
    except UserError:
        assert math.prod(shape) >= min_size
        return
    used = [axis for axis in spec if axis is not None]
    assert len(used) == len(set(used))
    for extent, axis in zip(shape, spec, strict=False):
        assert axis is None or extent % sizes[axis] == 0
    if math.prod(shape) < min_size:
        assert not used
    else:
        assert set(used) == {axis for axis in sizes if sizes[axis] > 1}
