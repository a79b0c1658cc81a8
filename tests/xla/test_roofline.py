"""Rates by class and size of work: measured curves, and tiles without them."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from revremat.xla import estimate, load_card
from revremat.xla.step_time import _access
from revremat.xla.step_time._access import Access
from revremat.xla.step_time._cost import Cost, Matmul, cost_of
from revremat.xla.step_time._roofline import (
    first_touch_us,
    matmul_rate,
    rate_at,
    roofline_us,
)
from tests.xla.modules import CARD, Program, machine


def with_curves(**curves):
    named = {name.replace("__", "."): points for name, points in curves.items()}
    return dataclasses.replace(CARD, curves=named)


CURVE = ((1.0, 10.0), (100.0, 1000.0), (1e4, 500.0))


def test_measured_points_are_met_and_ends_go_on():
    assert [rate_at(CURVE, x) for x, _ in CURVE] == pytest.approx([y for _, y in CURVE])
    assert (rate_at(CURVE, 0), rate_at(CURVE, 1e9)) == (10, 500)


@given(st.floats(1, 1e4))
def test_between_points_the_rate_is_between_theirs(size):
    low, high = (10, 1000) if size <= 100 else (500, 1000)
    assert low - 1e-6 <= rate_at(CURVE, size) <= high + 1e-6


def product(batch, rows, columns, depth, kind="matmul", dtype="bfloat16"):
    flops = 2.0 * batch * rows * columns * depth
    return Matmul(kind, dtype, flops, batch, rows, columns)


def test_a_product_has_the_rate_of_its_size_and_kind():
    card = with_curves(
        matmul__float32=((1e6, 1e11), (1e9, 1e12)), dot__float32=((1e6, 5e10),)
    )
    small = product(100, 50, 100, 100, dtype="float32")  # a hundred of 1e6 each
    assert matmul_rate(small, card) == pytest.approx(1e11)
    assert matmul_rate(dataclasses.replace(small, kind="dot"), card) == 5e10
    # A convolution that nobody measured is taken for a matmul.
    other = dataclasses.replace(small, kind="convolution")
    assert matmul_rate(other, card) == pytest.approx(1e11)
    assert matmul_rate(product(1, 8, 8, 8), card) == 1e15  # bfloat16: the data sheet


def test_functions_cost_what_was_measured():
    card = with_curves(function__tanh=((1.0, 1e9),), arithmetic=((1.0, 1e12),))
    cost = Cost({}, 8e6 + 1e6, 0.0, functions={"tanh": 1e6})
    assert roofline_us(cost, card) == pytest.approx(1000 + 1)
    # They were measured beyond traffic, under which plain arithmetic hides.
    moved = dataclasses.replace(cost, bytes=card.memory_bandwidth * 1e-3)
    traffic_us = 1000 / card.memory_efficiency
    assert roofline_us(moved, card) == pytest.approx(1000 + traffic_us)


def test_reductions_and_strided_reads_are_traffic_of_their_own_kind():
    card = with_curves(
        stream=((1.0, 1e12),), reduce__columns=((1.0, 1e9),), strided=((1.0, 1e8),)
    )
    assert roofline_us(
        Cost({}, 1.0, 1e6, reduced_bytes={"columns": 1e6}), card
    ) == pytest.approx(1e3)
    strided = Cost({}, 1.0, 1e6, strided=(Access(1e6, 1e3),))
    assert roofline_us(strided, card) == pytest.approx(1e4)
    assert roofline_us(Cost({}, 1.0, 1e6), card) == pytest.approx(1)


@pytest.mark.parametrize(
    ("lines", "sets", "us"),
    [
        (512, 64, 10),
        (513, 64, 10),
        (256, 32, 10),
        (257, 32, 20),
        (16, 2, 10),
        (17, 2, 40),
    ],
)
def test_lines_too_many_for_their_sets_cost_what_so_few_sets_were_measured_to(
    lines, sets, us
):
    card = with_curves(strided=((1.0, 1e8),), strided__crowded=((2, 25e6), (32, 5e7)))
    cost = Cost({}, 1.0, 1.0, strided=(Access(1000.0, lines * 64.0, sets),))
    assert roofline_us(cost, card) == pytest.approx(us)


def test_memory_used_for_the_first_time_costs_only_where_it_was_measured():
    assert first_touch_us(1e9, CARD) == 0
    card = with_curves(fresh=((1e6, 1e12), (1e8, 1e9)))
    assert first_touch_us(1e9, card) == pytest.approx(1e6)
    program = Program()
    program.entry.kernel(10)
    buffers = program.proto.buffer_assignment.buffer_allocations
    buffers.add(index=0, size=10**8)
    buffers.add(index=1, size=10**8, is_entry_computation_parameter=True)
    buffers.add(index=2, size=10**8, is_constant=True)
    found = estimate(program.module(), machine(card=card))
    assert found.step_us == pytest.approx(10 + 1e5)


H100 = load_card("h100")


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        ((1, 8192, 8192, 1024), 4096 / (32 * 132)),  # 4096 tiles in 32 waves
        ((1, 128, 128 * 133, 256), 133 / 264),  # one tile more than there are units
        ((1, 128, 128, 256), 1 / 132),
        ((1, 128, 128, 8192), 16 / 132),  # cut along the sum
        ((132, 100, 100, 64), 1e4 / 128**2),  # tiles that are not full
    ],
)
def test_tiles_fill_a_card_or_do_not(shape, share):
    whole = H100.peak_flops["bfloat16"] * H100.matmul_efficiency
    share = max(share, 1 / 64)
    assert matmul_rate(product(*shape), H100) == pytest.approx(whole * share)


def fusion(layout, shape=(64, 256), opcode="add", turned=1, tiled=False):
    """A fusion that adds an array and transposed ones."""
    program = Program()
    inner = program.computation("fused")
    shapes = [*([shape] if turned < 2 else []), *[shape[::-1]] * turned]
    inside = [
        inner.add("parameter", s, parameter_number=n) for n, s in enumerate(shapes)
    ]
    if not tiled:
        inner.add("constant", ())
    turns = [
        inner.add("transpose", shape, two, dimensions=[1, 0])
        for two in inside[-turned:]
    ]
    inner.add(opcode, shape, *inside[:-turned], *turns)
    arguments = [
        program.entry.add("parameter", s, parameter_number=n)
        for n, s in enumerate(shapes)
    ]
    call = program.entry.add(
        "fusion", shape, *arguments, calls=[inner], fusion_kind="kLoop"
    )
    for i in (*inner.proto.instructions, call, *arguments):
        i.shape.layout.minor_to_major[:] = [1, 0]
    for two in inside[-turned:]:
        two.shape.layout.minor_to_major[:] = layout
    return cost_of(call, program.module())


def test_reads_across_rows_are_noticed():
    # 256 elements of the innermost loop, each on a line of its own, on every fourth
    # of the 64 sets because rows are four lines apart.
    assert fusion([1, 0]).strided == (Access(64 * 256.0, 256 * 64.0, 16),)


def test_what_no_cache_has_moves_at_the_rate_of_the_whole_steps_memory():
    card = with_curves(stream=((1e3, 1e9), (1e9, 1e8)))
    warm = Cost({}, 1.0, 1e3, step_bytes=1e9)
    half = dataclasses.replace(warm, cold_bytes=500.0)
    assert roofline_us(warm, card) == pytest.approx(card.launch_us + 1.0)
    assert roofline_us(half, card) == pytest.approx(card.launch_us + 0.5 + 5.0)


@pytest.mark.parametrize(("apart", "sets"), [(2048, 2), (2048 + 64, 4)])
def test_operands_a_multiple_of_the_rows_pitch_apart_share_a_caches_sets(apart, sets):
    """Two arrays that a loop carries, read across rows of 2 KiB; one along its rows."""
    rows, width = 64, 512
    program = Program()
    inner, body = program.computation("fused"), program.computation("body")
    shapes = [(width, rows), (rows, width), (rows, width)]
    inside = [
        inner.add("parameter", s, parameter_number=n) for n, s in enumerate(shapes)
    ]
    inner.add("constant", ())
    turned = [
        inner.add("transpose", shapes[0], one, dimensions=[1, 0]) for one in inside[1:]
    ]
    inner.add("add", shapes[0], inside[0], *turned)
    state = body.add("parameter", list(shapes))
    carried = [
        body.add("get-tuple-element", s, state, tuple_index=n)
        for n, s in enumerate(shapes)
    ]
    call = body.add("fusion", shapes[0], *carried, calls=[inner], fusion_kind="kLoop")
    made = [program.entry.add("custom-call", s) for s in shapes]
    init = program.entry.add("tuple", list(shapes), *made)
    program.entry.add("while", list(shapes), init, calls=[body])
    assignment = program.proto.buffer_assignment
    heap = assignment.buffer_allocations.add(index=7, size=1 << 20)
    for n, one in enumerate(made):
        buffer = assignment.logical_buffers.add(id=n + 1)
        buffer.defined_at.instruction_id = one.id
        heap.assigned.add(logical_buffer_id=n + 1, offset=n * (2**17 + apart - 2048))
    for i in (*inner.proto.instructions, *body.proto.instructions):
        i.shape.layout.minor_to_major[:] = [1, 0]
    found = cost_of(call, program.module()).strided
    # Rows are 32 lines apart: of the sets of a cache each array fills one in 32.
    assert found == (Access(rows * width * 1.0, 2 * rows * 64.0, sets),) * 2


def test_an_operand_that_crowds_its_sets_does_so_beside_one_that_does_not():
    wide = _access.sets_of(4096), _access.sets_of(1600)
    assert wide == (1, 64)
    program = Program()
    inner = program.computation("fused")
    strides = {
        inner.add("parameter", (200, n), parameter_number=k).id: 4 * n
        for k, n in enumerate((1024, 400))
    }
    call = program.entry.add("fusion", (200,), calls=[inner])
    found = _access._reads(call, 9.0, 200, strides, program.module())
    assert [(a.sets, a.crowded) for a in found] == [(1, True), (64, False)]
    assert {a.lines_bytes for a in found} == {2 * 200 * 64.0}


@pytest.mark.parametrize(
    ("along", "arrays", "found"),
    [
        # One of them after the other: each fourth of the result walks over one.
        (0, 4, (Access(4 * 64 * 256.0 / 4, 256 * 64.0, 16),) * 4),
        # All of them in each row.
        (1, 4, (Access(4 * 64 * 256.0, 4 * 4 * 256 * 64.0, 64),) * 4),
        # The same one in all fourths.
        (0, 1, (Access(4 * 64 * 256.0, 256 * 64.0, 16),)),
    ],
)
def test_what_is_put_together_walks_over_one_operand_at_a_time(along, arrays, found):
    parts, rows, width = 4, 64, 256
    whole = [rows, width]
    whole[along] *= parts
    program = Program()
    inner = program.computation("fused")
    shapes = [tuple(whole)] + [(width, rows)] * arrays
    inside = [
        inner.add("parameter", s, parameter_number=n) for n, s in enumerate(shapes)
    ]
    inner.add("constant", ())
    turned = [
        inner.add("transpose", (rows, width), one, dimensions=[1, 0])
        for one in inside[1:] * (parts // arrays)
    ]
    together = inner.add("concatenate", shapes[0], *turned, dimensions=[along])
    inner.add("subtract", shapes[0], inside[0], together)
    arguments = [
        program.entry.add("parameter", s, parameter_number=n)
        for n, s in enumerate(shapes)
    ]
    call = program.entry.add(
        "fusion", shapes[0], *arguments, calls=[inner], fusion_kind="kLoop"
    )
    for i in (*inner.proto.instructions, call, *arguments):
        i.shape.layout.minor_to_major[:] = [1, 0]
    assert cost_of(call, program.module()).strided == found


def test_several_arrays_read_so_are_read_along_their_rows_and_written_across():
    found = fusion([1, 0], turned=2)
    # 64 writes in a row, 256 numbers (16 lines) apart.
    assert found.scattered == (Access(64 * 256.0, 64 * 64.0, 4),)
    assert found.strided == ()


def test_what_is_turned_over_in_tiles_is_neither():
    found = fusion([1, 0], tiled=True)
    assert (found.strided, found.scattered) == ((), ())


def test_a_layout_that_is_turned_as_well_is_read_along_its_rows():
    assert fusion([0, 1]).strided == ()
