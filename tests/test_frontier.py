"""What less memory costs in time: as data, as text, as a page."""

import json
import re

import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import Frontier
from revremat._frontier import Point
from tests.test_fit import loss, specs
from tests.xla.programs import spec

GIB = 2**30
FRONTIER = Frontier(
    program="gpt <24>",
    target="h100:8",
    usable_bytes=77 * GIB,
    points=(
        Point("24 x recompute all", "preset", 20 * GIB, 420e3),
        Point("save all + 23 x dots", "searched", 30 * GIB, 350e3, 60 * GIB, "{}"),
        Point("dots", "preset", 40 * GIB, 360e3),
        Point("baseline", "baseline", 90 * GIB, 500e3),
    ),
    num_compiles=31,
)


def test_the_best_points_are_beaten_by_none_in_both():
    assert [p.name for p in FRONTIER.best] == [
        "24 x recompute all",
        "save all + 23 x dots",
    ]


def test_json_reads_back_and_newer_schemas_are_refused():
    assert Frontier.from_json(FRONTIER.to_json()) == FRONTIER
    newer = {**json.loads(FRONTIER.to_json()), "schema": 99}
    for text in (json.dumps(newer), "[]", "{}", "no"):
        with pytest.raises(ValueError, match=r"newer schema|not a frontier"):
            Frontier.from_json(text)


def test_the_first_schema_called_the_baseline_otherwise():
    old = FRONTIER.to_json().replace('"baseline"', '"as written"')
    old = old.replace('"schema": 2', '"schema": 1')
    assert Frontier.from_json(old) == FRONTIER


def test_the_table_says_which_are_not_beaten():
    lines = [s for s in rr.render(FRONTIER).splitlines() if s.endswith("yes")]
    assert [line.split("  ")[0] for line in lines] == [
        "24 x recompute all",
        "save all + 23 x dots",
    ]


def test_the_page_draws_every_point_and_loads_nothing(tmp_path):
    text = rr.write(FRONTIER, tmp_path / "out.html").read_text()
    assert text.count("<circle") == len(FRONTIER.points)
    assert "gpt &lt;24&gt;" in text
    assert "<script" not in text
    assert not re.search(r"https?://|url\(", text)
    assert "usable: 77.0 GiB" in text
    places = re.findall(
        r'<circle class="dot-[a-z-]+" cx="([\d.]+)" cy="([\d.]+)"', text
    )
    assert all(0 < float(x) < 1000 and 0 < float(y) < 460 for x, y in places)


@pytest.fixture(scope="module")
def found():
    return rr.frontier(loss, *specs(4), target="cpu:1", num_budgets=2)


def test_presets_and_answers_are_on_it(found):
    kinds = {p.kind for p in found.points}
    assert {"baseline", "preset"} <= kinds
    answers = [p for p in found.points if p.budget_bytes is not None]
    assert answers
    for answer in answers:
        assert answer.bytes <= answer.budget_bytes
        fitting = [p for p in found.points if p.bytes <= answer.budget_bytes]
        assert answer.step_us == min(p.step_us for p in fitting)


def test_its_plans_can_be_applied(found):
    point = next(p for p in found.best if p.plan)
    plan = rr.Plan.from_json(point.plan)
    assert plan.compiled_bytes == point.bytes
    assert callable(rr.apply(loss, plan))


def test_budgets_of_a_program_without_equal_layers_reach_down_to_the_smallest():
    widths = range(16, 64, 8)
    ws = [spec(width, width + 8) for width in widths]

    def unequal(ws, x):
        for w in ws:
            x = jnp.sin(jnp.tanh(x @ w)) * jnp.cos(x @ w)
        return x.sum()

    found = rr.frontier(unequal, ws, spec(512, 16), target="cpu:1", num_budgets=4)
    budgets = {p.budget_bytes for p in found.points if p.budget_bytes is not None}
    smallest = min(p.bytes for p in found.points)
    baseline = next(p.bytes for p in found.points if p.kind == "baseline")
    assert smallest < 0.6 * baseline
    assert len(budgets) >= 3
    assert min(budgets) == pytest.approx(smallest, rel=0.02)


def test_mistakes_are_told_in_a_sentence():
    with pytest.raises(rr.UserError, match="1 budgets make no frontier"):
        rr.frontier(loss, *specs(), target="cpu:1", num_budgets=1)
