"""What a state says of itself: programs by their keys, rows, limits of compiles."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

import revremat as rr
from revremat import OFFLOAD, RECOMPUTE, SAVE
from revremat._graph import Graph
from revremat._measure import Failure
from revremat._measurement import Measurement, Memory, Time
from revremat._search import (
    BASELINE,
    Asking,
    Heuristics,
    ProgramKey,
    Request,
    Space,
    State,
)
from revremat._search._result import Row, Skipped
from revremat._search._state import OutOfCompiles, Trial, best_of, support_of
from tests.search.world import Cost, World, measured, small, unit_of

FULL = (RECOMPUTE,) * 8


def row(size, time_us, plan=None, predicted=None):
    return Row(f"{size} in {time_us}", plan, measured(size, time_us), predicted)


def keys(*few: Any) -> ProgramKey:
    """The program whose layers take these actions, eight in all."""
    return ProgramKey.of({"u": few}, gradient_barrier=False)


# ---- Rows ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "best"),
    [
        (100, (100, 5.0)),  # what takes all of a budget is within it
        (99, (90, 7.0)),
        (90, (90, 7.0)),
        (80, (80, 9.0)),
        (79, (80, 9.0)),  # nothing fits: the smallest
    ],
)
def test_the_best_is_the_fastest_that_fits_or_else_the_smallest(budget, best):
    sizes = [(100, 5.0), (200, 1.0), (90, 7.0), (95, 7.0), (80, 9.0)]
    found = best_of([row(*size) for size in sizes], budget)
    assert (found.bytes, found.time_us) == best


def known(budget, *sizes, **how) -> Any:
    """A state that knows the baseline and programs that keep some layers."""
    world = World(costs={"a": (small(), Cost(4.0, 80.0))})
    state, ask = world.state(budget, **how)
    for number, (size, time_us) in enumerate(sizes):
        request = Request(keys(*(SAVE,) * number, *FULL[number:]), f"{number} saved")
        state = state.with_measured(request, measured(size, time_us))
    return state, ask, world


@pytest.mark.parametrize(("budget", "fits"), [(50, True), (49, False)])
def test_a_budget_is_kept_to_the_byte(budget, fits):
    state, _, _ = known(budget, (50, 900.0))
    assert state.fits == fits
    assert state.but(bound_us=800.0).known_bound_us == (800.0 if fits else 0.0)
    assert state.but(bound_us=918.0).known_bound_us == (900.0 if fits else 0.0)
    assert state.but(bound_us=919.0).known_bound_us == 0.0  # the best has other layers


@pytest.mark.parametrize(("budget", "exceed"), [(30, False), (29, True)])
def test_arguments_alone_may_be_more_than_the_budget(budget, exceed):
    memory = Memory(30, 0, 0, 10, 0)
    one = Measurement("", "", "", 1, 1, 0, memory, Time(1.0, 1.0))
    state = State.of(known(1)[0].space).within(budget)
    state = state.with_measured(Request(BASELINE, ""), one)
    assert state.arguments_exceed == exceed


@pytest.mark.parametrize(
    ("own", "left"), [(0.0, 100.0), (30.0, 70.0), (100.0, 0.0), (120.0, 0.0)]
)
def test_what_a_program_has_on_the_host_of_its_own_is_not_left_for_layers(own, left):
    state, _, _ = known(100)
    target: Any = SimpleNamespace(host_bytes=100.0)
    state = state.but(space=dataclasses.replace(state.space, target=target))
    assert state.host_bytes == 100.0
    state = state.with_measured(state.all_recomputed(), measured(10, 1.0, own))
    assert state.host_bytes == left


@pytest.mark.parametrize(
    ("predicted", "size", "is_unrolled", "off"),
    [
        (100.0, 111, True, ("unroll",)),
        (100.0, 110, True, ()),  # a tenth more is believed
        (None, 500, True, ()),
        (100.0, 500, False, ()),
    ],
)
def test_unrolled_programs_that_take_far_more_than_expected_are_far_off(
    predicted, size, is_unrolled, off
):
    state, _, _ = known(100, (50, 9.0))
    request = Request(keys(*(SAVE(unroll=is_unrolled),) * 8), "", predicted)
    assert state.with_measured(request, measured(size, 1.0)).far_off == off


def test_what_was_expected_first_stays_and_only_of_whole_programs():
    state, _, _ = known(100, (50, 9.0))
    request = lambda expected: Request(keys(*FULL), "", expected)
    expected = lambda state: state.row(keys(*FULL)).predicted_bytes
    assert state.with_expected(request(None)) is state
    told = state.with_expected(request(40.0))
    assert expected(told) == 40.0
    assert told.with_expected(request(60.0)) is told
    shortened = Request(state.probe_key(state.units[0], (SAVE,) * 8), "", 4.0)
    assert state.with_expected(shortened) is state


def test_what_does_not_compile_is_no_row_and_is_known():
    state, _, _ = known(100, (50, 9.0))
    key, probe = keys(*(SAVE,) * 8), state.probe_key(state.units[0], (small("c"),))
    failed = Failure(RuntimeError("no"))
    before = state.num_compiles
    assert not state.knows(Request(key, ""))
    assert not state.knows(Request(probe, ""))
    state = state.with_measured(Request(key, "whole"), failed)
    state = state.with_measured(Request(probe, "first"), failed)
    assert state.knows(Request(key, ""))
    assert state.knows(Request(probe, ""))
    assert state.num_compiles == before + 2
    assert state.row(key) is None
    assert key not in state.rows
    assert state.failed_labels == {probe: "first"}
    assert state.row(keys(SAVE)) is None


@pytest.mark.parametrize(
    ("barrier", "percent", "name"),
    [
        (False, None, "all"),
        (True, None, "all; gradient barrier"),
        (False, 90, "all; XLA's remat pass at 90 %"),
        (True, 90, "all; gradient barrier; XLA's remat pass at 90 %"),
    ],
)
def test_a_trial_is_called_by_what_is_around_its_layers(barrier, percent, name):
    key = ProgramKey.of({}, barrier, percent)
    assert Trial(key, "all", None, measured(1, 1.0)).name == name


@pytest.mark.parametrize(
    ("actions", "alike", "unrolled", "on_host"),
    [
        (FULL, True, False, False),
        ((SAVE(unroll=True),) * 8, True, True, False),
        ((*FULL[1:], OFFLOAD), False, False, True),
        ((*FULL[1:], RECOMPUTE(offload=["a"], unroll=True)), False, True, True),
    ],
)
def test_a_row_says_whether_layers_are_alike_and_what_any_of_them_takes(
    actions, alike, unrolled, on_host
):
    plan = Graph((unit_of(),), "", "").plan({"u": actions})
    found = row(1, 1.0, plan)
    assert found.alike == alike
    assert (found.takes("unroll"), found.takes("on_host")) == (unrolled, on_host)
    assert found.takes("unroll", "on_host") == (unrolled or on_host)
    assert not found.takes()


def test_a_row_without_a_plan_takes_nothing_and_is_not_alike():
    assert not row(1, 1.0).alike
    assert not row(1, 1.0).takes("unroll", "on_host")


# ---- Programs ------------------------------------------------------------------------


def two() -> Any:
    """Two units; in the second one layers are outer ones."""
    state, _ = World(unit_names=("u", "v")).state(100)
    u, v = state.units
    units = (u, dataclasses.replace(v, fingerprint="another"))
    space = dataclasses.replace(state.space, units=units)
    return state.but(space=space, units=units)


def test_a_program_has_its_units_in_order_and_what_is_around_recomputes_all():
    state = two()
    key = state.key_of({"v": FULL, "u": (SAVE,) * 8})
    assert [unit for unit, _ in key.actions] == ["u", "v"]
    assert not key.gradient_barrier
    assert state.but(gradient_barrier=True).key_of({"v": FULL}).gradient_barrier
    held = state.but(gradient_barrier=True).key_of({"v": FULL}, gradient_barrier=False)
    assert not held.gradient_barrier
    outer, inner = state.units
    space = dataclasses.replace(state.space, units=(inner,), enclosing=(outer,))
    inside = state.but(space=space, units=(inner,))
    assert inside.key_of({"v": (SAVE,) * 8}).actions == (
        ("u", FULL),
        ("v", (SAVE,) * 8),
    )
    assert inside.probe_key(inner, (SAVE,)).recomputed == ("u",)
    # What is around and does something else is another program's.
    kept = inside.with_measured(
        Request(state.key_of({"u": (SAVE,) * 8}), ""), measured(1, 1.0)
    )
    recomputed = inside.with_measured(
        Request(inside.key_of({"v": FULL}), ""), measured(1, 1.0)
    )
    assert [inside.decided(r) for r in kept.rows.values()][-1] == {}
    assert [inside.decided(r) for r in recomputed.rows.values()][-1] == {"v": FULL}


def test_a_shortened_program_has_all_other_units_unless_it_is_isolated():
    state = two()
    u, v = state.units
    assert state.probe_key(u, (SAVE,)).recomputed == ("v",)
    assert state.probe_key(v, (SAVE,)).recomputed == ("u",)
    alone = state.but(isolated=frozenset("u"), gradient_barrier=True)
    key = alone.probe_key(u, (SAVE,))
    assert (key.recomputed, key.is_isolated, key.gradient_barrier) == ((), True, True)
    assert not alone.probe_key(v, (SAVE,)).is_isolated


def test_what_other_units_keep_in_a_shortened_program_is_their_input():
    """Eight layers' of one byte each."""
    state = two()
    by_others = lambda state: {n: c.kept_by_others for n, c in state.costs.items()}
    assert by_others(state) == {"u": 8.0, "v": 8.0}
    assert by_others(state.but(isolated=frozenset("u"))) == {"u": 0.0, "v": 8.0}


@pytest.mark.parametrize(
    ("actions", "runs"),
    [
        (FULL, (("recompute all", 8),)),
        ((*FULL[2:], SAVE, SAVE), (("recompute all", 6), ("save all", 2))),
        (
            (SAVE, *FULL[2:], SAVE),
            (("save all", 1), ("recompute all", 6), ("save all", 1)),
        ),
    ],
)
def test_a_program_is_told_as_runs_of_candidates(actions, runs):
    state, _, _ = known(100)
    request = state.assignment_request({"u": runs}, 7.0)
    assert request.key == keys(*actions)
    assert request.predicted_bytes == 7.0
    state = state.with_measured(request, measured(50, 9.0))
    assert state.counts_of(state.row(keys(*actions))) == {"u": runs}
    assert state.assignment_request({"u": (("unknown", 8),)}) is None


@pytest.mark.parametrize(
    ("key", "is_costed"),
    [
        (keys(*FULL), True),
        (keys(*(SAVE,) * 8), True),
        (keys(*FULL[1:], small()), True),
        (keys(*FULL[1:], small("c")), False),  # no candidate
        (dataclasses.replace(keys(*FULL), gradient_barrier=True), False),
        (dataclasses.replace(keys(*FULL), remat_pass_percent=90), False),
        (ProgramKey.of({}, gradient_barrier=False), False),
        (BASELINE, False),
    ],
)
def test_programs_have_costs_whose_actions_all_do(key, is_costed):
    state, _, _ = known(100)
    state = state.with_measured(Request(key, ""), measured(50, 9.0))
    assert state.is_costed(state.row(key)) == is_costed
    assert (state.best_costed is not None) == is_costed
    assert state.key_of_row(state.row(key)) == key


def test_the_best_with_costs_need_not_be_the_best():
    state, _, _ = known(100, (90, 9.0), (60, 20.0), (70, 10.0))
    state = state.with_measured(Request(BASELINE, ""), measured(80, 1.0))
    assert (state.best.bytes, state.best_costed.bytes) == (80, 90)
    assert state.within(75).best_costed.bytes == 70


def test_layers_take_their_time_beside_all_else():
    state, _, _ = known(100, (90, 9.0), (90, 9.0))
    found = [state.layers_us(r) for r in state.rows.values()]
    assert found == [0.0, 8 * 100.0, 50.0 + 7 * 100.0]


def test_options_are_left_out_by_what_they_do_and_when_they_came():
    costs = {
        "out": (RECOMPUTE(unroll=True), Cost(1.0, 1.0)),
        "host": (OFFLOAD, Cost(1.0, 2.0)),
        "generated": (small(), Cost(1.0, 3.0)),
    }
    state, _ = World(costs).state(100)
    state = state.but(generated=frozenset({("u", "generated"), ("v", "save all")}))
    names = lambda *kinds: {c.name for c in state.options_without(kinds)[0].costs}
    every = {"recompute all", "save all", *costs}
    assert names() == every
    assert names("unroll") == every - {"out"}
    assert names("on_host") == every - {"host"}
    assert names("generated") == every - {"generated"}
    assert names("unroll", "on_host", "generated") == {"recompute all", "save all"}
    assert state.lacking("generated", "u") == every - {"generated"}


def test_of_what_is_chosen_what_keeps_least_comes_first():
    state, _ = World(
        {"two": (small("ab"), SAVE_COST), "one": (small(), SAVE_COST)}
    ).state(100)
    support = frozenset({("u", "two"), ("u", "save all"), ("u", "one"), ("v", "x")})
    assert support_of(support, state.costs["u"]) == ["one", "two", "save all"]


SAVE_COST = Cost(4.0, 80.0)


# ---- Limits --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("most", "room"), [(None, None), (9, 4), (6, 1), (5, 0), (4, 0)]
)
def test_room_is_what_is_left_of_the_compiles_allowed(most, room):
    state, _, _ = known(100)
    space = dataclasses.replace(state.space, most_compiles=most)
    assert state.but(space=space, num_compiles=5).room == room


def test_what_is_cut_is_told_in_order():
    state = known(100)[0].skip("fill", 3).skip("peel", 1)
    assert state.skipped == (Skipped("fill", 3), Skipped("peel", 1))


def test_needed_are_the_baseline_first_costs_and_the_reference():
    """One of each candidate, one more of the one that recomputes everything."""
    assert known(100)[0].num_needed == 1 + (3 + 1) + 1
    assert two().num_needed == 1 + 2 * (2 + 1) + 1


class Answering:
    """An oracle that notes what it is asked."""

    def __init__(self):
        self.asked = []

    def measure(self, requests):
        requests = list(requests)
        self.asked += [request.label for request in requests]
        return [measured(10 * len(self.asked), 1.0) for _ in requests]


def requests_of(*numbers):
    """Programs that keep so many layers."""
    key = lambda n: keys(*(SAVE,) * n, *FULL[n:])
    return [Request(key(n), str(n), 10.0 + n) for n in numbers]


@pytest.mark.parametrize(
    ("room", "asked", "left_out"),
    [
        (None, ["1", "2", "3"], 0),
        (3, ["1", "2", "3"], 0),
        (2, ["1", "2"], 1),
        (0, [], 3),
    ],
)
def test_each_new_program_is_asked_about_once_as_long_as_there_is_room(
    room, asked, left_out
):
    state, _, _ = known(100, (50, 9.0))
    most = None if room is None else state.num_compiles + room
    space = dataclasses.replace(state.space, most_compiles=most)
    state, oracle = state.but(space=space), Answering()
    few = requests_of(1, 0, 2, 1, 3, 0)
    if left_out:
        with pytest.raises(OutOfCompiles) as cut:
            Asking(oracle)(state, few)
        after = cut.value.state
        assert cut.value.number == left_out
    else:
        after = Asking(oracle)(state, few)
        # What was known has an expectation by now.
        assert after.row(few[1].key).predicted_bytes == 10.0
    assert oracle.asked == asked
    assert after.num_compiles == state.num_compiles + len(asked)


def test_of_two_labels_of_a_program_the_first_is_asked():
    one, other = requests_of(1, 1)
    oracle = Answering()
    renamed = dataclasses.replace(other, label="other")
    Asking(oracle)(known(100)[0], [one, renamed])
    assert oracle.asked == ["1"]


def test_progress_counts_on_and_never_beyond_the_end():
    told = []
    state = known(100)[0].but(num_compiles=2)
    asking = Asking(Answering(), 4, lambda *what: told.append(what))
    asking(state, requests_of(1, 2, 3))
    assert told == [("1", 2, 4), ("2", 3, 4), ("3", 4, 5)]


def test_a_baseline_that_does_not_compile_is_an_error():
    class Failing:
        def measure(self, requests):
            return [Failure(KeyError("no")) for _ in requests]

    state = State.of(known(100)[0].space)
    after = Asking(Failing())(state, requests_of(1))
    assert after.rows == {}
    with pytest.raises(KeyError, match="no"):
        Asking(Failing())(state, [Request(BASELINE, "baseline")])


@pytest.mark.parametrize(
    ("platform", "enclosing", "can"),
    [("cuda", "", True), ("tpu", "", True), ("cpu", "", False)],
)
def test_layers_are_sent_where_there_is_a_host_apart(platform, enclosing, can):
    unit = unit_of(enclosing=enclosing)
    target: Any = SimpleNamespace(platform=platform)
    space = Space(Graph((unit,), "", ""), target, (unit,), pools={}, proposed={})
    assert space.can_offload(unit) == can
    branch = dataclasses.replace(unit, in_branch=True)
    within = dataclasses.replace(space, graph=Graph((branch,), "", ""))
    assert not within.can_offload(branch)


def test_a_state_of_another_budget_forgets_what_was_chosen_for_it():
    state = known(100)[0].but(bound_us=3.0, greedy_us=4.0, is_settled=True)
    other = state.within(50)
    assert other.budget_bytes == 50
    assert (other.bound_us, other.greedy_us) == (0.0, None)
    assert (other.is_settled, other.leading) == (False, None)
    assert other.trials == state.trials


def test_best_known_so_far_is_a_plan_of_the_graph():
    state, _, _ = known(60, (50, 9.0))
    assert state.best.plan == state.space.graph.plan({"u": rr.RECOMPUTE})
    assert BASELINE.plan(state.space.graph) is None


@pytest.mark.parametrize("measured", [False, True])
def test_where_times_are_measured_a_program_of_all_layers_is_a_plan(measured):
    heuristics = Heuristics()
    if measured:
        heuristics = heuristics.for_measured_times()
    world = World(layers=4)
    state, ask = world.state(60, heuristics=heuristics)
    unit, before = state.units[0], state.num_compiles
    few, all_layers = (SAVE, RECOMPUTE), (SAVE,) * 3 + (RECOMPUTE,)
    requests = [
        Request(state.probe_key(unit, actions), f"u: {text}")
        for actions, text in ((few, "1 and 1"), (all_layers, "3 and 1"))
    ]
    state = ask(state, requests)
    row = state.rows.get(state.key_of({"u": all_layers}))
    assert state.num_compiles == before + 2
    assert (row is not None) == measured
    assert row is None or (row.name, row.plan.actions["u"]) == ("3 and 1", all_layers)
    asked = Request(state.key_of({"u": all_layers}), "once more")
    assert state.knows(asked) == measured
