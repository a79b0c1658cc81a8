"""The chosen assignment is the fastest within the budget: against all there are."""

import dataclasses
import itertools
import json
import math
import os
import threading
from pathlib import Path

import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from revremat.policies import LayerCost, UnitOptions, choose, predict_bytes
from revremat.policies._quiet import without_lines

costs = st.builds(
    LayerCost,
    name=st.just(""),
    kept_bytes=st.integers(0, 50).map(float),
    base_bytes=st.integers(0, 100).map(float),
    host_bytes=st.integers(0, 5).map(float),
    time_us=st.integers(1, 100).map(float),
    shortest_run=st.integers(1, 2),
    segment_length=st.sampled_from([1, 1, 2, 3]),
)


@st.composite
def all_options(draw):
    found = []
    for unit in range(draw(st.integers(1, 2))):
        drawn = draw(st.lists(costs, min_size=1, max_size=3))
        named = [dataclasses.replace(p, name=f"c{k}") for k, p in enumerate(drawn)]
        found.append(UnitOptions(f"u{unit}", draw(st.integers(1, 4)), tuple(named)))
    return found


def assignments(unit_options):
    """Every count of layers per candidate, those that keep least running first."""
    ordered = sorted(unit_options.costs, key=lambda p: (p.kept_bytes, -p.base_bytes))
    for counts in itertools.product(
        range(unit_options.num_layers + 1), repeat=len(unit_options.costs)
    ):
        shortest = [p.shortest_run for p in ordered]
        runs = zip(counts, shortest, strict=True)
        if sum(counts) == unit_options.num_layers and all(
            n == 0 or n >= k for n, k in runs
        ):
            yield tuple((p.name, n) for p, n in zip(ordered, counts, strict=True) if n)


def brute_force(all_options, budget, host_budget=math.inf):
    best = None
    for parts in itertools.product(*(list(assignments(m)) for m in all_options)):
        counts = {m.unit: part for m, part in zip(all_options, parts, strict=True)}
        lookup = {m.unit: {p.name: p for p in m.costs} for m in all_options}
        rows = [(lookup[u][name], n) for u, part in counts.items() for name, n in part]
        host = sum(p.host_bytes * n for p, n in rows)
        if predict_bytes(all_options, counts) <= budget and host <= host_budget:
            time = sum(p.time_us * n for p, n in rows)
            best = time if best is None else min(best, time)
    return best


@settings(max_examples=150, deadline=None)
@given(all_options(), st.integers(0, 500), st.integers(0, 20))
def test_the_choice_is_the_fastest_of_all_assignments(all_options, budget, host_budget):
    best = brute_force(all_options, budget, host_budget)
    found = choose(all_options, budget, host_budget_bytes=host_budget)
    if best is None:
        assert found is None
        return
    assert found is not None
    assert found.bytes <= budget + 1e-6
    assert found.host_bytes <= host_budget + 1e-6
    # Equal up to what is given away for fewer different candidates.
    assert found.time_us <= best * (1 + 1e-3) + 1e-2 * len(all_options)
    assert found.bound_us <= best + 1e-6


@settings(max_examples=150, deadline=None)
@given(all_options(), st.integers(0, 500), st.integers(0, 20))
def test_what_another_beats_makes_no_assignment_faster(all_options, budget, most):
    left = [unit_options.undominated() for unit_options in all_options]
    best = brute_force(all_options, budget, most)
    assert brute_force(left, budget, most) == best


@settings(max_examples=50, deadline=None)
@given(all_options(), st.integers(100, 500))
def test_a_pure_choice_gives_all_layers_of_a_unit_one_action(all_options, budget):
    found = choose(all_options, budget, pure=True)
    if found is not None:
        assert all(len(runs) == 1 for runs in found.counts.values())
        mixed = choose(all_options, budget)
        assert mixed is not None
        assert mixed.time_us <= found.time_us * (1 + 1e-3) + 1e-2 * len(all_options)


@settings(max_examples=50, deadline=None)
@given(all_options(), st.integers(100, 500))
def test_an_excluded_assignment_does_not_come_again(all_options, budget):
    seen = []
    for _ in range(3):
        found = choose(all_options, budget, excluding=seen)
        if found is None:
            return
        assert found.support not in seen
        seen.append(found.support)


@settings(max_examples=50, deadline=None)
@given(all_options(), st.integers(50, 400), st.integers(1, 200))
def test_more_memory_is_never_slower(all_options, budget, more):
    small, large = choose(all_options, budget), choose(all_options, budget + more)
    if small is not None:
        assert large is not None
        assert large.time_us <= small.time_us * (1 + 1e-3) + 1e-2 * len(all_options)


def test_what_keeps_least_runs_first():
    save = LayerCost("save", 10.0, 0.0, 0.0, 1.0)
    recompute = LayerCost("recompute", 1.0, 30.0, 0.0, 2.0)
    found = choose([UnitOptions("u", 4, (save, recompute))], 45.0)
    # All four kept need 40; recomputing needs 30 beside what is still kept.
    assert found is not None
    assert found.counts["u"] == (("save", 4),)
    tight = choose([UnitOptions("u", 4, (save, recompute))], 33.0)
    assert tight is not None
    # While the first layers are recomputed, the saved ones above are gone.
    assert tight.counts["u"] == (("recompute", 1), ("save", 3))
    assert tight.bytes == 31.0


def test_one_dear_layer_does_not_drown_what_the_others_gain():
    expensive = UnitOptions("compute-intensive", 1, (LayerCost("a", 0, 0, 0, 1e6),))
    cheap = UnitOptions(
        "u", 24, (LayerCost("b", 9, 0, 0, 95.0), LayerCost("c", 1, 0, 0, 100.0))
    )
    found = choose([expensive, cheap], 1000)
    assert found is not None
    assert found.counts["u"] == (("b", 24),)
    assert found.bound_us == pytest.approx(1e6 + 24 * 95, abs=1.0 + 1e-4 * 1e6)


def test_costs_may_be_of_differences():
    """Units costed alone are told against recomputing all, which takes nothing then."""
    unit_options = UnitOptions(
        "u", 4, (LayerCost("a", 0, 0, 0, 0.0), LayerCost("b", 9, 0, 0, -50.0))
    )
    found = choose([unit_options], 20)
    assert found is not None
    assert found.counts["u"] == (("a", 2), ("b", 2))
    assert -100.1 < found.bound_us <= -100


def test_ninety_six_layers_and_twelve_candidates_take_moments():
    unit_options = UnitOptions(
        "u",
        96,
        tuple(
            LayerCost(f"c{k}", 1e9 / (k + 1), 2e10 + 1e8 * k, 0.0, 900.0 + 40.0 * k)
            for k in range(12)
        ),
    )
    found = choose([unit_options], 6e10)
    assert found is not None
    assert found.bytes <= 6e10
    assert found.time_us == pytest.approx(found.bound_us, rel=0.01)


@pytest.mark.slow
def test_units_with_many_candidates_take_few_nodes(monkeypatch):
    """Without rows that only fractions of layers do not keep, there were 7,968."""
    solve, nodes = scipy.optimize.milp, []

    def counted(*args, **how):
        found = solve(*args, **how)
        nodes.append(found.mip_node_count)
        return found

    monkeypatch.setattr(scipy.optimize, "milp", counted)
    given = json.loads((Path(__file__).parent / "five_units.json").read_text())
    units = [
        UnitOptions(
            f"u{number}",
            unit["layers"],
            tuple(LayerCost(f"c{k}", *cost) for k, cost in enumerate(unit["costs"])),
        )
        for number, unit in enumerate(given["units"])
    ]
    assert [len(unit.costs) for unit in units] == [14, 43, 51, 83, 66]
    budget, host_budget = given["budget_bytes"], given["host_budget_bytes"]
    found = choose(units, budget, host_budget_bytes=host_budget)
    assert found is not None
    assert found.bytes <= given["budget_bytes"]
    assert found.bound_us >= (1 - 1e-3) * found.time_us
    assert nodes[0] < 1500


def test_a_long_recurrence_is_chosen_for_without_a_word_of_the_solver(capfd):
    """HiGHS writes to standard output here, and it is not asked to."""
    kept_base_host_time = [
        (0, 63960783037, 0, 723.606),
        (0, 63944625601, 0, 734.209),
        (939, 63944625601, 30935040, 1652.942),
        (250450, 65958907314, 0, 883.682),
        (1001801, 65958910943, 0, 1188.797),
        (6026883, 63944625601, 0, 723.669),
        (22055289, 63880514624, 0, 709.307),
        (24043820, 63944625601, 6187008, 729.363),
        (30069696, 63880515386, 0, 697.45),
        (38068435, 63880514375, 0, 679.756),
        (38084104, 63880516396, 0, 683.584),
        (128262749, 63944625601, 0, 966.441),
    ]
    costs = [LayerCost(f"c{n}", *p, 2) for n, p in enumerate(kept_base_host_time)]
    unit_options = UnitOptions("steps", 1024, tuple(costs))
    assignment = choose([unit_options], 83_332_366_336, host_budget_bytes=64e9)
    assert assignment is not None
    assert assignment.time_us == pytest.approx(718_600, rel=1e-3)
    assert assignment.bytes <= 83_332_366_336 * (1 + 1e-6)
    assert capfd.readouterr().out == ""


def test_of_two_threads_that_solve_neither_takes_the_others_output(capfd):
    inside, other = threading.Event(), threading.Event()

    def first():
        with without_lines(b"solver::"):
            inside.set()
            other.wait(0.5)

    def second():
        inside.wait()
        with without_lines(b"solver::"):
            other.set()
            os.write(1, b"of the second\n")

    threads = [threading.Thread(target=one) for one in (first, second)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    print("afterwards", flush=True)
    assert capfd.readouterr().out.splitlines() == ["of the second", "afterwards"]


def test_what_others_print_while_it_solves_is_not_lost(capfd):
    with without_lines(b"solver::"):
        os.write(1, b"solver:: step\nof a thread\nsolver::\n")
        print("of Python")
    printed = capfd.readouterr().out.splitlines()
    assert sorted(printed) == ["of Python", "of a thread"]
