"""What a program computes, as text: equal for equal computations, and only then."""

import enum
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat.program.ir._fingerprint import (
    ALIKE,
    STABLE,
    _param,
    block_name,
    describe,
    describe_form,
    describe_op,
    fingerprint,
    input_order,
)
from revremat.program.ir._ops import flatten

X = jax.ShapeDtypeStruct((3, 4), jnp.float32)


def flat(f, *args, **how):
    return flatten(jax.make_jaxpr(f)(*(args or (X,))), **how)


def twice(x):
    return x * 2.0


EQUAL = {
    "calls are inlined": (twice, lambda x: jax.jit(twice)(x)),
    "names do not count": (twice, lambda x: rr.name(x * 2.0, "a")),
    "names in between": (
        lambda x: jnp.sin(x * 2.0),
        lambda x: jnp.sin(rr.name(rr.name(x * 2.0, "a"), "b")),
    ),
    "blocks do not count": (twice, rr.block(twice, name="b")),
    "regions do not count": (twice, jax.checkpoint(twice)),
    "numbers of one dtype": (twice, lambda x: x * np.float32(2)),
    "an array by its shape": (
        lambda x: x + np.ones((3, 4), np.float32),
        lambda x: x + np.zeros((3, 4), np.float32),
    ),
}
DIFFERENT = {
    "numbers": (twice, lambda x: x * 3.0),
    "operations": (twice, lambda x: x + 2.0),
    "order of operands": (
        lambda x: jnp.sin(x) - jnp.cos(x),
        lambda x: jnp.cos(x) - jnp.sin(x),
    ),
    "what is given back": (lambda x: (x, x * 2.0), lambda x: (x * 2.0, x)),
    "which value is used": (
        lambda x: jnp.sin(jnp.cos(x)) + x,
        lambda x: (y := jnp.cos(x)) + jnp.sin(y),
    ),
    "axes": (lambda x: x.sum(0, keepdims=True), lambda x: x.sum(1, keepdims=True)),
    "shapes of arrays": (
        lambda x: x + np.ones((3, 4), np.float32),
        lambda x: x + np.ones((1, 4), np.float32),
    ),
    "dtypes": (lambda x: x.astype(jnp.bfloat16), lambda x: x.astype(jnp.float16)),
    "bodies of loops": (
        lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0],
        lambda x: jax.lax.scan(lambda c, _: (jnp.cos(c), None), x, length=3)[0],
    ),
    "lengths of loops": (
        lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0],
        lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), None), x, length=4)[0],
    ),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_computations_have_one_fingerprint(name):
    one, other = (flat(f) for f in EQUAL[name])
    assert fingerprint(one) == fingerprint(other)


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_ones_have_two(name):
    one, other = (flat(f) for f in DIFFERENT[name])
    assert fingerprint(one) != fingerprint(other)
    assert describe(one, how=ALIKE) != describe(other, how=ALIKE)


def test_a_fingerprint_is_sixteen_digits_and_counts_what_is_added():
    program = flat(twice)
    assert len(fingerprint(program)) == 16
    assert int(fingerprint(program), 16) >= 0
    found = {fingerprint(program, *more) for more in ((), ([True],), ([False], "x"))}
    assert len(found) == 3
    assert fingerprint(program, [False]) == fingerprint(program)


def test_of_two_inputs_it_counts_which_is_marked():
    program = flat(lambda x, y: x - y, X, X)
    marks = [(), (True, False), (False, True), (True, True)]
    assert len({fingerprint(program, mark) for mark in marks}) == 4


@pytest.mark.parametrize("how", [STABLE, ALIKE])
def test_in_one_process_arrays_count_by_their_numbers(how):
    one, other, same = (
        flat(lambda x, a=a: x + a)
        for a in (np.ones(4, np.float32), np.zeros(4, np.float32), np.ones(4, "f4"))
    )
    assert (describe(one, how=how) == describe(other, how=how)) == (how == STABLE)
    assert describe(one, how=how) == describe(same, how=how)


def test_a_weak_type_counts_only_where_programs_stand_for_one_another():
    f = lambda x: jnp.sin(jnp.asarray(x, jnp.float32))
    weak, strong = (flatten(jax.make_jaxpr(f)(a)) for a in (1.0, np.float32(1)))
    assert describe(weak) == describe(strong)
    assert describe(weak, how=ALIKE) != describe(strong, how=ALIKE)


def own(forward_times, backward_times):
    f = jax.custom_vjp(lambda x: forward_times * x)
    f.defvjp(lambda x: (forward_times * x, None), lambda _, ct: (backward_times * ct,))
    return lambda x: f(x)


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [((2.0, 2.0), (2.0, 2.0), True), ((2.0, 2.0), (2.0, 3.0), False)],
)
def test_derivatives_that_users_wrote_count_by_what_they_compute(one, other, alike):
    both = [flat(own(*times), keep=lambda op: True) for times in (one, other)]
    first, second = (describe(program, how=ALIKE) for program in both)
    assert (first == second) == alike
    assert describe(both[0]) == describe(both[1])


@pytest.mark.parametrize(
    ("f", "order"),
    [
        (lambda x, y: x - y, (0, 1)),
        (lambda x, y: y - x, (1, 0)),
        (lambda x, y: jnp.sin(y), (1, 0)),
        (lambda x, y: (jnp.sin(y), x), (1, 0)),
        (lambda x, y: (y, x), (1, 0)),
        (lambda x, y: 2.0, (0, 1)),
    ],
)
def test_inputs_come_in_order_of_first_use(f, order):
    assert input_order(flat(f, X, X)) == order


def test_what_an_operation_does_whatever_its_values_are():
    program = flat(lambda x: (jnp.sin(x), jnp.sin(x * 2.0), x * 3.0, jnp.sin(x[0])))
    one, times, two, more, *_, small = program.ops
    assert describe_op(one) == describe_op(two)
    assert describe_op(one) != describe_op(small)
    assert describe_op(times) == describe_op(more)  # numbers are values
    assert describe_form(one) == describe_form(two)
    assert describe_form(one) != describe_form(small)
    across, along = flat(lambda x: (x.sum(0), x.sum(1))).ops
    assert describe_op(across) != describe_op(along)
    square = jax.ShapeDtypeStruct((4, 4), jnp.float32)
    across, along = flat(lambda x: (x.sum(0), x.sum(1)), square).ops
    assert describe_op(across) != describe_op(along)
    assert describe_form(across) == describe_form(along)


class Colour(enum.Enum):
    RED = 1


class Pair(NamedTuple):
    a: int
    b: str


def named(x):
    return x


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        (None, "None"),
        ("a", "'a'"),
        (np.float32(0.5), "0.5"),
        (np.dtype("float32"), "float32"),
        (Colour.RED, "Colour.RED"),
        (Pair, "Pair"),
        (Pair(1, "x"), "{a:1,b:'x'}"),
        ((1, (2, 3)), "(1,(2,3))"),
        ([1, "b"], "(1,'b')"),
        (frozenset({"b", "a"}), "('a','b')"),
        ({"a": 1}, "{a:1}"),
        (named, "function"),
        (partial(named, 2), "(function,(2),{})"),
    ],
)
def test_parameters_as_text(value, text):
    assert _param(value, STABLE) == text


def test_functions_and_arrays_are_told_apart_in_one_process():
    assert _param(named, ALIKE) == _param(named, ALIKE) != _param(twice, ALIKE)
    one, two = np.ones(2), np.zeros(2)
    assert _param(one, STABLE) == _param(two, STABLE)
    assert _param(one, ALIKE) == _param(np.ones(2), ALIKE) != _param(two, ALIKE)
    key = jax.random.key(0)
    assert _param(key, ALIKE) != _param(jax.random.key(0), ALIKE)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("revremat.block.mlp", "mlp"),
        ("revremat.block.mlp#3", "mlp"),
        ("revremat.block.", ""),
        ("relu", "relu"),
    ],
)
def test_names_of_blocks(called, name):
    assert block_name(called) == name
