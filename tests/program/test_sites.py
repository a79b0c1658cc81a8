"""Where layers may be: what is moved to the front, cut apart, and flows alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from revremat.program.ir._ops import Constant, Value, flatten
from revremat.program.units._repeats import (
    MOST_OPS,
    Loop,
    _best_rotation,
    _carried_bytes,
    _same_rotations,
    equal_numbers,
    find_repeats,
    same_flow,
)
from revremat.program.units._sites import moves_apart, stretches, weights_first
from revremat.program.units._stretch import Stretch

W, X = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((3, 4, 4), (2, 4)))


def flat(f, *args):
    return flatten(jax.make_jaxpr(f)(*args))


def kinds(ops):
    return [op.kind for op in ops]


# ---- What only gives inputs another form ---------------------------------------------


def front(f, *args, live=(0,)):
    """Operations in their new order, and which of them give weights another form."""
    program = flat(f, *args)
    moved, weights = weights_first(program, {program.inputs[k] for k in live})
    assert {*moved.ops} == {*program.ops}
    forms = [op for op in moved.ops if {*op.outputs} <= weights]
    assert [*moved.ops[: len(forms)]] == forms
    moves, others = moves_apart(moved, weights)
    assert moves + others == [*moved.ops]
    return kinds(forms), kinds(others)


def test_forms_of_inputs_come_first():
    def f(w, x):
        y = jnp.sin(x)
        z = y @ w[1].T
        return z @ w[2].astype(jnp.float32)

    forms, others = front(f, W, X)
    assert forms == ["slice", "squeeze", "transpose", "slice", "squeeze"]
    assert others == ["sin", "dot_general", "dot_general"]


def test_forms_of_what_is_computed_stay():
    forms, others = front(lambda w, x: (jnp.sin(w[0]).T, x.T), W, X)
    assert forms == ["slice", "squeeze", "transpose"]
    assert others == ["sin", "transpose"]


def test_a_cast_of_data_stays_where_the_first_layer_reads_it():
    half = jnp.bfloat16
    f = lambda w, x: (jnp.sin(x), x.astype(half) @ w[0].astype(half))
    cast = "convert_element_type"
    forms, others = front(f, W, X)
    assert (forms.count(cast), others.count(cast)) == (1, 1)
    # Differentiated it is a weight as any other.
    forms, others = front(f, W, X, live=(0, 1))
    assert (forms.count(cast), others.count(cast)) == (2, 0)
    # As it is where nothing is computed with it as it came.
    forms, others = front(lambda w, x: x.astype(half) @ w[0].astype(half), W, X)
    assert (forms.count(cast), others.count(cast)) == (2, 0)


def test_entries_are_taken_as_soon_as_what_they_are_of_is_made():
    def f(x):
        made = jnp.sin(x)
        y = jnp.cos(x)
        first = made[0] * 2.0
        y = jnp.exp(y)
        return y, first, made[1]

    _, others = front(f, X)
    entry = ["slice", "squeeze"]
    assert others == ["sin", *entry * 2, "cos", "mul", "exp"]


def test_the_one_entry_of_an_array_stays_where_it_is():
    _, others = front(lambda x: (jnp.cos(x), jnp.sin(x)[0]), X)
    assert others == ["cos", "sin", "slice", "squeeze"]


# ---- Between what is apart -----------------------------------------------------------


def test_stretches_lie_between_what_is_apart():
    def f(x):
        a = jnp.sin(x)
        b = jnp.cos(a)
        c = jnp.exp(b)  # apart
        d = jnp.tanh(c) + a
        return d, b

    program = flat(f, X)
    apart = {op for op in program.ops if op.kind == "exp"}
    one, two = stretches(program, program.ops, apart)
    assert [kinds(s.ops) for s in (one, two)] == [["sin", "cos"], ["tanh", "add"]]
    made = {op.kind: op.outputs[0] for op in program.ops}
    assert one.leaving(one.ops) == {made["sin"], made["cos"]}
    assert two.leaving(two.ops) == {made["add"]}
    assert two.leaving(two.ops[:1]) == {made["tanh"]}
    assert len(stretches(program, program.ops, {*program.ops})) == 0
    (whole,) = stretches(program, program.ops, set())
    assert len(whole) == 5


# ---- Unrolled loops ------------------------------------------------------------------


def turns(f, period, *args):
    """A program's operations in rows of so many, and what leaves them."""
    program = flat(f, *args)
    rows = [program.ops[k : k + period] for k in range(0, len(program.ops), period)]
    return rows, {v for v in program.outputs if isinstance(v, Value)}


def test_iterations_through_which_values_flow_alike_are_a_loop():
    def f(x, y):
        for _ in range(3):
            x = jnp.sin(x * y)
        return x

    rows, leaving = turns(f, 2, X, X)
    loop = same_flow(rows, leaving)
    assert kinds(loop.body.ops) == ["mul", "sin"]
    assert len(loop.body.inputs) == 2
    (mul, sin) = loop.body.ops
    assert mul.inputs == loop.body.inputs
    assert sin.inputs == mul.outputs
    assert loop.body.outputs == sin.outputs
    assert len(loop.iterations) == 3
    for row, one in zip(rows, loop.iterations, strict=True):
        assert one.ops == tuple(row)
        assert one.inputs == tuple(row[0].inputs)
        assert one.outputs == row[1].outputs


def test_what_one_iteration_carries_all_do():
    def f(x):
        first = x
        for _ in range(3):
            y = jnp.cos(x)
            x = jnp.sin(y)
            first = y if first is x else first
        return x, y

    rows, leaving = turns(f, 2, X)
    loop = same_flow(rows, leaving)
    assert [len(one.outputs) for one in loop.iterations] == [2, 2, 2]


@pytest.mark.parametrize(
    "f",
    [
        lambda x: jnp.sin(y := jnp.cos(x)) * 0 + jnp.sin(jnp.cos(y)),
        lambda x: (jnp.sin(jnp.cos(x)), jnp.sin(x), jnp.cos(x)),
    ],
)
def test_iterations_through_which_they_do_not_are_none(f):
    program = flat(f, X)
    ops = [op for op in program.ops if op.kind in ("sin", "cos")]
    rows = [ops[k : k + 2] for k in range(0, len(ops), 2)]
    flows = [[op.inputs[0] in row[0].outputs for op in row[1:]] for row in rows]
    found = same_flow(rows, {v for op in ops for v in op.outputs})
    assert (found is None) == (len({*map(tuple, flows)}) > 1)


def number(value, dtype=np.float32):
    return Constant(jax.typeof(dtype(value)), dtype(value))


@pytest.mark.parametrize(
    ("atoms", "found"),
    [
        ([number(2), number(2)], True),
        ([number(2), number(3)], False),
        ([number(2), number(2), number(3)], False),
        ([number(2), number(2, np.float16)], False),
        ([number(2)], True),
        ([number(2), Value(jax.typeof(np.float32(2)))], False),
        ([Constant(jax.typeof(np.ones(2)), np.ones(2))] * 2, False),
    ],
)
def test_plain_numbers_that_are_equal(atoms, found):
    assert equal_numbers(atoms) == found


def residual(w, x):
    """Of what goes on, the stream is least: wider values lie within a layer."""
    for k in range(4):
        hidden = x @ jnp.concatenate([w[k]] * 3, 1)
        x = x + jnp.tanh(hidden) @ jnp.concatenate([w[k]] * 3, 0)
    return x


def unrolled(f, period, *args):
    program = flat(f, *args)
    moved, weights = weights_first(program, {program.inputs[0]})
    _, others = moves_apart(moved, weights)
    outputs = {v for v in program.outputs if isinstance(v, Value)}
    return Stretch(others, outputs), Loop(0, period, len(others))


W4 = jax.ShapeDtypeStruct((4, 4, 4), jnp.float32)


def test_an_iteration_begins_where_least_is_carried():
    stretch, loop = unrolled(residual, 4, W4, X)
    assert kinds(stretch.ops) == ["dot_general", "tanh", "dot_general", "add"] * 4
    row = 2 * 4 * 4  # bytes of the stream; what is wider has three
    assert _carried_bytes(stretch, loop) == [row, row + 3 * row, row + 3 * row, 2 * row]
    assert _same_rotations(stretch, loop).tolist() == [True] * 4
    repeat, first, last = _best_rotation(stretch, loop)
    assert (first, last, len(repeat.iterations)) == (0, 16, 4)
    assert kinds(repeat.body.ops) == ["dot_general", "tanh", "dot_general", "add"]


def test_loops_are_found_between_two_places():
    stretch, _ = unrolled(residual, 4, W4, X)
    made = float(stretch.made[-1])
    (whole,) = find_repeats(stretch, made)
    assert len(whole.iterations) == 4
    (part,) = find_repeats(stretch, made, 4)
    assert len(part.iterations) == 3
    (part,) = find_repeats(stretch, made, 0, 8)
    assert len(part.iterations) == 2
    assert find_repeats(stretch, made, 0, 7) == []
    assert len(stretch) < MOST_OPS


def test_a_value_from_somewhere_else_in_one_iteration_breaks_the_loop():
    def f(w, x):
        x0 = x
        for k in range(4):
            x = jnp.tanh((x0 if k == 2 else x) @ w[k])
        return x

    stretch, loop = unrolled(f, 2, W4, X)
    found = find_repeats(stretch, float(stretch.made[-1]))
    # Where the third comes from makes no difference to an iteration that begins there.
    assert [len(one.iterations) for one in found] == [4]
    assert _same_rotations(stretch, loop).tolist()[0]
