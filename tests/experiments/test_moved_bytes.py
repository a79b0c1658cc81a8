"""Kernels by what they are made of: a table."""

import pytest

from experiments.bench.moved_bytes import class_of
from tests.xla.modules import Program

MADE_OF = {
    ("dynamic-slice", "multiply", "dynamic-update-slice"): "elementwise",
    ("dynamic-slice", "convert", "dynamic-update-slice"): "residual writes",
    ("constant", "broadcast"): "zero fills",
    ("dynamic-slice", "bitcast"): "slice copies",
    ("slice", "convert"): "slice copies",
    ("transpose",): "other copies",
    ("dot", "add"): "products",
    ("multiply", "reduce"): "reductions",
    ("multiply", "add"): "elementwise",
    ("broadcast", "add"): "elementwise",
}


@pytest.mark.parametrize("opcodes", MADE_OF, ids=" ".join)
def test_a_fusion_is_what_it_is_made_of(opcodes):
    program = Program()
    inside = program.computation("inside")
    for opcode in opcodes:
        inside.add(opcode, (10,))
    fusion = program.entry.add("fusion", (10,), calls=[inside])
    module = program.module()
    assert class_of(module.instructions[fusion.id], module) == MADE_OF[opcodes]


@pytest.mark.parametrize(
    ("target", "kind"), [("__cublas$gemm", "products"), ("other", "other")]
)
def test_a_librarys_kernel_is_what_it_is_called(target, kind):
    program = Program()
    call = program.entry.add("custom-call", (10,), custom_call_target=target)
    module = program.module()
    assert class_of(module.instructions[call.id], module) == kind


def test_arithmetic_of_an_index_is_no_arithmetic():
    program = Program()
    inside = program.computation("inside")
    for opcode in ("add", "select"):
        inside.add(opcode)
    inside.add("dynamic-update-slice", (10,))
    fusion = program.entry.add("fusion", (10,), calls=[inside])
    module = program.module()
    assert class_of(module.instructions[fusion.id], module) == "residual writes"
