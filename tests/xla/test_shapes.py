"""Shapes as XLA writes them: dtypes, layouts, strides; and modules that are damaged."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from revremat import UserError
from revremat.xla.hlo._hlo import (
    _DTYPES,
    dtype_of,
    elements_of,
    is_tuple,
    kind_of,
    leaves,
    size_of,
    subshape,
)
from revremat.xla.hlo._schema import HloProto, ModuleProto
from revremat.xla.step_time._access import (
    SETS,
    Access,
    _fastest,
    _same_stride,
    _stride,
    sets_of,
)
from tests.xla.modules import Program

X = (4,)


def bits_of(name):
    if name in ("bool", "complex64", "complex128"):
        return 8 * np.dtype(name).itemsize
    if name.startswith(("int", "uint")):
        return ml_dtypes.iinfo(jnp.dtype(name)).bits
    return ml_dtypes.finfo(jnp.dtype(name)).bits


@pytest.mark.parametrize("name", [name for name, _ in _DTYPES.values()])
def test_dtypes_have_the_numbers_and_bits_that_they_have_in_jax(name):
    with jax.enable_x64(True):
        lowered = jax.jit(lambda x: x).lower(jax.ShapeDtypeStruct((5,), name))
        data = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    proto = HloProto()
    proto.hlo_module.CopyFrom(ModuleProto.FromString(data))
    (shape,) = proto.hlo_module.program_shape.parameters
    assert _DTYPES[shape.element_type] == (name, bits_of(name))
    assert kind_of(shape) == ((5,), name)
    assert size_of(shape) == -(-5 * bits_of(name) // 8)


def shape_of(shape, *order):
    """Of an array, its dimensions from the densest on."""
    program = Program()
    i = program.entry.add("parameter", shape)
    i.shape.layout.minor_to_major.extend(order)
    return i.shape


def test_parts_of_tuples():
    shape = shape_of([(2,), [(3,), (5,)], ()])
    assert is_tuple(shape)
    assert [elements_of(leaf) for leaf in leaves(shape)] == [2, 3, 5, 1]
    assert elements_of(subshape(shape, (1, 1))) == 5
    assert elements_of(subshape(shape, (0,))) == 2
    assert subshape(shape, ()) is shape
    assert is_tuple(subshape(shape, (1, 7)))  # as far as there is one
    assert dtype_of(shape) == ""


@pytest.mark.parametrize(
    ("shape", "order", "fastest", "strides"),
    [
        ((3, 5), (1, 0), 1, [5, 1]),
        ((3, 5), (0, 1), 0, [1, 3]),
        ((3, 2), (1, 0), 1, [2, 1]),
        ((3, 1), (1, 0), 0, [1, 1]),
        ((2, 3, 5), (1, 2, 0), 1, [15, 1, 3]),
        ((1, 1), (1, 0), None, [1, 1]),
        ((), (), None, []),
    ],
)
def test_what_lies_densest_and_how_far_apart_the_others_are(
    shape, order, fastest, strides
):
    found = shape_of(shape, *order)
    assert _fastest(found) == fastest
    assert [_stride(found, d) for d in range(len(shape))] == strides


@pytest.mark.parametrize(
    ("shape", "d", "other", "found"),
    [
        ((6, 5), 0, (2, 3, 5), 1),
        ((6, 5), 1, (2, 3, 5), 2),
        ((2, 3, 5), 0, (6, 5), None),
        ((2, 3, 5), 1, (6, 5), 0),
        ((6, 5), 0, (6, 1, 5), 0),
        ((6, 1, 5), 1, (6, 5), 0),
    ],
)
def test_the_dimension_that_is_as_far_apart(shape, d, other, found):
    in_order = lambda s: shape_of(s, *reversed(range(len(s))))
    assert _same_stride(in_order(shape), d, in_order(other)) == found


@pytest.mark.parametrize(
    ("pitch", "sets"),
    [
        (64, SETS),
        (65, SETS),
        (0, SETS),
        (128, SETS // 2),
        (192, SETS),
        (256, SETS // 4),
        (384, SETS // 2),
        (4096, 1),
        (8192, 1),
        (4096 + 64, SETS),
    ],
)
def test_lines_that_lie_a_power_of_two_apart_share_few_sets(pitch, sets):
    assert sets_of(pitch) == sets


def test_a_cache_is_crowded_where_few_sets_hold_too_many_lines():
    assert not Access(1.0, 1e9).crowded  # on all sets
    assert Access(1.0, 1e9).on_all_sets
    holds = 4 * 8 * 64  # sets, ways, bytes of a line
    assert not Access(1.0, holds, sets=4).crowded
    assert Access(1.0, holds + 1, sets=4).crowded
    assert not Access(1.0, 0.0, sets=SETS - 1).on_all_sets


def test_the_schedule_says_the_order():
    program = Program()
    one, two = (program.entry.add("negate", X) for _ in "12")
    entry = program.proto.hlo_module.schedule.sequences.add(key=program.entry.proto.id)
    entry.value.instruction_ids.extend([two.id, one.id])
    module = program.module()
    assert [i.id for i in module.entry.instructions] == [two.id, one.id]
    assert module.entry.root.id == two.id


def unknown_instruction(program):
    entry = program.proto.hlo_module.schedule.sequences.add(key=program.entry.proto.id)
    entry.value.instruction_ids.append(99)


def unknown_root(program):
    program.entry.proto.root_id = 99


def no_entry(program):
    program.proto.hlo_module.entry_computation_id = 99


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (unknown_instruction, "schedules instructions it does not have"),
        (unknown_root, "schedules instructions it does not have"),
        (no_entry, "has no entry computation"),
    ],
)
def test_damaged_modules_are_refused(damage, said):
    program = Program()
    program.entry.add("negate", X)
    damage(program)
    with pytest.raises(UserError, match=said):
        program.module()
