"""How long a search goes on: quicker ones are the beginning of the others."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._search import Heuristics, begin


def loss(w, x):
    return rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x).sum()


SPECS = (jax.ShapeDtypeStruct((6, 16, 16), jnp.float32), jnp.ones((128, 16)))


@pytest.mark.parametrize(
    ("effort", "most"), [("quick", 9), ("normal", 24), ("exhaustive", None)]
)
def test_programs_beyond_those_that_are_needed(effort, most):
    assert Heuristics().most_compiles(effort, 6) == most


def test_one_more_candidate_of_each_unit_comes_to_a_quick_search():
    assert Heuristics().most_compiles("quick", 6, 2) == 11
    assert Heuristics().most_compiles("normal", 6, 2) == 24


@pytest.mark.parametrize(
    ("effort", "another", "unrolls", "most"),
    [
        ("quick", 0, True, 9),
        ("normal", 0, False, 12),
        ("normal", 0, True, 16),
        ("normal", 9, False, 18),
        ("exhaustive", 0, True, None),
    ],
)
def test_a_search_that_runs_what_it_compiles_compiles_less(
    effort, another, unrolls, most
):
    how = {"runs": True, "unrolls": unrolls}
    assert Heuristics().most_compiles(effort, 6, another, **how) == most


def test_a_number_of_compiles_counts_whatever_the_effort():
    problem, target = rr.Problem(loss, SPECS), rr.target("cpu:1")
    most = lambda **how: begin(problem, target, **how)[0].space.most_compiles
    assert most() is None
    assert most(effort="quick") == most(effort="normal") - 15
    assert most(effort="quick", most_compiles=7) == 7


def test_more_effort_asks_the_same_first_and_is_never_worse():
    asked: dict[str, list[str]] = {}
    found = {}
    for effort in ("quick", "exhaustive"):
        told = asked.setdefault(effort, [])
        found[effort] = rr.fit(
            loss,
            *SPECS,
            budget="55KiB",
            target="cpu:1",
            effort=effort,
            progress=lambda label, done, total, told=told: told.append(label),
        )
    quick, free = asked["quick"], asked["exhaustive"]
    assert free[: len(quick)] == quick
    assert (found["quick"].most_compiles, found["exhaustive"].most_compiles) == (
        len(quick),
        None,
    )
    best = {e: (not f.plan.fits, f.measurement.time.step_us) for e, f in found.items()}
    assert best["exhaustive"] <= best["quick"]


def test_an_effort_that_is_none_is_refused():
    wrote = r"effort is 'fast': write one of \('quick', 'normal', 'exhaustive'\)"
    with pytest.raises(rr.UserError, match=wrote):
        rr.fit(loss, *SPECS, budget="1MiB", target="cpu:1", effort="fast")  # pyright: ignore
