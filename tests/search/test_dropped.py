"""A program that does not compile is dropped and named; the search goes on."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax.extend.core import Primitive

import revremat as rr
from revremat._measure import Failure, Request, try_each
from revremat._search import _oracle

LAYERS, WIDTH, ROWS = 6, 16, 512


def loss(w, x):
    return rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x).sum()


def problem():
    w = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    return rr.Problem(loss, (w, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)))


def failing(monkeypatch, fails):
    """Compiles fail whose plan or first layers take what `fails` says."""
    compile = try_each

    def some_fail(requests, *, target):
        requests = list(requests)
        found = compile(requests, target=target)
        for request, one in zip(requests, found, strict=True):
            error = RuntimeError("no\x1b[31m way\nmore")
            yield Failure(error) if fails(request) else one

    monkeypatch.setattr(_oracle, "try_each", some_fail)


def text_of(request):
    return jax.jit(request.step).lower(*request.specs).as_text()


def fit(**how):
    return rr.fit(problem(), budget="320KiB", target="cpu:1", **how)


def test_the_program_itself_failing_is_an_error(monkeypatch):
    failing(monkeypatch, lambda request: True)
    with pytest.raises(RuntimeError, match="way"):
        fit()


@pytest.mark.parametrize("number", [3, 8, 9])
def test_any_one_that_fails_is_named_and_another_plan_is_found(monkeypatch, number):
    """A shortened program, and whole ones."""
    count = iter(range(1000))
    failing(monkeypatch, lambda request: next(count) == number)
    found = fit()
    assert [one.reason for one in found.dropped] == ["RuntimeError: no[31m way"]
    assert found.plan.fits
    assert found.num_compiles > number
    assert found.dropped[0].name not in [row.name for row in found.rows]
    told = rr.render(found)
    assert "no[31m way" in told
    assert "1 programs could not be compiled" in told
    assert json.loads(found.to_json())["dropped"][0]["reason"].endswith("way")


def test_where_nothing_but_the_program_compiles_it_stays_as_it_is(monkeypatch):
    count = iter(range(1000))
    failing(monkeypatch, lambda request: next(count) > 0)
    found = fit()
    assert found.plan.units == ()
    assert [row.plan for row in found.rows] == [None]
    assert len(found.dropped) == found.num_compiles - 1


def test_a_unit_that_cannot_be_recomputed_leaves_the_others_theirs(monkeypatch):
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
    plain = exponentials(text_of(Request(jax.grad(two), two_kinds.specs)))
    failing(monkeypatch, lambda request: exponentials(text_of(request)) > plain)
    written = rr.measure(two_kinds, target="cpu:1").memory.total_bytes
    found = rr.fit(two_kinds, budget=int(0.8 * written), target="cpu:1")
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
        (RuntimeError("x" * 500), "RuntimeError: " + "x" * 103 + "..."),
    ],
)
def test_a_reason_is_one_short_line(error, reason):
    assert Failure(error).reason == reason
