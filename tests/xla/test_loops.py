"""How often a loop runs where the compiler does not say so."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from revremat.xla import Module, estimate
from revremat.xla.hlo._loops import trip_count
from revremat.xla.hlo._schema import HloProto, ModuleProto
from tests.xla.modules import S32, Program, machine


def counter(start, step, bound, direction, *, swapped=False, fused=False, down=False):
    """A loop over a counter, as a compiler leaves it that notes no trips."""
    program = Program()
    body, condition = program.computation("body"), program.computation("condition")

    def number(code, value):
        i = code.add("constant", (), dtype=S32)
        i.literal.s32s.append(value)
        return i

    def element(code, parameter, index, dtype=S32):
        return code.add(
            "get-tuple-element", (), parameter, dtype=dtype, tuple_index=index
        )

    state = body.add("parameter", [(), (4,)])
    old = element(body, state, 0)
    by = number(body, abs(step) if down else step)
    opcode = "subtract" if down else "add"
    if fused:
        inner = program.computation("fused")
        inside = [inner.add("parameter", (), parameter_number=n) for n in range(2)]
        inner.add(opcode, (), *inside)
        new = body.add("fusion", (), old, by, calls=[inner], dtype=S32)
    else:
        new = body.add(opcode, (), old, by, dtype=S32)
    work = body.kernel(10)
    body.add("tuple", [(), (4,)], new, work)

    state = condition.add("parameter", [(), (4,)])
    sides = [element(condition, state, 0), number(condition, bound)]
    if swapped:
        sides.reverse()
    condition.add("compare", (), *sides, comparison_direction=direction)

    if start is None:
        first = program.entry.add("parameter", (), dtype=S32, parameter_number=1)
    else:
        first = number(program.entry, start)
    data = program.entry.add("parameter", (4,))
    state = program.entry.add("tuple", [(), (4,)], first, data)
    program.entry.add("while", [(), (4,)], state, calls=[body, condition])
    return program.module()


def trips(module):
    (loop,) = (i for i in module.instructions.values() if i.opcode == "while")
    return trip_count(loop, module)


def count(start, step, bound, holds):
    """The oracle: running it."""
    done = 0
    while holds(start, bound):
        start, done = start + step, done + 1
    return done


HOLDS = {
    "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b,
    "GT": lambda a, b: a > b,
    "GE": lambda a, b: a >= b,
}
MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE"}


@given(
    st.integers(-5, 20),
    st.integers(1, 4),
    st.integers(-5, 20),
    st.sampled_from(list(HOLDS)),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_a_counter_is_run_as_often_as_it_says(
    start, step, bound, direction, swapped, fused, down
):
    down = down and direction in ("GT", "GE")
    step = step if direction in ("LT", "LE") else -step
    written = MIRRORED[direction] if swapped else direction
    module = counter(
        start, step, bound, written, swapped=swapped, fused=fused, down=down
    )
    assert trips(module) == count(start, step, bound, HOLDS[direction])


def test_what_is_noted_is_believed():
    module = counter(0, 1, 12, "LT")
    (loop,) = (i for i in module.instructions.values() if i.opcode == "while")
    loop.backend_config = b'{"known_trip_count": {"n": "7"}}'
    assert trip_count(loop, module) == 7


@pytest.mark.parametrize(("step", "direction"), [(0, "LT"), (-1, "LT"), (1, "GT")])
def test_a_loop_without_an_end_counts_once(step, direction):
    assert trips(counter(0, step, 12, direction)) == 1


def test_a_loop_that_begins_anywhere_counts_once():
    assert trips(counter(None, 1, 12, "LT")) == 1


def test_its_time_is_multiplied():
    found = estimate(counter(0, 1, 12, "LT"), machine())
    assert found.compute_us == pytest.approx(120, rel=1e-3)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans_as_jax_writes_them(reverse):
    """Before any compiler has seen them: as bare as a loop comes."""

    def run(x, ws):
        step = lambda x, w: (jnp.tanh(x @ w), None)
        return jax.lax.scan(step, x, ws, reverse=reverse)[0]

    specs = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((8, 8), (9, 8, 8))]
    data: Any = jax.jit(run).lower(*specs).compiler_ir("hlo")
    proto = HloProto()
    proto.hlo_module.CopyFrom(
        ModuleProto.FromString(data.as_serialized_hlo_module_proto())
    )
    assert trips(Module(proto)) == 9


def test_damaged_loops_count_once():
    program = Program()
    body = program.computation("body")
    state = program.entry.add("parameter", ())
    loop = program.entry.add("while", (), state, calls=[body, body])
    body.add("parameter", ())
    assert trip_count(loop, program.module()) == 1
