"""Gains that are measured: pairs of one run, held to what was estimated."""

import json

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from experiments.bench import measured_gain
from experiments.bench.searching import Searching


@pytest.fixture(scope="module")
def search():
    def loss(w, x):
        return rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x).sum()

    w = jax.ShapeDtypeStruct((6, 16, 16), jnp.float32)
    x = jax.ShapeDtypeStruct((512, 16), jnp.float32)
    found = Searching(rr.Problem(loss, (w, x)), rr.target("cpu:1"))
    found.prepare()
    return found


def test_measured_gains_are_added_to_those_by_the_same_card_only(tmp_path):
    file = tmp_path / "gains.json"
    result = {"device": "cpu", "card": {"link_bytes_per_s": 1.5e9}}
    assert measured_gain._programs_of(file, result) == {}
    file.write_text(json.dumps(result | {"programs": {"moe": {"share": 0.8}}}))
    assert measured_gain._programs_of(file, result) == {"moe": {"share": 0.8}}
    assert measured_gain._programs_of(file, result | {"device": "H100"}) == {}


@pytest.mark.slow
def test_gains_are_looked_at_until_what_is_chosen_has_settled(search):
    looked = []
    settle = lambda rows: looked.append(rows) or len(looked) < 3
    race = lambda policies: [{"measured_us": 1.0} for _ in policies]
    rows = measured_gain.gains(search, 1, race, settle)
    assert len(looked) == 3
    assert all(len(rows_looked_at) == 2 * len(rows) for rows_looked_at in looked)


def test_measured_gains_are_paired_with_estimated_ones(search):
    slow = lambda policies: [
        {"policy": p.name, "measured_us": 10.0 * (n + 1)}
        for n, p in enumerate(policies)
    ]
    rows = measured_gain.gains(search, 1, slow, lambda _: False)
    for row in rows:
        answer_us, preset_us = row["measured_us"]
        assert row["measured_gain"] == preset_us / answer_us
        assert row["estimated_gain"] >= 1.0 or row["plan"] != row["preset"]
    half = [{"estimated_gain": 1.2, "measured_gain": 1.1}]
    assert measured_gain.summary(half)["share"] == pytest.approx(0.5)
    assert not measured_gain.summary(half)["held"]


@pytest.mark.parametrize(
    ("measured", "held"), [(1.02, True), (0.995, True), (0.98, False)]
)
def test_where_nothing_is_estimated_it_may_not_be_slower(measured, held):
    found = measured_gain.summary([{"estimated_gain": 1.0, "measured_gain": measured}])
    assert (found["share"], found["held"]) == (None, held)


def test_the_verdict_counts_programs_of_which_a_gain_was_estimated():
    rows = {"a": (1.2, 1.2), "b": (1.2, 1.0), "c": (1.0, 1.0), "d": (1.0, 0.9)}
    found = {
        name: measured_gain.summary([{"estimated_gain": e, "measured_gain": m}])
        for name, (e, m) in rows.items()
    }
    said = "held: 1 of 2 programs with a gain to hold (a); slower than the preset: d"
    assert measured_gain.verdict(found) == said


def test_documents_print_the_gains_that_were_measured():
    results = measured_gain.RESULTS
    docs = results.parents[1] / "docs/benchmarks/index.md"
    rows = [line.split("|")[1:-1] for line in docs.read_text().splitlines()]
    tables = {"measured-gain-anew": (4, 1), "measured-gain-timed": (7, 1)}
    for label, (width, place) in (tables | {"measured-gain": (7, 4)}).items():
        found = json.loads((results / f"{label}.json").read_text())["programs"]
        printed = {
            cells[0].strip(): [cell.strip() for cell in cells[place : place + 3]]
            for cells in rows
            if len(cells) == width and cells[0].strip() in found
        }
        assert printed == {name: figures(one) for name, one in found.items()}


def figures(found):
    """As they are printed: gains, and the share if there is anything to have."""
    gains = [f"{found[f'{kind}_gain']:.3f}" for kind in ("estimated", "measured")]
    share, slower = found["share"], "slower" if found["measured_gain"] < 1 else ""
    if share is None:
        return [*gains, "none promised"]
    return [*gains, f"{100 * share:.0f} %" if share > 0 else slower]
