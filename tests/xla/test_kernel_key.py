"""A kernel's name says what it does, and nothing of the program around it."""

import jax
import jax.numpy as jnp
import pytest

from revremat.xla import Module, read_compiled
from revremat.xla.hlo._kernel_key import kernel_key
from tests.xla.modules import BF16, Program


def key(
    opcodes=("add", "tanh"),
    size=(8, 4),
    dtype=11,
    layout=(1, 0),
    before=0,
    label="",
    number=1,
):
    """Of a fusion that does `opcodes` one after the other, the first with a number."""
    program = Program()
    for _ in range(before):  # other numbers and names
        program.entry.kernel(1)
    inside = program.computation(f"inside{label}")
    value = inside.add("parameter", size, dtype=dtype)
    constant = inside.add("constant", size, dtype=dtype)
    constant.literal.s32s.append(number)
    value = inside.add(opcodes[0], size, value, constant, dtype=dtype, op_name=label)
    for opcode in opcodes[1:]:
        value = inside.add(opcode, size, value, dtype=dtype, op_name=label)
    argument = program.entry.add("parameter", size, dtype=dtype)
    fusion = program.entry.add("fusion", size, argument, dtype=dtype, calls=[inside])
    for i in (argument, fusion, *inside.proto.instructions):
        i.shape.layout.minor_to_major[:] = layout
    module = program.module()
    return kernel_key(module.instructions[fusion.id], module)


@pytest.mark.parametrize("other", [{"before": 3}, {"label": "layer_7"}, {"number": 2}])
def test_names_places_and_constants_do_not_matter(other):
    assert key(**other) == key()


@pytest.mark.parametrize(
    "other",
    [
        {"opcodes": ("multiply", "tanh")},
        {"opcodes": ("add", "tanh", "tanh")},
        {"size": (4, 8)},
        {"dtype": BF16},
        {"layout": (0, 1)},
    ],
)
def test_what_is_done_and_to_what_does(other):
    assert key(**other) != key()


def test_which_operand_is_which_does():
    def subtracted(first, second):
        program = Program()
        inside = program.computation("inside")
        left, right = (inside.add("parameter", (8,)) for _ in range(2))
        left.parameter_number, right.parameter_number = 0, 1
        values = [left, inside.add("tanh", (8,), right)]
        inside.add("subtract", (8,), values[first], values[second])
        arguments = [program.entry.add("parameter", (8,)) for _ in range(2)]
        fusion = program.entry.add("fusion", (8,), *arguments, calls=[inside])
        module = program.module()
        return kernel_key(module.instructions[fusion.id], module)

    assert subtracted(0, 1) == subtracted(0, 1)
    assert len({subtracted(0, 1), subtracted(1, 0), subtracted(1, 1)}) == 3


def test_layers_alike_have_kernels_alike_in_programs_of_any_depth():
    def keys(depth):
        def run(w, x):
            for _ in range(depth):
                x = jnp.tanh(x @ w) * 2
            return x

        compiled = jax.jit(run).lower(jnp.ones((64, 64)), jnp.ones((32, 64))).compile()
        module = Module.from_bytes(read_compiled(compiled).hlo)
        kernels = [i for i in module.entry.instructions if i.opcode != "parameter"]
        return [kernel_key(i, module) for i in kernels]

    assert set(keys(5)) == set(keys(3))
    assert len(set(keys(5))) < len(keys(5))
