"""Passes before anything is decided: what is measured apart, held to, held together."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from revremat import RECOMPUTE, SAVE
from revremat._measure import Failure
from revremat._measurement import Buffer, Measurement, Memory, Time
from revremat._search import BASELINE, Asking, Heuristics, ProbeKey, Request, State
from revremat._search.passes._ask import offer, probe, refine, try_assignments
from revremat._search.passes._calibrate import calibrate
from revremat._search.passes._gradient_barrier import (
    gradient_barrier,
    without_barrier,
)
from revremat._search.passes._profile import _fused_us, profile_layers
from revremat._search.passes._softmax_maxima import softmax_maxima
from revremat.policies import Candidate
from tests.search.world import Cost, World, measured, small, unit_of


def noted(oracle) -> Any:
    """How passes ask, and the labels of what they asked."""
    labels: list[str] = []

    class Noting:
        def measure(self, requests):
            requests = list(requests)
            labels.extend(request.label for request in requests)
            return oracle.measure(requests)

    return Asking(Noting()), labels


# ---- How passes ask ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("actions", "label"),
    [
        ((SAVE,), "u: 1 x save all"),
        ((SAVE,) * 4, "u: 4 x save all"),
        ((SAVE, RECOMPUTE, RECOMPUTE), "u: save all + 2 x recompute all"),
        ((SAVE, RECOMPUTE, SAVE), "u: save all + recompute all + save all"),
        ((small("b"),) * 2, "u: 2 x RECOMPUTE(save=['b'])"),
    ],
)
def test_shortened_programs_are_called_by_their_runs(actions, label):
    state, _ = World().state(100)
    asked = []
    probe(state, lambda state, few: asked.extend(few), state.units[0], [actions])
    assert [request.label for request in asked] == [label]
    assert asked[0].key == state.probe_key(state.units[0], actions)


def test_what_is_offered_is_news_and_has_first_costs():
    world = World({"a": (small(), Cost(4.0, 80.0)), "b": (small("b"), Cost(5.0, 70.0))})
    state, _ = world.state(100)
    (unit,) = state.units
    ask, labels = noted(world)
    few = state.candidates["u"][:3]
    state = state.but(candidates={"u": few}, probes={})
    more = [Candidate("b", small("b")), Candidate("again", small()), few[0]]
    more += [Candidate("b too", small("b"))]
    after = offer(state, ask, unit, more)
    # Of two that do the same the name of the last one counts.
    assert [c.name for c in after.candidates["u"]] == [*(c.name for c in few), "b too"]
    assert labels == ["u: 8 x b too"]
    assert offer(after, ask, unit, more) == after
    assert refine(after, ask, frozenset({("u", "b too")})).num_compiles == (
        after.num_compiles + 1
    )
    assert labels[-1] == "u: 4 x b too"
    assert refine(after, ask, frozenset({("v", "b too")})) == after


def test_of_assignments_each_gets_its_row_and_what_fails_none():
    world = World()
    state, ask = world.state(100)
    counts = [{"u": (("save all", n), ("recompute all", 8 - n))} for n in (1, 2)]
    unknown = {"u": (("unknown", 8),)}
    tries = [(counts[1], 3.0), (unknown, None), (counts[0], None)]
    state, rows = try_assignments(state, ask, tries)
    found = [row and dict(state.counts_of(row)["u"])["save all"] for row in rows]
    assert found == [2, None, 1]
    assert [row and row.predicted_bytes for row in rows] == [3.0, None, None]


# ---- First costs ---------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "time_us"), [("block", 80.0), ("scan", 0.0)])
def test_out_of_loops_layers_may_be_fused_with_what_they_take_and_give(kind, time_us):
    """One byte in and four out, eight layers, passed over twice."""
    unit = unit_of(kind=kind, outputs=(6,))
    state: Any = SimpleNamespace(
        space=SimpleNamespace(
            target=SimpleNamespace(card=SimpleNamespace(stream_bandwidth=1e6))
        )
    )
    assert _fused_us(state, unit) == time_us


@pytest.mark.parametrize(
    ("step_us", "num_devices", "is_small", "isolated"),
    [
        (16_000.0, 1, True, True),  # 80 us are half a percent
        (15_999.0, 1, True, False),
        (16_000.0, 2, True, False),
        (16_000.0, 1, False, False),
    ],
)
def test_small_parts_that_are_hardly_fused_are_compiled_alone(
    step_us, num_devices, is_small, isolated
):
    world = World(kind="block")
    state, _ = world.state(100)
    unit = unit_of(kind="block", outputs=(6,))
    card = SimpleNamespace(stream_bandwidth=1e6)
    target: Any = SimpleNamespace(card=card, num_devices=num_devices)
    small_units = frozenset("u" if is_small else "v")
    space = dataclasses.replace(
        state.space, units=(unit,), target=target, small_units=small_units
    )
    state = State.of(space).but(calibration={"u": 3.0})
    state = state.with_measured(Request(BASELINE, ""), measured(10, step_us))
    found = profile_layers(state, lambda state, requests: state)
    assert bool(found.isolated) == isolated
    assert found.calibration == {}


# ---- Held to the whole program -------------------------------------------------------


def uncosted(world, isolated=(), **fixed) -> Any:
    """A state that knows the baseline alone."""
    state, _ = world.state(1000, **fixed)
    target: Any = SimpleNamespace(
        platform="cuda",
        host_bytes=1e9,
        num_devices=1,
        card=SimpleNamespace(stream_bandwidth=1e9),
    )
    space = dataclasses.replace(
        state.space, target=target, small_units=frozenset(isolated)
    )
    ask, labels = noted(world)
    state = ask(State.of(space).within(1000), [Request(BASELINE, "baseline")])
    state = profile_layers(state, ask)
    labels.clear()
    return state, ask, labels


@pytest.mark.parametrize("error", [7.0, -5.0])
def test_the_rest_is_what_the_program_takes_more_than_its_costs(error):
    state, ask, labels = uncosted(World(error=lambda runs: error))
    state = calibrate(state, ask)
    assert labels == ["8 x recompute all"]
    assert state.calibration == {"u": error}
    assert state.reference.predicted_bytes == 18  # eight layers and ten bytes
    assert calibrate(state, ask) == state


@pytest.mark.parametrize(
    ("slower_us", "error", "names", "stays"),
    [
        (0.0, 0.0, [], True),
        # The baseline is off, and what saves everything not, or just as far.
        (60.0, 0.0, ["8 x save all"], True),
        (400.0, 0.0, ["8 x save all"], False),
    ],
)
def test_isolated_costs_are_kept_where_they_hold(slower_us, error, names, stays):
    """The step runs the layers several times, which they do not know alone."""

    def slower(runs):
        return slower_us if runs == {"save all": 8} and names else 0.0

    world = World(slower_us=slower)
    plain = world._measured

    def measure(request):
        found = plain(request)
        if request.key == BASELINE and names:
            return measured(90, 900.0)
        return found

    world._measured = measure
    state, ask, labels = uncosted(world, isolated="u")
    assert state.isolated == {"u"}
    state = calibrate(state, ask)
    assert labels[:2] == ["8 x recompute all", *names][:2]
    assert state.isolated == ({"u"} if stays else frozenset())
    assert labels[1 + len(names) :] == (
        []
        if stays
        else ["u: 4 x recompute all", "u: 8 x recompute all", "u: 8 x save all"]
    )
    assert state.calibration == {"u": error}


def test_isolated_costs_are_kept_where_what_saves_everything_does_not_compile():
    world = World()
    plain = world._measured

    def measure(request):
        if request.key == BASELINE:
            return measured(90, 900.0)
        failed = Failure(RuntimeError("no"))
        return failed if request.label == "8 x save all" else plain(request)

    world._measured = measure
    state, ask, labels = uncosted(world, isolated="u")
    assert calibrate(state, ask).isolated == {"u"}
    assert labels == ["8 x recompute all", "8 x save all"]


def test_a_unit_that_cannot_be_recomputed_stays_as_it_is():
    world = World(unit_names=("u", "v"))
    plain = world._measured

    def measure(request):
        key = request.key
        if isinstance(key, ProbeKey):
            recomputes = "v" in (key.unit, *key.recomputed)
        else:
            recomputes = key.actions is not None and "v" in dict(key.actions)
        if recomputes:
            return Failure(RuntimeError("no"))
        if not isinstance(key, ProbeKey) and key.actions is not None:
            return measured(100, 1000.0)
        return plain(request)

    state, _ = world.state(1000)
    world._measured = measure
    ask, labels = noted(world)
    state = State.of(state.space).but(units=state.units).within(1000)
    space = dataclasses.replace(
        state.space,
        target=SimpleNamespace(
            num_devices=1, card=SimpleNamespace(stream_bandwidth=1e9), host_bytes=0
        ),
    )
    state = ask(state.but(space=space), [Request(BASELINE, "baseline")])
    state = calibrate(profile_layers(state, ask), ask)
    assert [unit.name for unit in state.units] == ["u"]
    assert "8 x recompute all" in labels
    assert "u: 8 x recompute all; v: 8 x recompute all" in labels
    assert state.calibration.keys() == {"u"}


# ---- Maxima of a softmax -------------------------------------------------------------


def with_maxima(times, offered):
    """Candidates that keep values of which `c` and `e` are maxima; slower, or not."""
    costs = {"".join(key): (small(key), Cost(2.0, us)) for key, us in times.items()}
    world = World(costs)
    state, ask = world.state(1000)
    (unit,) = state.units
    kinds = {3: "reduce_max", 5: "reduce_max"}
    operations = tuple(
        dataclasses.replace(op, kind=kinds.get(op.outputs[0], op.kind))
        for op in unit.operations
    )
    unit = dataclasses.replace(unit, operations=operations)
    space = dataclasses.replace(state.space, units=(unit,))
    few = tuple(c for c in state.candidates["u"] if c.name in offered)
    state = state.but(space=space, units=(unit,), candidates={"u": few})
    return softmax_maxima(state, ask)


FEW = ("recompute all", "save all", "ce", "cf", "f")
TIMES = {"ce": 90.0, "e": 91.0, "c": 91.0, "cf": 80.0, "f": 85.0}


@pytest.mark.parametrize(
    ("changed", "dropped", "dominated", "new"),
    [
        ({}, "", None, {"e", "c"}),
        ({"e": 90.0}, "", None, {"e", "c"}),  # as fast is not faster
        ({"e": 89.0}, "c", {"ce", "cf"}, {"e", "c"}),
        ({"c": 89.0}, "e", {"ce"}, {"e", "c"}),
        ({"c": 89.0, "e": 89.0}, "ce", {"ce", "cf"}, {"e", "c", ""}),
    ],
)
def test_each_maximum_is_judged_by_the_first_that_keeps_it(
    changed, dropped, dominated, new
):
    state = with_maxima(TIMES | changed, FEW)
    assert state.dropped_maxima == {"u": frozenset(dropped)}
    assert state.dominated == ({"u": frozenset(dominated)} if dominated else {})
    saved = {"".join(c.action.save) for c in state.candidates["u"][len(FEW) :]}
    assert saved <= new
    assert {"e", "c"} <= saved


def test_where_nothing_keeps_a_maximum_nothing_is_offered():
    state = with_maxima(TIMES, ("recompute all", "f"))
    assert [c.name for c in state.candidates["u"]] == ["recompute all", "f"]
    assert state.dropped_maxima == {"u": frozenset()}


# ---- Gradients held together ---------------------------------------------------------


class Putting:
    """A compiler that puts gradients off: held together they take less, or not."""

    def __init__(self, free, held, recomputed=5, fails=False):
        self.sizes, self.recomputed, self.fails = (free, held), recomputed, fails

    def measure(self, requests):
        return [self._measured(request.key) for request in requests]

    def _measured(self, key):
        if key.gradient_barrier and self.fails:
            return Failure(RuntimeError("no"))
        size = self.sizes[key.gradient_barrier]
        buffers = (Buffer(self.recomputed, (), "float32", "recompute", ""),)
        memory = Memory(0, 0, 0, size, 0, buffers=buffers)
        return Measurement("", "", "", 1, 1, 0, memory, Time(1.0, 1.0))


def apart(layers=2, units=1, **how):
    """Units of layers that stand alone, and not in a loop."""
    names = tuple("uvw"[:units])
    state, _ = World(unit_names=names, kind="block").state(100)
    few = tuple(
        unit_of(n, layers, **{"kind": "block", "chained": False, **how}) for n in names
    )
    graph = dataclasses.replace(state.space.graph, units=few)
    space = dataclasses.replace(state.space, units=few, graph=graph)
    return State.of(space).within(100)


@pytest.mark.parametrize(
    ("oracle", "is_held", "asked"),
    [
        (Putting(1000, 949), True, 2),
        (Putting(1000, 950), False, 2),  # a twentieth is not enough
        (Putting(1000, 1100), False, 2),
        (Putting(1000, 10, recomputed=0), False, 1),  # nothing waits
        (Putting(1000, 10, fails=True), False, 2),
    ],
)
def test_gradients_are_held_together_where_that_saves_a_twentieth(
    oracle, is_held, asked
):
    state = gradient_barrier(apart(), Asking(oracle))
    assert state.gradient_barrier == is_held
    assert state.num_compiles == asked


@pytest.mark.parametrize(
    ("how", "is_asked"),
    [
        ({"layers": 2}, True),
        ({"layers": 1}, False),
        ({"layers": 1, "units": 2}, True),
        ({"kind": "scan"}, False),
        ({"chained": True}, False),
    ],
)
def test_only_layers_apart_that_are_several_are_asked_about(how, is_asked):
    state = gradient_barrier(apart(**how), Asking(Putting(1000, 10)))
    assert bool(state.num_compiles) == is_asked


@pytest.mark.parametrize(
    ("size", "time_us", "budget", "bound_us"),
    [
        (100, 7.0, 100, 0.0),
        (101, 7.0, 100, 8.0),  # is too large without
        (100, 8.0, 100, 8.0),  # the bound holds
        (None, 7.0, 100, 8.0),
    ],
)
def test_the_best_is_tried_without_its_barrier(size, time_us, budget, bound_us):
    state = apart().within(budget).but(gradient_barrier=True, bound_us=8.0)
    key = state.key_of({"u": (SAVE,) * 2})
    state = state.with_measured(Request(key, "kept"), measured(90, 9.0))
    asked = []

    def ask(state, requests):
        asked.extend(requests)
        failed = Failure(RuntimeError("no"))
        found = failed if size is None else measured(size, time_us)
        return state.with_measured(requests[0], found)

    after = without_barrier(state, ask)
    assert [request.key for request in asked] == [
        dataclasses.replace(key, gradient_barrier=False)
    ]
    assert asked[0].label == "kept"
    assert after.bound_us == bound_us


def test_a_best_without_a_barrier_is_left_alone():
    fail = lambda *_: pytest.fail("was asked")
    state = apart().with_measured(Request(BASELINE, ""), measured(1, 1.0))
    assert without_barrier(state, fail) is state
    key = state.key_of({"u": (SAVE,) * 2}, gradient_barrier=False)
    state = apart().with_measured(Request(key, ""), measured(1, 1.0))
    assert without_barrier(state, fail) is state


def test_numbers_of_heuristics_decide():
    """A barrier that must save half."""
    state = apart()
    strict = dataclasses.replace(state.space, heuristics=Heuristics(barrier_saves=0.5))
    for held, is_held in ((500, False), (499, True)):
        found = gradient_barrier(state.but(space=strict), Asking(Putting(1000, held)))
        assert found.gradient_barrier == is_held
