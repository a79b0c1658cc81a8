"""Whose value it is: a value is followed through whatever passes it on."""

import pytest

from revremat.xla.hlo._hlo import Module, backend_config
from revremat.xla.hlo._loops import trip_count
from revremat.xla.hlo._origin import Origins, phase_of, split_op_name
from tests.xla.modules import S32, Program

X = (4, 8)


class Written:
    """A program in which some instructions are named by their JAX path."""

    def __init__(self):
        self.program = Program()
        self.entry = self.program.entry

    def made(self, name, shape=X, *operands, opcode="negate", code=None, **fields):
        code = code or self.entry
        return code.add(opcode, shape, *operands, op_name=f"jit(f)/{name}/op", **fields)

    def scope(self, i, index=()):
        return Origins(self.program.module()).of(i, index).scope


def through(opcode, **fields):
    return lambda w, a, b: w.entry.add(opcode, X, a, **fields)


def second_of_a_tuple(w, a, b):
    pair = w.entry.add("tuple", [X, X], b, a)
    return w.entry.add("get-tuple-element", X, pair, tuple_index=1)


def nested_tuple(w, a, b):
    inner = w.entry.add("tuple", [X, X], b, a)
    outer = w.entry.add("tuple", [[X, X], X], inner, b)
    first = w.entry.add("get-tuple-element", [X, X], outer, tuple_index=0)
    return w.entry.add("get-tuple-element", X, first, tuple_index=1)


def update(w, a, b):
    return w.entry.add("dynamic-update-slice", X, b, a)


def largest_operand(w, a, b):
    small = w.made("small", (4,))
    return w.entry.add("add", X, small, a)


def done(opcode):
    def write(w, a, b):
        start = w.entry.add(opcode.replace("-done", "-start"), X, a)
        return w.entry.add(opcode, X, start)

    return write


def asynchronous(w, a, b):
    body = w.program.computation("wrapped")
    x = body.add("parameter", X)
    w.made("inside", X, x, code=body)
    start = w.entry.add("async-start", [[X], X, ()], b, calls=[body])
    return w.entry.add("async-done", X, start)


PASSED = {
    "copy": through("copy"),
    "bitcast": through("bitcast"),
    "unnamed conversion": through("convert"),
    "second of a tuple": second_of_a_tuple,
    "tuple in a tuple": nested_tuple,
    "update in place": update,
    "largest operand": largest_operand,
    "all-gather": done("all-gather-done"),
    "all-reduce": done("all-reduce-done"),
    "permute": done("collective-permute-done"),
    "copy to the host": done("copy-done"),
}


@pytest.mark.parametrize("name", PASSED)
def test_what_passes_a_value_on_did_not_make_it(name):
    w = Written()
    a, b = w.made("right"), w.made("wrong")
    i = PASSED[name](w, a, b)
    assert w.scope(i) == "right"


def test_what_computes_made_it():
    w = Written()
    a = w.made("wrong")
    assert w.scope(w.made("right", X, a)) == "right"
    assert w.scope(w.made("right", X, a, opcode="convert")) == "right"


def test_what_is_begun_apart_made_it():
    w = Written()
    assert w.scope(asynchronous(w, w.made("wrong"), w.made("wrong"))) == "inside"


def test_of_a_fusion_the_root_made_it_and_of_several_each():
    w = Written()
    body = w.program.computation("fused")
    x = body.add("parameter", X)
    one, two = w.made("one", X, x, code=body), w.made("two", X, x, code=body)
    body.add("tuple", [X, X], one, two)
    call = w.entry.add("fusion", [X, X], w.made("given"), calls=[body])
    parts = [w.entry.add("get-tuple-element", X, call, tuple_index=k) for k in range(2)]
    assert [w.scope(part) for part in parts] == ["one", "two"]
    assert [w.scope(call, (k,)) for k in range(2)] == ["one", "two"]


def test_a_parameter_is_what_the_caller_gives():
    w = Written()
    body = w.program.computation("fused")
    body.add("parameter", X)
    y = body.add("parameter", X, parameter_number=1)
    body.add("copy", X, y)
    call = w.entry.add("fusion", X, w.made("one"), w.made("two"), calls=[body])
    assert w.scope(call) == "two"


def loop(w, body_gives, entry_gives):
    """A loop over a pair; what its body and its beginning give for the second."""
    body, condition = w.program.computation("body"), w.program.computation("cond")
    state = body.add("parameter", [(), X])
    old = [
        body.add("get-tuple-element", s, state, tuple_index=k)
        for k, s in enumerate([(), X])
    ]
    body.add("tuple", [(), X], old[0], body_gives(w, body, old[1]))
    condition.add("compare", (), condition.add("parameter", [(), X]))
    first = w.entry.add("tuple", [(), X], w.made("count", ()), entry_gives(w))
    run = w.entry.add("while", [(), X], first, calls=[body, condition])
    return w.entry.add("get-tuple-element", X, run, tuple_index=1), old[1]


def fill(w):
    return w.made("zeros", X, opcode="broadcast")


def test_a_loops_value_is_made_by_its_body():
    w = Written()
    after, inside = loop(w, lambda w, c, old: w.made("layer", X, old, code=c), fill)
    assert w.scope(after) == "layer"
    assert w.scope(inside) == "layer"  # by the iteration before


def test_what_a_loop_hands_through_was_made_before_it():
    w = Written()
    after, inside = loop(w, lambda w, c, old: old, lambda w: w.made("before"))
    assert w.scope(after) == "before"
    assert w.scope(inside) == "before"


def test_what_a_loop_only_fills_was_made_before_it():
    w = Written()
    again = lambda w, c, old: w.made("zeros", X, code=c, opcode="broadcast")
    after, inside = loop(w, again, lambda w: w.made("before"))
    assert w.scope(after) == "before"
    assert w.scope(inside) == "before"


def test_each_branch_has_its_own_operand():
    w = Written()
    branches = [w.program.computation(f"branch_{k}") for k in range(2)]
    given = [branch.add("parameter", X) for branch in branches]
    for branch, x in zip(branches, given, strict=True):
        branch.add("copy", X, x)
    operands = [w.made(name) for name in ("zeroth", "first")]
    index = w.made("index", ())
    run = w.entry.add("conditional", X, index, *operands, calls=branches)
    assert [w.scope(x) for x in given] == ["zeroth", "first"]
    assert w.scope(run) == "zeroth"


def test_a_piece_has_the_phase_of_its_own_and_the_place_of_the_whole():
    w = Written()
    whole = w.entry.add("negate", X, op_name="jit(f)/jvp(block)/dot")
    back = "jit(f)/transpose(jvp(other))/slice"
    piece = w.entry.add("slice", (1, 8), whole, op_name=back)
    found = Origins(w.program.module()).of(piece)
    assert (found.phase, found.scope, found.op) == ("backward", "block", "slice")
    nowhere = w.entry.add("parameter", X)
    piece = w.entry.add("slice", (1, 8), nowhere, op_name=back)
    assert Origins(w.program.module()).of(piece).scope == "other"


def test_what_needs_a_gradient_and_has_no_phase_is_the_update():
    w = Written()
    before = w.entry.add("negate", X, op_name="jit(f)/schedule/mul")
    forward = w.entry.add("negate", X, op_name="jit(f)/jvp(a)/mul")
    gradient = w.entry.add("negate", X, forward, op_name="jit(f)/transpose(jvp(a))/mul")
    inner = w.program.computation("fused")
    x = inner.add("parameter", X)
    inside = inner.add("negate", X, x, op_name="jit(f)/adam/mul")
    fusion = w.entry.add("fusion", X, gradient, calls=[inner])
    later = w.entry.add("add", X, fusion, before, op_name="jit(f)/adam/add")
    other = w.entry.add("negate", X, before, op_name="jit(f)/metrics/mul")
    again = w.entry.add("negate", X, gradient, op_name="jit(f)/jvp(b)/mul")
    origins = Origins(w.program.module())
    phase = lambda i: origins.own(i).phase
    assert [phase(i) for i in (before, forward, other)] == ["forward"] * 3
    assert phase(gradient) == "backward"
    assert [phase(i) for i in (inside, later)] == ["update"] * 2
    assert phase(again) == "forward"  # it says so itself


def test_a_gradient_within_a_fusion_counts_where_the_fusion_has_no_name():
    w = Written()
    inner = w.program.computation("fused")
    inner.add("negate", X, op_name="jit(f)/transpose(jvp(a))/mul")
    fusion = w.entry.add("fusion", X, calls=[inner])
    named = w.entry.add("fusion", X, calls=[inner], op_name="jit(f)/jvp(a)/mul")
    after = [w.made("adam", X, i) for i in (fusion, named)]
    origins = Origins(w.program.module())
    assert [origins.own(i).phase for i in after] == ["update", "forward"]


def test_arguments_are_told_by_their_own_names():
    w = Written()
    x = w.entry.add("parameter", X, op_name="params['w']")
    body = w.program.computation("fused")
    inner = body.add("parameter", X, op_name="inner")
    body.add("negate", X, inner)
    w.entry.add("fusion", X, x, calls=[body])
    origins = Origins(w.program.module())
    assert (origins.own(x).phase, origins.own(x).scope) == ("argument", "params['w']")
    assert origins.own(inner).phase == "forward"
    assert (origins.of(inner).phase, origins.of(inner).scope) == (
        "argument",
        "params['w']",
    )


def test_fills_say_so():
    w = Written()
    origins = Origins((w.made("a"), fill(w), w.program.module())[-1])
    found = [origins.own(i).fills for i in origins.module.entry.instructions]
    assert found == [False, True]


@pytest.mark.parametrize(
    ("op_name", "phase", "scopes", "op"),
    [
        ("a/b/mul", "", ["a", "b"], "mul"),
        ("jit(f)/vmap(jvp(a))/b/mul", "forward", ["a", "b"], "mul"),
        ("jit(f)/a/bq,bk->qk/dot", "", ["a"], "dot"),
        ("jit(f)/a/jit(relu)/max", "", ["a"], "max"),
        ("jit(f)/a/jit(relu)", "", ["a"], "jit"),
        ("jit(f)/jvp(a)/branch_12_fun/b/mul", "forward", ["a", "b"], "mul"),
        ("jit(f)/jvp(a)/branch_x_fun/mul", "forward", ["a", "branch_x_fun"], "mul"),
        ("jit(f)/jvp(a(b/c))/mul", "forward", ["a(b/c)"], "mul"),
        ("mul", "", [], "mul"),
        ("a/", "", ["a"], ""),
    ],
)
def test_paths_are_split_outside_of_parentheses(op_name, phase, scopes, op):
    assert phase_of(op_name) == phase
    assert split_op_name(op_name) == (scopes, op)


# ---- Frames --------------------------------------------------------------------------


def test_frames_are_from_the_innermost_out():
    program = Program()
    index = program.proto.hlo_module.stack_frame_index
    index.file_names.extend(["a.py", "b.py"])
    index.function_names.extend(["f", "g"])
    index.file_locations.add(file_name_id=1, function_name_id=2, line=7)
    index.file_locations.add(file_name_id=2, function_name_id=1, line=9)
    index.file_locations.add(file_name_id=3, function_name_id=0, line=4)
    index.stack_frames.add(file_location_id=1)
    index.stack_frames.add(file_location_id=2, parent_frame_id=1)
    index.stack_frames.add(file_location_id=3, parent_frame_id=2)
    index.stack_frames.add(file_location_id=9, parent_frame_id=1)
    index.stack_frames.add(file_location_id=1, parent_frame_id=5)  # a circle
    frames = []
    for k in range(7):
        i = program.entry.add("negate", X)
        i.metadata.stack_frame_id = k
        frames.append(i)
    frames[0].metadata.source_file, frames[0].metadata.source_line = "c.py", 3
    module = program.module()
    inner, outer = ("b.py", "f", 9), ("a.py", "g", 7)
    found = [module.frames(i) for i in frames]
    assert found[0] == [("c.py", "", 3)]
    assert found[1:5] == [
        [outer],
        [inner, outer],
        [("", "", 4), inner, outer],  # names that are not there
        [outer],
    ]
    assert found[5] == [outer] * 100
    assert found[6] == []


def test_bytes_that_are_temporary():
    program = Program()
    program.entry.add("negate", X)
    add = program.proto.buffer_assignment.buffer_allocations.add
    add(index=0, size=1, is_entry_computation_parameter=True)
    add(index=1, size=2, is_constant=True)
    add(index=2, size=4, is_thread_local=True)
    add(index=3, size=8)
    add(index=4, size=16, maybe_live_out=True)
    assert program.module().temp_bytes == 24


def test_notes_of_the_backend_are_a_dict_or_nothing():
    program = Program()
    for text, found in ((b"", {}), (b"{", {}), (b"[1]", {}), (b'{"a": 1}', {"a": 1})):
        i = program.entry.add("negate", X)
        i.backend_config = text
        assert backend_config(i) == found
    assert isinstance(program.module(), Module)


# ---- Loops ---------------------------------------------------------------------------


def counted(start, step, bound, direction, kind="s32s", swapped=False, down=False):
    """A loop whose counter is the second of its state."""
    program = Program()
    body, condition = program.computation("body"), program.computation("cond")

    def number(code, value):
        i = code.add("constant", (), dtype=S32)
        getattr(i.literal, kind).append(value)
        return i

    element = lambda code, state: code.add(
        "get-tuple-element", (), state, dtype=S32, tuple_index=1
    )
    state = body.add("parameter", [X, ()])
    old = element(body, state)
    sides = [old, number(body, step)]
    new = body.add(
        "subtract" if down else "add", (), *(sides[::-1] if swapped else sides)
    )
    body.add("tuple", [X, ()], body.add("negate", X), new)
    state = condition.add("parameter", [X, ()])
    condition.add(
        "compare",
        (),
        element(condition, state),
        number(condition, bound),
        comparison_direction=direction,
    )
    first = program.entry.add(
        "tuple",
        [X, ()],
        program.entry.add("parameter", X),
        number(program.entry, start),
    )
    run = program.entry.add("while", [X, ()], first, calls=[body, condition])
    return trip_count(run, program.module())


@pytest.mark.parametrize(
    ("start", "step", "bound", "direction", "trips"),
    [
        (0, 3, 12, "NE", 4),
        (12, -3, 0, "NE", 4),
        (0, 5, 12, "NE", 1),  # it never meets the bound
        (0, 3, 12, "EQ", 1),
        (0, 3, 13, "LT", 5),
        (0, 3, 12, "LT", 4),
        (0, 3, 12, "LE", 5),
        (0, 3, 11, "LE", 4),
        (12, 3, 0, "LT", 0),
        (12, -3, -1, "GT", 5),
        (12, -3, 0, "GE", 5),
    ],
)
def test_trips_of_a_counter(start, step, bound, direction, trips):
    assert counted(start, step, bound, direction) == trips


@pytest.mark.parametrize("kind", ["s32s", "s64s", "u32s", "u64s"])
def test_counters_are_of_any_whole_numbers(kind):
    assert counted(2, 3, 12, "LT", kind) == 4


def test_a_counter_is_added_to_from_either_side_and_taken_from_one():
    assert counted(0, 3, 12, "LT", swapped=True) == 4
    assert counted(12, 3, 0, "GT", down=True) == 4
    assert counted(12, 3, 0, "GT", down=True, swapped=True) == 1  # 3 less the counter
