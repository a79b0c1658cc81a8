"""Runs: where a row repeats itself; and that finding layers takes about linear time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import revremat as rr
from revremat.program.ir._ops import flatten
from revremat.program.units._repeats import Loop, longest_loop
from revremat.program.units._runs import find_runs
from revremat.program.units._scattered import find_layers
from revremat.program.units._stretch import Stretch
from tests.calls import counted

rows = st.lists(st.integers(0, 2), max_size=40)


def by_definition(tokens, most_period, lacking=0.0):
    """Every period, compared with the row itself."""
    found = []
    for period in range(1, len(tokens)):
        least = max(1, (1 - lacking) * period)
        if period > most_period or period > int(len(tokens) / (2 - lacking)):
            break
        start = None
        for k in range(len(tokens) - period + 1):
            same = k < len(tokens) - period and tokens[k] == tokens[k + period]
            if same and start is None:
                start = k
            if not same and start is not None:
                if k - start >= least:
                    found.append((start, period, k - start))
                start = None
    return found


def listed(runs):
    columns = (runs.starts, runs.periods, runs.matched)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(rows, st.integers(1, 40), st.sampled_from([0.0, 0.1, 0.5]))
def test_runs_are_those_of_the_definition(tokens, most_period, lacking):
    found = find_runs(np.array(tokens, np.int64), most_period, lacking)
    assert listed(found) == by_definition(tokens, most_period, lacking)


@given(rows, st.data())
def test_of_a_part_they_are_what_is_left_of_the_whole(tokens, data):
    begin = data.draw(st.integers(0, len(tokens)))
    end = data.draw(st.integers(begin, len(tokens)))
    whole = find_runs(np.array(tokens, np.int64), len(tokens))
    part = by_definition(tokens[begin:end], len(tokens))
    assert listed(whole.within(begin, end)) == [(k + begin, p, n) for k, p, n in part]


def stretch(loss, *args):
    program = flatten(jax.make_jaxpr(loss)(*args))
    return Stretch(program.ops, {v for v in program.outputs if hasattr(v, "aval")})


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)


@pytest.mark.parametrize(
    ("kinds", "loop"),
    [
        ("ststst", Loop(0, 2, 6)),
        ("cststst", Loop(1, 2, 6)),
        ("ssssss", Loop(0, 1, 6)),  # of what covers as much, the shortest iterations
        ("sctstststs", Loop(2, 2, 8)),
        ("stcstc", None),  # two iterations are too few without a product
        ("mtcmtc", Loop(0, 3, 6)),
        ("mtcmt", None),
    ],
)
def test_the_longest_loop(kinds, loop):
    does = {"s": jnp.sin, "t": jnp.tanh, "c": jnp.cos}

    def loss(w, x):
        for kind in kinds:
            x = x @ w if kind == "m" else does[kind](x)
        return x

    found = stretch(loss, spec(8, 8), spec(8, 8))
    assert longest_loop(found, 0, len(found), 0.0, len(found)) == loop


def in_turn(codes):
    does = (jnp.sin, jnp.tanh, jnp.exp, jnp.cos)

    def loss(x):
        for code in codes:
            x = does[code](x)
        return x.sum()

    return loss, spec(8)


def all_different(n):
    return in_turn(np.random.default_rng(0).integers(0, 4, n))


def many_small_loops(n):
    """Three products, and a number of which there is no other."""

    def loss(w, x):
        for k in range(n // 4):
            x = x @ w @ w @ w * float(k)
        return x.sum()

    return loss, spec(8, 8), spec(8, 8)


def one_long_loop(n):
    def loss(w, x):
        for _ in range(n // 3):
            x = x + jnp.tanh(x @ w)
        return x.sum()

    return loss, spec(8, 8), spec(8, 8)


@pytest.mark.every_commit("one_long_loop")
@pytest.mark.parametrize("program", [all_different, many_small_loops, one_long_loop])
def test_eight_times_as_many_operations_take_not_much_more_than_eight_times(program):
    """By the quadratic searches for loops of before: 64 times."""
    took_calls = []
    for n in (500, 4_000):
        found = stretch(*program(n))
        made_bytes = float(found.made[-1])
        assert found.tokens.max() < len(found)  # operations are described only once
        with counted() as calls:
            find_layers(found, made_bytes)
        took_calls.append(calls.number)
    assert took_calls[1] < 12 * took_calls[0]


@pytest.mark.slow
def test_a_loop_of_many_iterations_inside_a_long_program_is_found():
    """Longer than what was searched before."""
    codes = np.random.default_rng(0).integers(0, 4, 21_000)

    def loss(w, x):
        y = in_turn(codes)[0](x[0])
        for _ in range(5):
            x = x + jnp.tanh(x @ w) @ w
        return (x * y).sum()

    found = stretch(loss, spec(64, 64), spec(512, 64))
    (layers,) = find_layers(found, float(found.made[-1]))
    assert len(layers.iterations) == 5


def test_a_program_of_many_small_loops_is_traced_however_many_they_are():
    """One search after another, not one inside the other."""
    loss, *specs = many_small_loops(4_800)
    graph = rr.trace(loss, *specs)
    assert graph.units
