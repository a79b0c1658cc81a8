"""Programs as flat lists of operations: what is inlined, merged, cut and moved."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat.program.ir._costs import (
    every_op,
    num_batch_dims,
    num_bytes,
    num_flops,
    num_operations,
    program_flops,
)
from revremat.program.ir._ops import (
    Constant,
    Program,
    Value,
    deduplicate,
    flatten,
    is_scalar,
    lift_constants,
    needed,
    prune,
    same_result,
    substitute,
    with_inputs,
)

X = jax.ShapeDtypeStruct((3, 4), jnp.float32)


def flat(f, *args, **how):
    return flatten(jax.make_jaxpr(f)(*(args or (X,))), **how)


def kinds(program):
    return [op.kind for op in program.ops]


def on(program, *args):
    return [np.asarray(out).tolist() for out in program(*args)]


# ---- Flattening ----------------------------------------------------------------------

inner = jax.jit(lambda x: jnp.sin(x))
region = jax.checkpoint(lambda x: rr.name(jnp.cos(x), "c"))
block = rr.block(lambda x: jnp.tanh(x), name="b")


def nested(x):
    return block(region(rr.name(inner(x), "s")))


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ({}, ["sin", "cos", "tanh"]),
        ({"keep_names": True}, ["sin", "name", "cos", "name", "tanh"]),
        ({"keep_checkpoints": True}, ["sin", "remat", "tanh"]),
        ({"keep_checkpoints": lambda eqn: False}, ["sin", "cos", "tanh"]),
        ({"keep_blocks": True}, ["sin", "cos", "jit"]),
        ({"keep": lambda op: not op.is_block}, ["jit", "cos", "tanh"]),
        ({"keep": lambda op: op.is_block}, ["sin", "cos", "jit"]),
    ],
)
def test_calls_are_inlined_but_for_those_that_are_kept(how, found):
    renamed = {"remat2": "remat", "checkpoint": "remat", "pjit": "jit"}
    program = flat(nested, **how)
    assert [renamed.get(kind, kind) for kind in kinds(program)] == found
    x = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_allclose(program(x)[0], np.tanh(np.cos(np.sin(x))), rtol=1e-6)


def test_names_and_regions_are_remembered():
    program = flat(nested)
    assert [name for name, _ in program.names] == ["s", "c"]
    made = {op.kind: op.outputs[0] for op in program.ops}
    assert [value for _, value in program.names] == [made["sin"], made["cos"]]
    (one,) = program.regions
    assert [op.kind for op in one.ops] == ["cos"]
    assert one.outputs == (made["cos"],)
    assert one.op.inputs == (made["sin"],)
    assert flat(nested, keep_checkpoints=True).regions == ()


def test_regions_come_after_those_within_them():
    within = jax.checkpoint(lambda x: jnp.sin(x))
    around = jax.checkpoint(lambda x: jnp.cos(within(jnp.tanh(x))))
    found = [[op.kind for op in r.ops] for r in flat(around).regions]
    assert found == [["sin"], ["tanh", "sin", "cos"]]


def test_what_a_block_may_do_is_no_operation_unless_blocks_are_kept():
    undone = rr.block(
        lambda w, x: x + w, name="b", inverse=lambda w, y: jnp.subtract(y, w)
    )
    assert kinds(prune(flat(undone, X, X))) == ["add"]
    assert not any(op.is_written for op in flat(undone, X, X).ops)
    (call,) = flat(undone, X, X, keep_blocks=True).ops
    assert (call.is_block, call.is_inverse, call.is_written) == (True, False, False)
    (body,) = [flatten(call.eqn.params["jaxpr"], keep_blocks=True)]
    written = [op for op in body.ops if op.is_written]
    assert [op.called for op in body.ops if op.is_inverse] == [written[0].called]
    assert next(op.kind for op in body.ops) == "add"
    assert not any(op.is_block for op in body.ops)


def test_a_weak_type_is_dropped_where_nothing_else_changes():
    same = flat(lambda x: jax.lax.convert_element_type(2.0, jnp.float32) * x)
    assert {op.drops_weak_type for op in same.ops} == {False}
    weak = jax.make_jaxpr(lambda x: jnp.asarray(x, jnp.float32))(1.0)
    assert [op.drops_weak_type for op in flatten(weak).ops] == [True]
    (half,) = flat(lambda x: x.astype(jnp.bfloat16)).ops
    assert not half.drops_weak_type


def test_functions_with_derivatives_of_their_own_say_so():
    own = jax.custom_vjp(jnp.sin)
    own.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * x,))
    found = flat(lambda x: jnp.cos(own(x)), keep=lambda op: True)
    assert [op.has_own_derivative for op in found.ops] == [True, False]


# ---- Equal operations ----------------------------------------------------------------


def test_equal_operations_on_equal_values_are_one():
    def f(x):
        a, b = jnp.sin(x), jnp.sin(x)
        return jnp.cos(a) + jnp.cos(b), jnp.sin(a), a * 2.0, b * 2.0, b * 3.0

    program = deduplicate(flat(f))
    assert kinds(program) == ["sin", "cos", "add", "sin", "mul", "mul"]
    x = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    assert on(program, x) == on(flat(f), x)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x.sum(0), x.sum(1)),
        lambda x: (x + 1.0, x + 2.0),
        lambda x: (jnp.sin(x), jnp.sin(x + 1)),
        lambda x: (x - x.T.reshape(x.shape), x.T.reshape(x.shape) - x),
        lambda x: (x.astype(jnp.bfloat16), x.astype(jnp.float16)),
        lambda x: (x + np.ones((3, 4), np.float32), x + np.full((3, 4), 2, np.float32)),
    ],
)
def test_different_operations_stay(f):
    program = flat(f)
    first = set(kinds(program))
    assert len(kinds(deduplicate(program))) >= len(first)
    one, two = deduplicate(program).outputs
    assert one is not two


def test_names_of_merged_values_are_of_the_one_that_is_left():
    def f(x):
        return rr.name(jnp.sin(x), "a") + rr.name(jnp.sin(x), "b")

    program = deduplicate(flat(f))
    (made,) = [op.outputs[0] for op in program.ops if op.kind == "sin"]
    assert program.names == (("a", made), ("b", made))


def test_effects_make_no_two_operations_equal():
    def f(x):
        jax.debug.print("{}", x.sum())
        jax.debug.print("{}", x.sum())
        return x

    program = deduplicate(flat(f))
    printing = [op for op in program.ops if op.eqn.effects]
    assert len(printing) == 2
    assert [same_result(op, op.inputs) for op in printing] == [None, None]
    assert kinds(program).count("reduce_sum") == 1


# ---- What is needed ------------------------------------------------------------------


def chained(x):
    a = jnp.sin(x)
    b = jnp.cos(a)
    jax.debug.print("{}", x)
    jnp.exp(x)
    return jnp.tanh(b)


def test_what_makes_targets_of_what_is_given():
    program = flat(chained)
    x, made = program.inputs[0], {op.kind: op.outputs for op in program.ops}
    ops, used = needed(program.ops, program.outputs)
    assert ([op.kind for op in ops], used) == (["sin", "cos", "tanh"], {x})
    given = made["cos"][0]
    ops, used = needed(program.ops, program.outputs, [given])
    assert ([op.kind for op in ops], used) == (["tanh"], {given})
    ops, used = needed(program.ops, [made["sin"][0], x], [given])
    assert ([op.kind for op in ops], used) == (["sin"], {x})
    with_effects, _ = needed(program.ops, program.outputs, [given], keep_effects=True)
    assert [bool(op.eqn.effects) for op in with_effects] == [True, False]
    assert kinds(prune(program)) == ["sin", "cos", "tanh"]


def test_inputs_are_put_in_at_a_place():
    program = flat(lambda x, y: x - y, X, X)
    more = with_inputs(program, [X, X], 1)
    x, y = np.full((2, 3, 4), 5, np.float32), np.full((3, 4), 2, np.float32)
    assert on(more, x[0], 7 * x[1], 9 * x[1], y) == on(program, x[0], y)
    assert len(more.inputs) == 4
    assert with_inputs(program, [X], 0).inputs[1:] == program.inputs
    assert with_inputs(program, [X], 2).inputs[:2] == program.inputs


def test_arrays_closed_over_are_inputs_in_front_and_numbers_stay():
    array, key = np.arange(12, dtype=np.float32).reshape(3, 4), jax.random.key(0)

    def f(x):
        return x + array, x * 2.0 + jax.random.uniform(key, (3, 4)), array

    program = flat(f)
    lifted, arrays = lift_constants(program)
    assert lifted.inputs[len(arrays) :] == program.inputs
    assert sum(getattr(a, "shape", None) == (3, 4) for a in arrays) == 1
    left = [a for op in lifted.ops for a in op.inputs if isinstance(a, Constant)]
    assert left
    assert all(is_scalar(constant) for constant in left)
    assert lifted.outputs[2] in lifted.inputs
    x = np.ones((3, 4), np.float32)
    assert on(lifted, *arrays, x) == on(program, x)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.float32(2), True),
        (np.ones(1, np.float32), False),
        (np.ones((), np.int32), True),
        (jax.random.key(0), False),
    ],
)
def test_plain_numbers(value, found):
    assert is_scalar(Constant(jax.typeof(value), value)) == found


def test_operations_on_other_values():
    program = flat(lambda x: jnp.cos(jnp.sin(x)))
    other = Value(program.inputs[0].aval)
    env = {program.inputs[0]: other}
    ops = substitute(program.ops, env)
    assert ops[0].inputs == (other,)
    assert ops[1].inputs == ops[0].outputs
    assert not {*ops[0].outputs} & {*program.ops[0].outputs}
    moved = Program((other,), ops, (env[program.outputs[0]],))
    x = np.ones((3, 4), np.float32)
    assert on(moved, x) == on(program, x)


# ---- What operations cost ------------------------------------------------------------


def flops(f, *args):
    return program_flops(flat(f, *args))


def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    ("f", "args", "expected"),
    [
        (jnp.sin, [array(3, 4)], 12),
        (lambda x, y: x @ y, [array(3, 5), array(5, 7)], 2 * 3 * 5 * 7),
        (
            lambda x, y: jnp.einsum("bij,bjk->bik", x, y),
            [array(2, 3, 5), array(2, 5, 7)],
            2 * 2 * 3 * 5 * 7,
        ),
        (
            lambda x, y: jnp.einsum("ijk,kjl->il", x, y),
            [array(3, 5, 2), array(2, 5, 7)],
            2 * 3 * 10 * 7,
        ),
        (lambda x: x.sum(0), [array(3, 4)], 12),
        (lambda x: x.max(1), [array(3, 4)], 12),
        (lambda x: jnp.argmax(x, 1), [array(3, 4)], 12),
        (lambda x: jnp.cumsum(x, 1), [array(3, 4)], 12),
        (lambda x: x.T, [array(3, 4)], 0),
        (lambda x: x.reshape(12), [array(3, 4)], 0),
        (
            lambda x, k: jax.lax.conv(x, k, (1, 1), "VALID"),
            [array(2, 3, 8, 9), array(5, 3, 2, 4)],
            2 * (2 * 5 * 7 * 6) * (3 * 2 * 4),
        ),
        (
            lambda x, y, n: jax.lax.ragged_dot(x, y, n),
            [array(6, 5), array(2, 5, 7), array(2, dtype=jnp.int32)],
            2 * 6 * 7 * 5,
        ),
        (
            lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=5)[0],
            [array(3, 4)],
            5 * 12,
        ),
        (
            lambda p, x: jax.lax.cond(p, jnp.sin, lambda x: jnp.cos(jnp.exp(x)), x),
            [array(dtype=jnp.bool_), array(3, 4)],
            24,  # the dearer branch
        ),
    ],
)
def test_multiplications_and_additions_are_counted(f, args, expected):
    assert flops(f, *args) == expected


def test_operations_inside_are_counted_once():
    def f(x):
        step = lambda c, _: (jnp.sin(jnp.cos(c)), None)
        return jnp.exp(jax.lax.scan(step, x, length=5)[0])

    program = flat(f)
    assert num_operations(program) == 4
    assert [op.kind for op in every_op(program)] == ["scan", "cos", "sin", "exp"]
    outside = [op.kind for op in every_op(program, lambda closed: False)]
    assert outside == ["scan", "exp"]


def test_regions_inside_are_operations_where_they_are_kept():
    def f(x):
        step = lambda c, _: (region(c), None)
        return jax.lax.scan(step, x, length=5)[0]

    program = flat(f)
    assert [op.kind for op in every_op(program)] == ["scan", "cos"]
    assert len([*every_op(program, keep_checkpoints=True)]) == 3


@pytest.mark.parametrize(
    ("equation", "shapes", "found"),
    [
        ("ij,jk->ik", [(3, 5), (5, 7)], 0),
        ("bij,bjk->bik", [(2, 3, 5), (2, 5, 7)], 1),
        ("abij,abjk->abik", [(2, 2, 3, 5), (2, 2, 5, 7)], 2),
    ],
)
def test_dimensions_of_a_batch(equation, shapes, found):
    program = flat(
        lambda x, y: jnp.einsum(equation, x, y), *(array(*s) for s in shapes)
    )
    products = [op for op in program.ops if op.kind == "dot_general"]
    assert [num_batch_dims(op) for op in products] == [found]
    assert num_batch_dims(flat(jnp.sin).ops[0]) == 0


@pytest.mark.parametrize(
    ("shape", "dtype", "found"),
    [((3, 4), jnp.float32, 48), ((3, 4), jnp.bfloat16, 24), ((), jnp.int8, 1)],
)
def test_bytes_of_an_array(shape, dtype, found):
    assert num_bytes(jax.typeof(jnp.zeros(shape, dtype))) == found
    (op,) = flat(lambda x: x + x, array(*shape, dtype=dtype)).ops
    assert num_flops(op) == int(np.prod(shape))
