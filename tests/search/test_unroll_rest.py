"""What of the best plan is still a loop is unrolled, too, where that nearly fits."""

import pytest

import revremat as rr
from revremat._search.passes._unroll_rest import unroll_rest
from revremat.policies import Candidate
from tests.search.world import Cost, World, small

LOOP = {"small": (small(), Cost(4.0, 80.0))}
PLAIN = {"save all (unrolled)": (rr.SAVE(unroll=True), Cost(10.0, 45.0))}
MIXED = ("small", 4), ("save all (unrolled)", 4)  # takes 66
ALL = {"small (unrolled)": 4, "save all (unrolled)": 4}


def after(rest, runs=MIXED, error=0.0):
    """The best within 66 bytes, and what was asked for beside some runs."""
    unrolled = {"small (unrolled)": (small(unroll=True), rest)} if rest else {}
    off = lambda runs: error if runs == ALL else 0.0
    world = World({**LOOP, **PLAIN, **unrolled}, off)
    state, ask = world.state(66)
    if rest is None:  # it was offered, and a limit came before its cost
        more = Candidate("small (unrolled)", small(unroll=True))
        state = state.but(candidates={"u": (*state.candidates["u"], more)})
    state = unroll_rest(world.tried(state, ask, *runs), ask)
    return dict(state.counts_of(state.best)["u"]), [dict(runs) for runs in world.asked]


def test_what_costs_took_for_a_little_too_large_may_fit():
    assert after(Cost(4.2, 70.0), error=-2.0) == (ALL, [ALL])
    assert after(Cost(4.2, 70.0)) == (dict(MIXED), [ALL])


@pytest.mark.parametrize(
    "rest",
    [
        Cost(4.5, 70.0),  # 3 % over
        Cost(4.0, 80.0),  # no faster
        None,  # it has no cost
    ],
)
def test_what_promises_nothing_is_not_compiled(rest):
    assert after(rest) == (dict(MIXED), [])


@pytest.mark.parametrize(
    "runs",
    [
        [("small", 8)],  # other passes unroll plans of loops
        [("small (unrolled)", 8)],
    ],
)
def test_only_a_plan_of_both_is_looked_at(runs):
    assert after(Cost(4.0, 70.0), runs) == (dict(runs), [])
