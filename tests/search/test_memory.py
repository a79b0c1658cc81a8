"""What a search has measured, the next one of the same process need not ask for."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._measure import _steps
from revremat._search import CompilerOracle, ProbeKey, ProgramKey, Request
from revremat._search._start import traced_twice
from revremat.xla.compile import _compile

WIDTH, ROWS, LAYERS = 32, 256, 3
ALONE = {"is_isolated": False, "gradient_barrier": False}


def problem(factor=1.0, donate=()):
    def loss(w, x):
        layer = lambda x, w: (factor * jnp.tanh(x @ w), None)
        return (jax.lax.scan(layer, x, w)[0] ** 2).mean()

    w = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    x = jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)
    return rr.Problem(loss, (w, x), donate=donate)


@pytest.fixture
def lowered(monkeypatch, tmp_path):
    """How many steps were lowered."""
    monkeypatch.setenv("REVREMAT_CACHE", str(tmp_path))
    count = []
    lower = _compile.lower_step

    def counted(*args, **kwargs):
        count.append(None)
        return lower(*args, **kwargs)

    monkeypatch.setattr(_steps.xla, "lower_step", counted)
    return count


def search(lowered, made, budget="90%", **how):
    before = len(lowered)
    fit = rr.fit(made, budget=budget, target="cpu:1", most_compiles=8, **how)
    return fit, len(lowered) - before


def test_a_second_budget_is_answered_by_what_the_first_one_measured(lowered):
    first, many = search(lowered, problem())
    second, few = search(lowered, problem(), budget="95%")
    assert many >= 5
    assert few <= 2
    assert second.num_compiles == first.num_compiles
    again = {row.name: row for row in second.rows}
    assert all(again[row.name] == row for row in first.rows if row.name in again)


def test_an_equal_problem_is_told_by_its_own_name(lowered):
    names = "first", "second", ""
    found = [
        search(lowered, dataclasses.replace(problem(), name=name))[0] for name in names
    ]
    assert [fit.measurement.program for fit in found] == ["first", "second", "step"]


def test_a_shortened_program_of_all_layers_is_the_whole_one(lowered):
    """Of three layers the second probe has them all."""
    target = rr.target("cpu:1")
    graph, traced = traced_twice(problem(), target)
    oracle = CompilerOracle(problem(), traced, graph, target)
    unit = graph.units[0]
    of = lambda number, action, **how: ProbeKey(
        unit.name, (action,) * number, (), **{**ALONE, **how}
    )
    whole = ProgramKey.of({unit.name: (rr.RECOMPUTE,) * LAYERS}, False)
    keys = [of(LAYERS, rr.RECOMPUTE), whole, of(LAYERS, rr.RECOMPUTE), of(1, rr.SAVE)]
    found = oracle.measure([Request(key, "") for key in keys])
    assert len(lowered) == 2
    assert found[0] == found[1] == found[2] != found[3]
    oracle.measure([Request(whole, "")])
    assert len(lowered) == 2
    others = [of(LAYERS, rr.SAVE), of(LAYERS, rr.RECOMPUTE, is_isolated=True)]
    oracle.measure([Request(key, "") for key in others])
    assert len(lowered) == 4


@pytest.mark.parametrize(
    "other", [problem(factor=2.0), problem(donate=(0,))], ids=["loss", "step"]
)
def test_another_program_is_measured_anew(lowered, other):
    _, many = search(lowered, problem())
    _, anew = search(lowered, other)
    assert anew == many


def test_another_folder_of_compiles_is_another_memory(lowered, monkeypatch, tmp_path):
    _, many = search(lowered, problem())
    monkeypatch.setenv("REVREMAT_CACHE", str(tmp_path / "other"))
    _, anew = search(lowered, problem())
    assert anew == many
