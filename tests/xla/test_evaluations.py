"""How often a loop fusion evaluates what it is made of, by hand."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import xla
from tests.xla.programs import spec

ROWS, WIDTH = 8, 4


def compiled(function, *specs):
    """The only loop fusion of a compiled function, and its module."""
    module = xla.Module.from_bytes(
        xla.compile_step(function, specs, rr.target("cpu:1")).hlo
    )
    (found,) = [i for i in module.instructions.values() if i.fusion_kind == "kLoop"]
    return found, module


def evaluations(function, *specs):
    return xla.evaluations_of(*compiled(function, *specs))


X = spec(ROWS, WIDTH)


def neighbours(x):
    """Each row and the one after it; and the same of those: three rows of four."""
    twice = x[1:] * x[:-1]
    return twice[1:] * twice[:-1]


def halves(x):
    return x[::2] + x[1::2]


def pad(x, low, high, interior, axis=0):
    edges = [(0, 0, 0)] * x.ndim
    edges[axis] = (low, high, interior)
    return jax.lax.pad(x, 0.0, edges)


WORK = {
    # function: loads, operations, guards, elements, innermost
    "in place": (lambda x: x * x + x, (32, 64, 0, 32, 4)),
    "what is used twice at one index": (
        lambda x: (x * 2.0) * (x * 2.0 + 1.0),
        (32, 96, 0, 32, 4),
    ),
    "every other row": (halves, (32, 16, 0, 16, 4)),
    "rows three of which are read": (neighbours, (3 * 24, 3 * 24, 0, 24, 4)),
    "half of it is padding": (
        lambda x: pad(x * 2.0, 0, 1, 1) + 1.0,
        (32, 32 + 64, 64, 64, 4),
    ),
    "two halves that fit into one another": (
        lambda x: pad(x * 2.0, 0, 1, 1) + pad(x * 3.0, 1, 0, 1),
        (64, 64 + 64, 128, 64, 4),
    ),
    "one after the other": (
        lambda x: jnp.concatenate([x * 2.0, x[:4] * 3.0]) + 1.0,
        (48, 48 + 48, 48, 48, 4),
    ),
    "turned around": (lambda x: x[::-1] * 2.0 + x, (64, 64, 0, 32, 4)),
}


@pytest.mark.parametrize("name", WORK)
def test_what_is_evaluated(name):
    function, (loads, operations, guards, elements, innermost) = WORK[name]
    found = evaluations(function, X)
    assert (found.loads, found.operations, found.guards) == (loads, operations, guards)
    assert (found.elements, found.innermost) == (elements, innermost)
    assert found.work == loads + operations + guards


def test_what_outer_dimensions_decide_is_evaluated_outside():
    # One row's scale for all of the row.
    by_row = evaluations(lambda x, s: x * (s * 2.0)[:, None], X, spec(ROWS))
    assert (by_row.loads, by_row.operations) == (32 + 8, 32 + 8)


@pytest.mark.parametrize(("width", "times"), [(64, 1), (65, ROWS)])
def test_of_short_rows_what_the_loop_around_does_not_decide_is_evaluated_once(
    width, times
):
    size = ROWS * width
    found = evaluations(
        lambda x, s: x * jnp.cos(s * 2.0)[None], spec(ROWS, width), spec(width)
    )
    assert (found.loads, found.operations) == (
        size + times * width,
        size + times * width,
    )
    assert found.functions == {"cosine": times * width}


def test_of_short_rows_only_what_loops_outside_decide_is_evaluated_in_them():
    # Angles by position and by place in a head, for all heads.
    found = evaluations(
        lambda x, s: x * jnp.sin(s)[:, None], spec(8, 4, 16), spec(8, 16)
    )
    assert found.functions == {"sine": 8 * 16}


def test_functions_are_counted_as_often_as_they_are_computed():
    found = evaluations(lambda x: neighbours(jnp.tanh(x)), X)
    assert found.functions == {"tanh": 3 * 24}


@pytest.mark.parametrize(
    ("rows", "shape", "crowded"),
    [
        (4, (512, 8), 0),  # of 4 KiB: all begin on one set, which keeps four lines
        (5, (512, 8), 5),
        (5, (508, 8), 0),  # on others
        (5, (2, 16), 0),  # whole lines at a time
        (5, (64, 8), 0),  # of 2 KiB: on two sets, three lines on one and two on one
        (10, (64, 8), 10),
    ],
)
def test_rows_crowd_the_sets_of_a_cache_where_they_are_too_many(rows, shape, crowded):
    def run(x):
        return sum(x[:, 2 * k : 2 * k + 1] * 2.0 for k in range(rows))

    if shape == (64, 8):  # every row

        def run(x):
            return sum(x[:, k : k + 1] * 2.0 for k in range(rows))

    found = evaluations(run, spec(2, 32, *shape))
    assert found.crowded == crowded * 2 * shape[0] * shape[1]


def test_an_update_in_place_computes_what_it_replaces():
    def run(x, row):
        return jax.lax.dynamic_update_slice(x, jnp.sin(row) * row, (3, 0))

    module = xla.Module.from_bytes(
        xla.compile_step(run, (X, spec(1, WIDTH)), rr.target("cpu:1"), donate=(0,)).hlo
    )
    (i,) = [i for i in module.instructions.values() if i.fusion_kind == "kLoop"]
    found = xla.evaluations_of(i, module)
    assert (found.elements, found.loads) == (WIDTH, WIDTH)
    assert found.functions == {"sine": WIDTH}
