"""What plans of one action alone are held to, in the comparison of mixed plans."""

import json

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from experiments.bench.mixed import ALONE, alone, of_other_budgets, ways
from experiments.bench.searching import Searching

LAYERS, ROWS, WIDTH = 8, 4096, 512


@pytest.fixture(scope="module")
def search():
    def layer(x, w):
        return x + jnp.tanh(jnp.tanh(x @ w["up"])) @ w["down"], None

    def loss(w, x):
        return jnp.square(jax.lax.scan(layer, x, w)[0]).mean()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    w = {"up": array(LAYERS, WIDTH, 4 * WIDTH), "down": array(LAYERS, 4 * WIDTH, WIDTH)}
    problem = rr.Problem(loss, (w, array(ROWS, WIDTH)))
    return Searching(problem, rr.target("h100:1"), unroll=False)


@pytest.mark.slow
def test_each_way_alone_fits_and_takes_no_other(search):
    plain = search.baseline()
    budget = int(0.6 * plain.bytes)
    assert search.fit(budget).plan.fits
    rows = {way: alone(search, way, budget) for way in ALONE}
    assert rows["invert"] is None  # the layers have no inverse
    for way in ("recompute", "offload"):
        assert rows[way].bytes <= budget
        assert rows[way].plan is not None
    assert set(ways(rows["recompute"].plan)) <= {"save", "recompute"}
    assert "offload" in ways(rows["offload"].plan)


def test_a_run_at_a_few_budgets_leaves_what_the_file_has_of_others(tmp_path):
    def record(versions, *budgets):
        rows = [{"budget_bytes": budget} for budget in budgets]
        return {"target": "h100:8", "versions": versions, "results": rows}

    path = tmp_path / "mixed.json"
    assert of_other_budgets(path, record("jax 1", 20)) == []
    path.write_text(json.dumps(record("jax 1", 30, 20, 10)))
    kept = of_other_budgets(path, record("jax 1", 20))
    assert [row["budget_bytes"] for row in kept] == [30, 10]
    assert of_other_budgets(path, record("jax 2", 20)) == []
