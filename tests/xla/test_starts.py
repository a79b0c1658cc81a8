"""Slices whose start a loop of a CPU reads anew for each element, by hand."""

import jax
import jax.numpy as jnp
import pytest

from tests.xla.programs import spec
from tests.xla.test_evaluations import evaluations, pad

ROWS, WIDTH = 8, 4
NUMBER, STACK = spec(dtype=jnp.int32), spec(3, ROWS, WIDTH)
X, HALF = spec(ROWS, WIDTH), spec(ROWS // 2, WIDTH)
START = 4
"""Instructions that read one."""


def entry(stack, number):
    return jax.lax.dynamic_index_in_dim(stack, number, 0, keepdims=False)


def of_entry(run, *specs):
    """What a loop evaluates of an entry, and of other arrays."""

    def whole(number, stack, *others):
        return run(entry(stack, number), *others)

    return evaluations(whole, NUMBER, STACK, *specs)


ONCE = {
    "as it is": (lambda one, x: one * x + x, (X,)),
    "twice, at one index": (lambda one, x: one * x + one, (X,)),
    "one part of it": (lambda one, x: one[::2] * x + x, (HALF,)),
    "beside what is read in parts": (
        lambda one, x, y: one[::2] * x + y[::2] * y[1::2],
        (HALF, X),
    ),
    "in branches one of which is taken": (
        lambda one, x: pad(one[:4], 0, 1, 1) * 2.0 + x + pad(one[:4] * 3.0, 1, 0, 1),
        (X,),
    ),
}


@pytest.mark.parametrize("name", ONCE)
def test_a_start_is_read_before_the_loops_where_a_slice_is_needed_once(name):
    found = of_entry(ONCE[name][0], *ONCE[name][1])
    assert found.work > 0
    assert (found.starts, found.by_number) == (0, 0)


def test_of_two_entries_each_is_needed_once():
    def run(number, first, second, x):
        return entry(first, number) * x + entry(second, number)

    found = evaluations(run, NUMBER, STACK, STACK, X)
    assert (found.loads, found.starts) == (3 * 32, 0)


ANEW = {
    # loads, operations and starts of an element
    "turned around": (lambda one: one + one[::-1], (), (2, 1, 1)),
    "in parts": (lambda one, x: one[::2] * x + one[1::2], (HALF,), (3, 2, 1)),
    "with what is made of it": (
        lambda one, x: (one * x)[::2] + (one * x)[1::2],
        (X,),
        (4, 3, 1),
    ),
}


@pytest.mark.parametrize("name", ANEW)
def test_it_is_read_for_each_element_where_several_indices_need_the_slice(name):
    run, specs, (loads, operations, starts) = ANEW[name]
    found = of_entry(run, *specs)
    each = found.elements
    assert (found.loads, found.operations) == (loads * each, operations * each)
    assert found.starts == START * starts * each
    assert found.by_number == found.work == (loads + operations) * each + found.starts


def test_each_start_is_read():
    def run(first, second, stack, other):
        one, two = entry(stack, first), entry(other, second)
        return one[::2] * two[::2] + one[1::2] * two[1::2]

    found = evaluations(run, NUMBER, NUMBER, STACK, STACK)
    assert found.starts == 2 * START * found.elements


def test_what_such_a_slice_decides_is_taken_out_of_no_loop():
    def run(rows, x):
        scaled = rows[:, None] * x
        return scaled[::2] + scaled[1::2]

    def of_stack(number, rows, x):
        return run(entry(rows, number), x)

    plain = evaluations(run, spec(ROWS), X)
    assert plain.loads == 2 * 4 + 2 * 16  # a row's once, each of its numbers
    found = evaluations(of_stack, NUMBER, spec(3, ROWS), X)
    assert found.loads == 2 * 16 + 2 * 16


def test_only_elements_behind_its_branch_are_done_by_number():
    def run(one, x):
        return pad(one[::2] + one[1::2], 0, 1, 1) + x

    found = of_entry(run, X)
    assert found.elements == 32
    assert found.starts == START * 16
    # Behind it two loads and a sum, beside them a load, a sum and the branch.
    assert found.by_number == (2 + 1 + START + 1 + 1 + 1) * 16
    assert found.work == found.by_number + 3 * 16


def test_a_start_that_is_a_constant_is_known():
    def run(stack, x):
        one = entry(stack, 1)
        return one[::2] * x + one[1::2]

    assert evaluations(run, STACK, HALF).by_number == 0
