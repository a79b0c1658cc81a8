"""The collectives of a program: which, how large, how often, and whose."""

import pytest

from revremat.xla import collectives_of, estimate
from tests.xla.modules import S32, Program, machine

ALL = [{"replica_ids": [0, 1, 2, 3]}]


def found(program):
    return collectives_of(program.module(), machine(4))


def test_the_larger_side_of_each_kind_counts():
    program = Program()
    x = program.entry.add("parameter", (8,))
    whole = program.entry.add("all-gather", (32,), x, replica_groups=ALL)
    total = program.entry.add("all-reduce", (32,), whole, replica_groups=ALL)
    program.entry.add("reduce-scatter", (8,), total, replica_groups=ALL)
    assert [(one.kind, one.bytes) for one in found(program)] == [
        ("all-gather", 128),
        ("all-reduce", 128),
        ("reduce-scatter", 128),
    ]


def test_equal_ones_are_counted_together():
    program = Program()
    x = program.entry.add("parameter", (8,))
    for phase in ("jvp(a)", "jvp(a)", "transpose(jvp(a))"):
        op_name = f"jit(f)/{phase}/psum"
        program.entry.add("all-reduce", (8,), x, op_name=op_name, replica_groups=ALL)
    told = [(one.phase, one.scope, one.count) for one in found(program)]
    assert told == [("forward", "a", 2), ("backward", "a", 1)]


def test_groups_of_one_exchange_nothing():
    program = Program()
    x = program.entry.add("parameter", (8,))
    alone = [{"replica_ids": [n]} for n in range(4)]
    program.entry.add("all-reduce", (8,), x, replica_groups=alone)
    assert found(program) == ()


@pytest.mark.parametrize("phase", ["jvp(a)", "transpose(jvp(a))"])
def test_arguments_that_are_gathered_are_named(phase):
    program = Program()
    w = program.entry.add("parameter", (4, 8), op_name="w['up']")
    layer = program.entry.add("slice", (1, 8), w)
    op_name = f"jit(f)/{phase}/gather"
    program.entry.add("all-gather", (4, 8), layer, op_name=op_name, replica_groups=ALL)
    made = program.entry.add("tanh", (1, 8), layer, op_name=op_name)
    program.entry.add("all-gather", (4, 8), made, op_name=op_name, replica_groups=ALL)
    assert [one.argument for one in found(program)] == ["w['up']", ""]


@pytest.mark.parametrize("longer", [0, 1])
def test_of_branches_that_data_decide_the_longest_counts(longer):
    """As in the step's time; what the others exchange is listed, 0 times."""
    program = Program()
    branches = []
    for number in range(2):
        branch = program.computation(f"branch{number}")
        x = branch.add("parameter", (1000,))
        branch.kernel(50.0 if number == longer else 1.0)
        op_name = f"jit(f)/{'ab'[number]}/psum"
        branch.add("all-reduce", (1000,), x, op_name=op_name, replica_groups=ALL)
        branches.append(branch)
    chooser = program.entry.add("parameter", (), dtype=S32)
    x = program.entry.add("parameter", (1000,))
    program.entry.add("conditional", (1000,), chooser, x, x, calls=branches)
    module, target = program.module(), machine(4)
    told = {one.scope: one.times for one in found(program)}
    assert told == {"a": int(longer == 0), "b": int(longer == 1)}
    taken_us = sum(one.times * one.us for one in collectives_of(module, target))
    assert taken_us == pytest.approx(estimate(module, target).collective_us, abs=1e-3)
