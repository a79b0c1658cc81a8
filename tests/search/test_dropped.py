"""A program that does not compile is dropped and named; the search goes on."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive

import revremat as rr
from revremat._measure import Failure

LAYERS, WIDTH, ROWS = 6, 16, 512


def loss(w, x):
    return rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x).sum()


def problem():
    w = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    return rr.Problem(loss, (w, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)))


def failing(fails):
    """A compiler on which steps fail of which `fails` says so."""

    def compiler(step):
        if fails(step):
            raise RuntimeError("no\x1b[31m way\nmore")
        return rr.measure(step, target="cpu:1")

    return compiler


def text_of(step):
    return jax.jit(step.function).lower(*step.specs).as_text()


def fit(**how):
    return rr.fit(problem(), budget="320KiB", target="cpu:1", **how)


def test_the_program_itself_failing_is_an_error():
    compiler = failing(lambda step: True)
    with pytest.raises(RuntimeError, match="way"):
        fit(oracle=compiler)


@pytest.mark.parametrize("number", [3, 7, 10, 14])
def test_any_one_that_fails_is_named_and_another_plan_is_found(number):
    """Shortened programs, the only one that is unrolled too, and whole ones."""
    count = iter(range(1000))
    compiler = failing(lambda step: next(count) == number)
    found = fit(oracle=compiler)
    assert [one.reason for one in found.dropped] == ["RuntimeError: no[31m way"]
    assert found.plan.fits
    assert found.num_compiles > number
    assert found.dropped[0].name not in [row.name for row in found.rows]
    told = rr.render(found)
    assert "no[31m way" in told
    assert "dropped: 1 of the programs above" in " ".join(told.split())
    assert json.loads(found.to_json())["dropped"][0]["reason"].endswith("way")


def test_where_nothing_but_the_program_compiles_it_stays_as_it_is():
    count = iter(range(1000))
    compiler = failing(lambda step: next(count) > 0)
    found = fit(oracle=compiler)
    assert found.plan.units == ()
    assert [row.plan for row in found.rows] == [None]
    assert len(found.dropped) == found.num_compiles - 1


def test_a_unit_that_cannot_be_recomputed_leaves_the_others_theirs():
    layer = lambda w, x: x + jnp.tanh(jnp.sin(x @ w)) @ w
    other = lambda w, x: x + jnp.cos(jnp.exp(-jnp.abs(x @ w))) @ w

    def two(ws, x):
        for w in ws:
            x = rr.block(other, "other")(w, rr.block(layer, "layer")(w, x))
        return (x**2).sum()

    array = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    two_kinds = rr.Problem(two, ([array(32, 32)] * 4, array(2048, 32)))
    # Of what is recomputed, the exponential comes twice in a layer.
    exponentials = lambda text: text.count("stablehlo.exponential")
    plain = exponentials(text_of(rr.Step(jax.grad(two), two_kinds.specs)))
    compiler = failing(lambda step: exponentials(text_of(step)) > plain)
    written = rr.measure(two_kinds, target="cpu:1").memory.total_bytes
    how = {"target": "cpu:1", "oracle": compiler}
    found = rr.fit(two_kinds, budget=int(0.8 * written), **how)
    assert set(found.plan.actions) == {"layer"}
    assert found.plan.fits
    assert found.dropped


def test_an_inverse_that_the_platform_lacks_leaves_the_other_ways():
    elsewhere = Primitive("only_elsewhere")
    elsewhere.def_abstract_eval(lambda x: x)

    def undo(w, y):
        return elsewhere.bind(y)

    def layer(w, x):
        return x + jnp.sin(jnp.tanh(x @ w)) @ w

    def undone(w, x):
        return rr.stack(layer, w, x, inverse=undo).sum()

    args = problem().specs
    found = rr.fit(undone, *args, budget="400KiB", target="cpu:1", unroll=False)
    assert found.plan.fits
    (dropped,) = found.dropped
    assert dropped.name == "stack: 6 x invert"
    assert "only_elsewhere" in dropped.reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("a\nb"), "ValueError: a"),
        (TypeError(""), "TypeError: no message"),
        (RuntimeError("x" * 106), "RuntimeError: " + "x" * 106),
        (RuntimeError("x" * 107), "RuntimeError: " + "x" * 103 + "..."),
        (RuntimeError("x" * 500), "RuntimeError: " + "x" * 103 + "..."),
    ],
)
def test_a_reason_is_one_short_line(error, reason):
    assert Failure(error).reason == reason
