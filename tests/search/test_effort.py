"""How long a search goes on: quicker ones are the beginning of the others."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._search import Heuristics, begin
from tests.search.world import Cost, World, small


def loss(w, x):
    return rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x).sum()


SPECS = (jax.ShapeDtypeStruct((6, 16, 16), jnp.float32), jnp.ones((128, 16)))


@pytest.mark.parametrize(
    ("effort", "most"), [("quick", 9), ("normal", 24), ("exhaustive", None)]
)
def test_programs_beyond_those_that_are_needed(effort, most):
    assert Heuristics().most_compiles(effort, 6) == most


@pytest.mark.parametrize(
    ("units", "loops", "quick", "to_choose", "normal"),
    [
        (0, 0, 9, 11, 24),
        (1, 0, 10, 13, 24),
        (2, 0, 11, 15, 24),
        (8, 0, 17, 24, 24),
        (16, 0, 25, 25, 25),
        (1, 1, 11, 14, 24),
        (2, 2, 12, 18, 28),
        (3, 3, 13, 22, 32),
        (4, 4, 14, 26, 36),
        (4, 1, 14, 20, 24),
    ],
)
def test_units_and_loops_that_can_be_unrolled_take_more_programs(
    units, loops, quick, to_choose, normal
):
    """A unit one more candidate; a loop two costs of what keeps all, and two sets.

    A normal search begins as a quick one does.
    """
    heuristics, how = Heuristics(), {"num_unrolled": loops}
    assert heuristics.most_compiles("quick", 6, units, **how) == quick
    assert heuristics.most_to_choose(6, units, **how) == to_choose
    assert heuristics.most_compiles("normal", 6, units, **how) == normal


@pytest.mark.parametrize(
    ("chosen", "most"),
    [({}, 13), ({"recompute all": 8}, 13), ({"fast": 8}, 10), ({"slow": 8}, 13)],
)
def test_a_quick_search_goes_on_while_nothing_is_chosen_that_fits(chosen, most):
    """That recomputes all is a plan, and is known before anything is chosen."""
    costs = {"fast": (small("a"), Cost(5, 40)), "slow": (small("b"), Cost(9, 90))}
    state, ask = World(costs).state(60)
    limits = dict(most_compiles=10, most_to_choose=13)
    state = state.but(space=dataclasses.replace(state.space, **limits))
    if chosen:
        counts = {state.units[0].name: tuple(chosen.items())}
        state = ask(state, [state.assignment_request(counts)])
    assert state.most_compiles == most
    assert state.room == most - state.num_compiles


@pytest.mark.parametrize(
    ("effort", "another", "loops", "most"),
    [
        ("quick", 0, 1, 9),  # what is best on paper is not run
        ("normal", 0, 0, 12),
        ("normal", 0, 1, 14),
        ("normal", 0, 9, 14),
        ("normal", 9, 0, 18),
        ("exhaustive", 0, 1, None),
    ],
)
def test_a_search_that_runs_what_it_compiles_compiles_less(
    effort, another, loops, most
):
    how = {"runs": True, "num_unrolled": loops}
    assert Heuristics().most_compiles(effort, 6, another, **how) == most


def test_a_number_of_compiles_counts_whatever_the_effort():
    problem, target = rr.Problem(loss, SPECS), rr.target("cpu:1")
    most = lambda **how: begin(problem, target, **how)[0].space.most_compiles
    assert most() is None
    assert most(effort="quick") == most(effort="normal") - 14
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
