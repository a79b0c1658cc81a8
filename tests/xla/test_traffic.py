"""Bytes, products and reductions of single instructions: a table by opcode."""

import pytest

from revremat.xla.hlo._hlo import Module, size_of
from revremat.xla.step_time._cost import Matmul, cost_of, has_model
from tests.xla.modules import BF16, F32, S32, Program

KB = 1000  # floats of a row: 4 kB
ROW = 4 * KB


def in_order(i, *dims):
    """Dimensions from the densest on; without them a layout says nothing."""
    i.shape.layout.minor_to_major.extend(dims)
    return i


def entry_cost(opcode, shape, *operands, **fields):
    program = Program()
    given = [
        program.entry.add("parameter", one, parameter_number=n)
        for n, one in enumerate(operands)
    ]
    i = program.entry.add(opcode, shape, *given, **fields)
    return cost_of(i, program.module())


@pytest.mark.parametrize(
    ("opcode", "shape", "operands", "rows"),
    [
        ("add", (KB,), [(KB,), (KB,)], 3),
        ("negate", (KB,), [(KB,)], 2),
        ("transpose", (3, KB), [(KB, 3)], 6),
        ("concatenate", (3, KB), [(1, KB), (2, KB)], 6),
        # Of a whole only the part: read and written.
        ("dynamic-update-slice", (9, KB), [(9, KB), (2, KB), ()], 4),
        ("dynamic-slice", (2, KB), [(9, KB), ()], 4),
        ("slice", (2, KB), [(9, KB)], 4),
        ("gather", (2, KB), [(9, KB), (2,)], 4),
        # Positions aside, what is there is read, too.
        ("scatter", (9, KB), [(9, KB), (2,), (2, KB)], 6),
        ("copy-start", [(3, KB), (3, KB), ()], [(3, KB)], 6),
        ("broadcast", (9, KB), [(KB,)], 9),
        ("iota", (9, KB), [], 9),
        ("reshape", (KB, 3), [(3, KB)], 6),
        # What is free moves nothing.
        ("bitcast", (KB, 3), [(3, KB)], 0),
        ("tuple", [(KB,), (KB,)], [(KB,), (KB,)], 0),
    ],
)
def test_what_an_instruction_reads_and_writes(opcode, shape, operands, rows):
    assert entry_cost(opcode, shape, *operands).bytes == rows * ROW


@pytest.mark.parametrize(
    ("opcode", "shape", "operands", "rows"),
    [
        ("broadcast", (9, KB), [(KB,)], 9),  # its first write
        ("iota", (9, KB), [], 0),
        ("dynamic-slice", (2, KB), [(9, KB), ()], 2),
        ("dynamic-update-slice", (9, KB), [(9, KB), (2, KB), ()], 2),
        ("slice", (2, KB), [(9, KB)], 0),
        ("add", (KB,), [(KB,), (KB,)], 0),
    ],
)
def test_what_no_cache_has(opcode, shape, operands, rows):
    assert entry_cost(opcode, shape, *operands).cold_bytes == rows * ROW


def fused(write, *shapes, kind="kLoop"):
    """Cost of a fusion whose body is written by a function of its parameters."""
    program = Program()
    body = program.computation("fused")
    inner = [
        body.add("parameter", shape, parameter_number=n)
        for n, shape in enumerate(shapes)
    ]
    root = write(body, *inner)
    outer = [
        program.entry.add("parameter", shape, parameter_number=n)
        for n, shape in enumerate(shapes)
    ]
    call = program.entry.add("fusion", (), *outer, calls=[body], fusion_kind=kind)
    call.shape.CopyFrom(root.shape)
    return cost_of(call, program.module())


def reads_a_slice(body, whole):
    return body.add("negate", (2, KB), body.add("slice", (2, KB), whole))


def reads_two_slices(body, whole):
    one, two = (body.add("dynamic-slice", (2, KB), whole) for _ in "12")
    return body.add("add", (2, KB), one, two)


def reads_more_slices_than_there_is(body, whole):
    slices = [body.add("slice", (6, KB), whole) for _ in range(3)]
    return body.add("add", (6, KB), *slices)


def reads_a_slice_and_all(body, whole):
    body.add("slice", (2, KB), whole)
    return body.add("negate", (9, KB), whole)


def slices_what_was_converted(body, whole):
    half = body.add("convert", (9, KB), whole, dtype=BF16)
    part = body.add("slice", (2, KB), half, dtype=BF16)
    return body.add("negate", (2, KB), part, dtype=BF16)


def writes_into_the_whole(body, whole, part):
    return body.add("dynamic-update-slice", (9, KB), whole, part)


def writes_the_whole_into_a_larger_one(body, whole, larger):
    return body.add("dynamic-update-slice", (20, KB), larger, whole)


def converts_what_was_written(body, whole, part):
    update = body.add("dynamic-update-slice", (9, KB), whole, part)
    return body.add("bitcast", (9, KB), update)


def copies(body, whole):
    return body.add("copy", (9, KB), body.add("negate", (9, KB), whole))


def gives_two(body, whole):
    one = body.add("negate", (9, KB), whole)
    two = body.add("slice", (2, KB), whole)
    return body.add("tuple", [(9, KB), (2, KB)], one, two)


def gives_what_it_was_given(body, whole):
    one = body.add("slice", (2, KB), whole)
    return body.add("tuple", [(2, KB), (9, KB)], one, whole)


@pytest.mark.parametrize(
    ("write", "shapes", "rows"),
    [
        (reads_a_slice, [(9, KB)], 2 + 2),
        (reads_two_slices, [(9, KB)], 4 + 2),
        (reads_more_slices_than_there_is, [(9, KB)], 9 + 6),
        (reads_a_slice_and_all, [(9, KB)], 9 + 9),
        (slices_what_was_converted, [(9, KB)], 2 + 1),  # two rows, and half of them
        (writes_into_the_whole, [(9, KB), (2, KB)], 2 + 2),
        (writes_the_whole_into_a_larger_one, [(9, KB), (20, KB)], 9 + 9),
        (converts_what_was_written, [(9, KB), (2, KB)], 2 + 2),
        (copies, [(9, KB)], 9 + 9),
        (gives_two, [(9, KB)], 9 + 9 + 2),
        (gives_what_it_was_given, [(9, KB)], 9 + 2),
    ],
)
def test_a_fusion_moves_what_it_really_reads_and_writes(write, shapes, rows):
    assert fused(write, *shapes).bytes == rows * ROW


@pytest.mark.parametrize(
    ("write", "shapes", "rows"),
    [
        (reads_a_slice, [(9, KB)], 0),
        (reads_two_slices, [(9, KB)], 4),
        (writes_into_the_whole, [(9, KB), (2, KB)], 2),
        (lambda body, x: body.add("broadcast", (9, KB), x), [()], 9),
        (
            lambda body, x: body.add(
                "negate", (9, KB), body.add("broadcast", (9, KB), x)
            ),
            [()],
            0,
        ),
    ],
)
def test_what_of_a_fusion_no_cache_has(write, shapes, rows):
    assert fused(write, *shapes).cold_bytes == rows * ROW


# ---- Arithmetic ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opcode", "flops"),
    [("add", 1), ("tanh", 8), ("divide", 8), ("select", 0), ("compare", 1)],
)
def test_what_an_element_costs(opcode, flops):
    cost = entry_cost(opcode, (KB,), (KB,), (KB,))
    assert cost.other_flops == cost.flops == flops * KB
    assert cost.functions == ({opcode: KB} if flops == 8 else {})


def test_functions_of_a_fusion_are_added_up():
    def write(body, x, y):
        one = body.add("tanh", (KB,), x)
        two = body.add("tanh", (3, KB), y)
        three = body.add("sine", (KB,), one)
        body.add("add", (KB,), three, three)
        return body.add("tuple", [(KB,), (3, KB)], three, two)

    cost = fused(write, (KB,), (3, KB))
    assert cost.functions == {"tanh": 4 * KB, "sine": KB}
    assert cost.other_flops == 5 * 8 * KB + KB
    assert cost.matmul_flops == {}


@pytest.mark.parametrize(
    ("order", "dimension", "way"),
    [
        ((1, 0), 1, "rows"),
        ((1, 0), 0, "columns"),
        ((0, 1), 0, "rows"),
        ((0, 1), 1, "columns"),
    ],
)
@pytest.mark.parametrize("opcode", ["reduce", "reduce-window", "select-and-scatter"])
def test_reductions_are_along_rows_or_over_columns(opcode, order, dimension, way):
    program = Program()
    x = in_order(program.entry.add("parameter", (6, KB)), *order)
    size = (6, KB)[1 - dimension]
    i = program.entry.add(opcode, (size,), x, dimensions=[dimension])
    cost = cost_of(i, program.module())
    assert cost.reduced_bytes == {way: 6 * ROW}
    assert cost.other_flops == 6 * KB


def dot(lhs, rhs, out, contracting, batch=0, orders=((), ())):
    program = Program()
    left, right = (
        in_order(program.entry.add("parameter", s, parameter_number=n), *order)
        for n, (s, order) in enumerate(zip((lhs, rhs), orders, strict=True))
    )
    i = program.entry.add("dot", out, left, right)
    i.dot.lhs_contracting.append(contracting[0])
    i.dot.rhs_contracting.append(contracting[1])
    i.dot.lhs_batch.extend(range(batch))
    i.dot.rhs_batch.extend(range(batch))
    (found,) = cost_of(i, program.module()).matmuls
    return found


def test_a_product_is_of_rows_and_columns_and_so_many():
    plain = dot((5, 7), (7, 3), (5, 3), (1, 0))
    assert (plain.flops, plain.batch, plain.rows, plain.columns) == (210, 1, 5, 3)
    many = dot((4, 5, 7), (4, 7, 3), (4, 5, 3), (2, 1), batch=1)
    assert (many.flops, many.batch, many.rows, many.columns) == (840, 4, 5, 3)
    vector = dot((5, 7), (7,), (5,), (1, 0))
    assert (vector.rows, vector.columns) == (5, 1)


@pytest.mark.parametrize(
    ("orders", "kind"),
    [
        (((1, 0), (0, 1)), "dot"),
        (((1, 0), (1, 0)), "dot"),
        (((0, 1), (1, 0)), "dot"),
        (((0, 1), (0, 1)), "turned_dot"),
    ],
)
def test_a_product_is_turned_where_both_operands_are(orders, kind):
    assert dot((5, 7), (7, 3), (5, 3), (1, 0), orders=orders).kind == kind


@pytest.mark.parametrize(
    ("product", "size"),
    [
        (Matmul("dot", "float32", 840.0, 4, 5, 3), 15.0),  # of each result
        (Matmul("turned_dot", "float32", 840.0, 4, 5, 3), 7.0),  # how much is summed
        (Matmul("matmul", "float32", 840.0, 4, 5, 3), 210.0),  # FLOPs of each
        (Matmul("kernel", "float32", 840.0), 840.0),
        (Matmul("matmul", "float32", 840.0, 0), 840.0),
    ],
)
def test_a_rate_depends_on(product, size):
    assert product.size == size


def test_a_product_within_a_fusion_is_a_librarys():
    def write(body, x, y):
        i = body.add("dot", (5, 3), x, y)
        i.dot.lhs_contracting.append(1)
        i.dot.rhs_contracting.append(0)
        return i

    cost = fused(write, (5, 7), (7, 3))
    assert [m.kind for m in cost.matmuls] == ["matmul"]
    assert cost.matmul_flops == {"float32": 210.0}


@pytest.mark.parametrize(
    ("target", "kind", "flops"),
    [
        ("__cudnn$convForward", "convolution", 2 * 240 * 54 / 6),
        ("__cudnn$convBackwardInput", "convolution", 2 * 90 * 54 / 6),
        ("__cudnn$convBackwardFilter", "filter_gradient", 2 * 54 * 240 / 6),
    ],
)
def test_a_librarys_convolution_is_told_by_its_shapes(target, kind, flops):
    """Each output feature, at each place, sums over a kernel and its features."""
    image, kernel, out = (1, 5, 6, 3), (3, 3, 1, 6), (1, 5, 8, 6)
    given, made = {
        "__cudnn$convForward": ([image, kernel], out),
        "__cudnn$convBackwardInput": ([image, kernel], out),
        "__cudnn$convBackwardFilter": ([image, out], kernel),
    }[target]
    program = Program()
    operands = [
        program.entry.add("parameter", s, parameter_number=n)
        for n, s in enumerate(given)
    ]
    i = program.entry.add(
        "custom-call", [made, (9,)], *operands, custom_call_target=target
    )
    i.convolution.kernel_spatial.extend([0, 1])
    i.convolution.kernel_input_feature = 2
    i.convolution.kernel_output_feature = 3
    (found,) = cost_of(i, program.module()).matmuls
    assert (found.kind, found.dtype) == (kind, "float32")
    assert found.flops == pytest.approx(flops)
    assert (found.batch, found.rows, found.columns) == (1, 0, 0)


def test_a_librarys_product_says_its_result():
    for out, expected in (((6, 9), (1, 6, 9)), ((4, 2, 6, 9), (8, 6, 9))):
        program = Program()
        batch = out[:-2]
        one = program.entry.add("parameter", (*batch, 6, 5), dtype=BF16)
        two = program.entry.add("parameter", (*batch, 5, 9), parameter_number=1)
        i = program.entry.add(
            "custom-call", [out, (77,)], one, two, custom_call_target="__cublas$gemm"
        )
        (found,) = cost_of(i, program.module()).matmuls
        assert (found.batch, found.rows, found.columns) == expected
        assert (found.kind, found.dtype) == ("matmul", "bfloat16")


def test_what_has_a_model():
    program = Program()
    x = program.entry.add("parameter", (6, 6))
    comparison, several, pair = (program.computation(n) for n in ("c", "s", "p"))
    comparison.add("compare", (), dtype=1)
    several.add("negate", (6, 6), several.add("parameter", (6, 6)))
    pair.add("tuple", [(), ()])
    call = lambda target, *calls: program.entry.add(
        "custom-call", (6, 6), x, x, custom_call_target=target, calls=calls
    )
    known = [
        program.entry.add("negate", (6, 6), x),
        call("__cublas$gemm"),
        call("anything", several),
        call("anything", pair),
        call("anything", comparison, several),
        call("__gpu$xla.gpu.triton"),
    ]
    unknown = [
        program.entry.add("sort", (6, 6), x),
        program.entry.add("cholesky", (6, 6), x),
        call("anything"),
        call("anything", comparison),
    ]
    module = program.module()
    assert [has_model(i, module) for i in known] == [True] * len(known)
    assert [has_model(i, module) for i in unknown] == [False] * len(unknown)


@pytest.mark.parametrize(
    ("shape", "dtype", "num_bytes"),
    [
        ((3, 5), F32, 60),
        ((3, 5), BF16, 30),
        ((), S32, 4),
        ((3,), 21, 2),  # int4: a byte and a half
        ((4,), 26, 1),
        ([(3, 5), (2,)], F32, 68),
        ([], F32, 0),
        ((3, 0), F32, 0),
        ((7,), 17, 0),  # a token
    ],
)
def test_bytes_of_a_shape(shape, dtype, num_bytes):
    program = Program()
    i = program.entry.add("parameter", shape, dtype=dtype)
    assert size_of(i.shape) == num_bytes
    assert isinstance(program.module(), Module)
