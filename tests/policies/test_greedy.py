"""Greedy assignments stay within the budget and are never faster than the exact one."""

import math
from types import SimpleNamespace

import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from revremat.policies import (
    LayerCost,
    UnitOptions,
    choose,
    choose_greedily,
    predict_bytes,
    smallest,
    smallest_bytes,
)
from revremat.policies._greedy import _moves

costs = st.builds(
    LayerCost,
    name=st.sampled_from("abcd"),
    kept_bytes=st.integers(0, 9).map(float),
    base_bytes=st.integers(0, 20).map(float),
    host_bytes=st.integers(0, 5).map(float),
    time_us=st.integers(1, 30).map(float),
    shortest_run=st.integers(1, 2),
    segment_length=st.sampled_from([1, 1, 2, 3]),
)
all_options = st.lists(
    st.tuples(
        st.integers(2, 5),
        st.lists(costs, min_size=1, max_size=4, unique_by=lambda p: p.name),
    ),
    min_size=1,
    max_size=2,
).map(
    lambda found: [
        UnitOptions(f"unit_{k}", layers, tuple(options))
        for k, (layers, options) in enumerate(found)
    ]
)


@settings(deadline=None)
@given(all_options, st.integers(0, 150), st.integers(0, 30))
def test_within_the_budget_and_no_faster_than_the_exact_assignment(
    all_options, budget, host
):
    greedy = choose_greedily(all_options, budget, host_budget_bytes=host)
    exact = choose(all_options, budget, host_budget_bytes=host)
    if greedy is None:
        return
    assert greedy.bytes <= budget
    assert greedy.host_bytes <= host
    assert math.isclose(greedy.bytes, predict_bytes(all_options, greedy.counts))
    for unit_options in all_options:
        runs = greedy.counts[unit_options.unit]
        shortest = {p.name: p.shortest_run for p in unit_options.costs}
        assert sum(n for _, n in runs) == unit_options.num_layers
        assert all(n >= shortest[name] for name, n in runs)
    assert exact is not None
    assert exact.time_us <= greedy.time_us * (1 + 1e-3)


@pytest.mark.parametrize(
    ("saved_us", "added_bytes", "first"),
    [
        ((10, 12), (1, 6), "a"),  # more time for all of it, less for each byte
        ((10, 12), (5, 6), "a"),  # 2 us for each byte, both: by name
        ((10, 13), (5, 6), "b"),
        ((10, 12), (6, 1), "b"),
        ((10, 12), (-3, 6), "a"),  # it gives bytes back besides
    ],
)
def test_what_saves_most_time_for_each_byte_is_taken_first(
    saved_us, added_bytes, first
):
    options = [
        LayerCost(name, 10 + added, 0, 0, 100 - saved)
        for name, saved, added in zip("ab", saved_us, added_bytes, strict=True)
    ]
    unit_options = UnitOptions("u", 1, (LayerCost("start", 10, 0, 0, 100), *options))
    # There is room for either of them, not for a step from one to the other.
    budget = 10 + added_bytes["ab".index(first)]
    moves = list(
        _moves({"u": {"start": 1}}, {"u": {p.name: p for p in unit_options.costs}})
    )
    assert moves[0] == {"u": {first: 1}}
    found = choose_greedily([unit_options], budget)
    assert found is not None
    assert found.bytes <= budget


def test_of_two_that_keep_the_same_the_wider_one_runs_first():
    wide, narrow = LayerCost("b", 7, 1, 0, 1), LayerCost("a", 7, 0, 0, 2)
    unit_options = UnitOptions("u", 3, (narrow, wide))
    exact, greedy = choose([unit_options], 21), choose_greedily([unit_options], 21)
    assert exact.counts == greedy.counts == {"u": (("b", 2), ("a", 1))}


def test_the_smallest_assignment_counts_what_other_units_take_at_the_peak():
    few_kept = LayerCost("a", kept_bytes=10, base_bytes=100, host_bytes=0, time_us=1)
    less_alone = LayerCost("b", kept_bytes=60, base_bytes=40, host_bytes=0, time_us=1)
    after = UnitOptions("v", 1, (LayerCost("c", 0, 105, 0, 1),))
    found = smallest([UnitOptions("u", 1, (few_kept, less_alone)), after])
    assert found == {"u": (("a", 1),), "v": (("c", 1),)}


def test_the_smallest_assignment_stays_within_the_host():
    unit_options = UnitOptions(
        "u", 4, (LayerCost("on host", 0, 5, 3, 1), LayerCost("again", 1, 5, 0, 9))
    )
    assert smallest([unit_options], 12) == {"u": (("on host", 4),)}
    assert smallest([unit_options], 11) == {"u": (("again", 4),)}


@settings(deadline=None)
@given(all_options)
def test_no_other_candidate_for_a_unit_is_smaller(all_options):
    found, least = smallest(all_options), smallest_bytes(all_options)
    for unit_options in all_options:
        for cost in unit_options.costs:
            other = {
                **found,
                unit_options.unit: ((cost.name, unit_options.num_layers),),
            }
            assert predict_bytes(all_options, other) >= least


def test_the_smallest_assignment_is_where_greed_begins():
    one = UnitOptions("u", 4, (LayerCost("a", 1, 5, 0, 9), LayerCost("b", 2, 9, 0, 1)))
    assert smallest_bytes([one]) == 4 * 1 + 5
    assert choose_greedily([one], 8.9) is None
    found = choose_greedily([one], 9)
    assert found is not None
    assert found.counts == {"u": (("a", 4),)}


@pytest.mark.parametrize("status", [1, 4], ids=["time", "nodes"])
def test_where_the_solver_stops_without_an_answer_it_is_chosen_greedily(
    monkeypatch, status
):
    stopped = SimpleNamespace(x=None, status=status)
    monkeypatch.setattr(scipy.optimize, "milp", lambda *_, **how: stopped)
    all_options = [
        UnitOptions("u", 4, (LayerCost("a", 1, 5, 0, 9), LayerCost("b", 2, 9, 0, 1)))
    ]
    assert choose(all_options, 15) == choose_greedily(all_options, 15)
    # What it may not be is not known to the greedy one.
    assert choose(all_options, 15, pure=True) is None
    stopped.status = 2  # that nothing fits is an answer
    assert choose(all_options, 15) is None


@pytest.mark.parametrize("solver", [choose, choose_greedily])
def test_of_a_unit_without_candidates_there_is_no_assignment(solver):
    some = LayerCost("recompute all", 1.0, 100.0, 0.0, time_us=4.0)
    units = [UnitOptions("a", 2, (some,)), UnitOptions("b", 2, ())]
    assert solver(units, 1e9) is None
    assert smallest_bytes(units) == math.inf
