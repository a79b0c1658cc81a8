"""Where a value lies: told by what made it, through what only passes it on."""

import pytest

from revremat.xla.hlo._placement import place_of
from tests.xla.modules import Program

X = (4,)


class Placed:
    """A program some of whose values have a place: allocation and offset."""

    def __init__(self):
        self.program = Program()
        self.entry = self.program.entry
        self.buffers = self.program.proto.buffer_assignment

    def made(self, allocation, offset, code=None, shape=X, index=()):
        i = (code or self.entry).add("negate", shape)
        self.put(i, allocation, offset, index)
        return i

    def put(self, i, allocation, offset, index=()):
        number = 1 + len(self.buffers.logical_buffers)
        buffer = self.buffers.logical_buffers.add(id=number)
        buffer.defined_at.instruction_id = i.id
        buffer.defined_at.shape_index.extend(index)
        self.buffers.buffer_allocations.add(index=allocation).assigned.add(
            logical_buffer_id=number, offset=offset
        )

    def of(self, i):
        return place_of(i, self.program.module())


def test_a_value_lies_where_it_was_made():
    placed = Placed()
    one, two = placed.made(3, 64), placed.made(5, 128)
    nowhere = placed.entry.add("negate", X)
    assert [placed.of(i) for i in (one, two, nowhere)] == [(3, 64), (5, 128), None]


@pytest.mark.parametrize("opcode", ["bitcast", "opt-barrier", "while"])
def test_what_passes_it_on_leaves_it_there(opcode):
    placed = Placed()
    i = placed.entry.add(opcode, X, placed.made(3, 64))
    assert placed.of(i) == (3, 64)
    assert placed.of(placed.entry.add(opcode, X)) is None
    assert placed.of(placed.entry.add("negate", X, i)) is None


def test_of_a_tuple_each_part_has_its_own_place():
    placed = Placed()
    one, two = placed.made(3, 64), placed.made(5, 128)
    pair = placed.entry.add("tuple", [X, X], one, two)
    part = lambda of, k: placed.entry.add("get-tuple-element", X, of, tuple_index=k)
    found = [placed.of(part(pair, k)) for k in range(3)]
    assert found == [(3, 64), (5, 128), None]  # there is no third
    nested = placed.entry.add("tuple", [[X, X], X], pair, one)
    assert placed.of(part(part(nested, 0), 1)) == (5, 128)
    assert placed.of(part(nested, 1)) == (3, 64)
    assert placed.of(pair) is None


def test_parts_of_what_makes_several():
    placed = Placed()
    several = placed.made(3, 64, shape=[X, X], index=(0,))
    placed.put(several, 5, 128, (1,))
    parts = [
        placed.entry.add("get-tuple-element", X, several, tuple_index=k)
        for k in range(2)
    ]
    assert [placed.of(part) for part in parts] == [(3, 64), (5, 128)]


@pytest.mark.parametrize(
    ("opcode", "looks"), [("while", True), ("call", True), ("fusion", False)]
)
def test_a_parameter_lies_where_the_caller_has_it(opcode, looks):
    placed = Placed()
    body = placed.program.computation("body")
    inside = [body.add("parameter", X, parameter_number=k) for k in range(3)]
    given = placed.made(3, 64), placed.made(5, 128)
    placed.entry.add(opcode, X, *given, calls=[body])
    expected = [(3, 64), (5, 128), None] if looks else [None] * 3
    assert [placed.of(i) for i in inside] == expected


def test_a_circle_is_nowhere():
    placed = Placed()
    body = placed.program.computation("body")
    x = body.add("parameter", X)
    body.add("call", X, x, calls=[body])
    placed.entry.add("negate", X)
    assert placed.of(x) is None
