"""What a search begins with: its units, first candidates, how much it may take."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import OFFLOAD, RECOMPUTE, SAVE
from revremat._graph import Graph
from revremat._measure import Failure
from revremat._search import (
    BASELINE,
    DECIDE,
    PROFILE,
    Heuristics,
    Request,
    State,
    _probe_programs,
    answer,
    name_of,
)
from revremat._search._answer import dropped
from revremat._search._probe_programs import is_small_part, small_units
from revremat._search._start import (
    another_of,
    expected_compiles,
    first_of,
    nested_units,
    pools_of,
    start,
    state_of,
)
from revremat._search.passes._on_paper import plain_and_on_paper
from revremat._search.passes._plain_unroll import settle
from revremat.policies import Candidate
from revremat.program._loss import trace_loss
from tests.search.world import Cost, World, measured, small, unit_of

CARD = SimpleNamespace(
    matmul_efficiency=0.5,
    link_efficiency=0.5,
    link_bandwidth=5.0,
    peak_flops={"bfloat16": 800.0, "float32": 40.0},
    stream_bandwidth=20.0,
    pcie_bandwidth=1e9,
)


def target(num_devices=1, platform="cuda") -> Any:
    return SimpleNamespace(
        card=CARD,
        num_devices=num_devices,
        platform=platform,
        host_bytes=1e9,
        spec="a target",
    )


def graph(*units):
    return Graph(units, "", "")


# ---- Units and candidates ------------------------------------------------------------


@pytest.mark.parametrize(
    ("nesting", "found"),
    [
        (0, ["a", "b"]),
        (1, ["a/a", "b"]),
        (2, ["a/a/a", "b"]),
        (3, ["a/a/a", "b"]),
    ],
)
def test_units_of_a_nesting_have_so_many_around_or_none_inside(nesting, found):
    units = [
        unit_of("a"),
        unit_of("a/a", enclosing="a"),
        unit_of("a/a/a", enclosing="a/a"),
        unit_of("b"),
        unit_of("s", kind="segment"),
    ]
    assert [unit.name for unit in nested_units(graph(*units), nesting)] == found
    assert [*pools_of(graph(*units), target(), nesting)] == found


def test_units_that_hold_next_to_nothing_stay_as_they_are():
    tiny = unit_of("tiny", 1)
    values = tuple(
        dataclasses.replace(value, num_bytes=4000) for value in unit_of().values
    )
    large = dataclasses.replace(unit_of("large"), values=values)
    state = start(graph(large, tiny), target())
    assert [unit.name for unit in state.units] == ["large"]
    assert state.space.untouched == ("tiny",)
    assert state.space.chain is None


def test_where_nothing_is_to_be_decided_it_says_so():
    with pytest.raises(rr.UserError, match="every action keeps the same values"):
        start(graph(), target())
    kept = dataclasses.replace(graph(), keep_checkpoints=True)
    with pytest.raises(rr.UserError, match="write keep_checkpoints=False"):
        start(kept, target())


@pytest.mark.parametrize(("num_devices", "ahead"), [(1, False), (2, True)])
def test_ahead_is_proposed_where_there_is_something_to_hide_behind(num_devices, ahead):
    first, *others = unit_of().operations
    product = dataclasses.replace(first, kind="dot_general")
    unit = dataclasses.replace(unit_of(), operations=(product, *others))
    state = start(graph(unit), target(num_devices, "cpu"))
    actions = [c.action for c in state.space.proposed["u"]]
    assert any(action.ahead for action in actions) == ahead


@pytest.mark.parametrize(("platform", "sends"), [("cuda", True), ("cpu", False)])
def test_the_host_is_proposed_where_there_is_one_apart(platform, sends):
    state = start(graph(unit_of()), target(platform=platform))
    actions = [c.action for c in state.space.proposed["u"]]
    assert any(action.on_host for action in actions) == sends


def test_a_unit_begins_with_all_nothing_and_one_between():
    """Which is the one that would be compiled if there were only three."""
    state = start(graph(unit_of()), target(2))
    first = state.candidates["u"]
    assert [c.name for c in first[:2]] == ["recompute all", "save all"]
    assert len(first) == 3
    few = {c.action for c in state.space.pools["u"].worth_compiling(most=3)}
    assert first[2].action in few - {RECOMPUTE, SAVE}
    more = dataclasses.replace(state.space.heuristics, fewest_candidates=4)
    space = dataclasses.replace(state.space, heuristics=more)
    assert len(first_of(space, state.units[0])) == 4


def test_one_more_between_follows_and_no_other():
    """Which is one of those that would be compiled if there were four."""
    state = start(graph(unit_of()), target(2))
    found = another_of(state)
    few = {c.action for c in state.space.pools["u"].worth_compiling(most=4)}
    first = {c.action for c in state.candidates["u"]}
    assert found["u"].action in few - first
    candidates = {"u": (*state.candidates["u"], found["u"])}
    assert another_of(state.but(candidates=candidates)) == {}


def test_more_compiles_are_expected_for_more_that_may_be_asked():
    state, _ = World().state(100, unroll=False)
    state = state.but(num_compiles=0)
    numbers = state.space.heuristics
    # The baseline and the reference; two of each candidate, and one to spare.
    alone = 2 + 2 + 2 - 1 + 2
    alone += numbers.num_runners_up + numbers.most_tightenings // 2
    loops = alone + numbers.num_peeled
    assert expected_compiles(state) == loops
    assert expected_compiles(state.but(num_compiles=5)) == loops + 5
    within = lambda **how: state.but(space=dataclasses.replace(state.space, **how))
    assert expected_compiles(within(unroll=True)) == loops + 2
    chain: Any = "a chain"
    assert expected_compiles(within(chain=chain)) == loops + numbers.most_schedules
    assert expected_compiles(within(most_compiles=4)) == 4
    assert expected_compiles(within(most_compiles=400)) == loops
    blocks, _ = World(kind="block").state(100, unroll=True)
    assert expected_compiles(blocks.but(num_compiles=0)) == alone


@pytest.mark.parametrize(
    ("platform", "timed", "number", "can"),
    [
        ("cuda", False, 16, True),
        ("cuda", True, 16, False),
        ("cuda", True, 15, True),
        ("cpu", False, 16, True),
        ("cpu", True, 16, False),
    ],
)
def test_where_programs_are_timed_loops_stay_loops_sooner(platform, timed, number, can):
    def loss(w, x):
        layer = lambda w, x: jnp.tanh(jnp.sin(jnp.cos(x @ w)))
        return rr.stack(layer, w, x).sum()

    w, x = jnp.ones((number, 4, 4)), jnp.ones((64, 4))
    found, traced = rr.trace(loss, w, x), trace_loss(loss, (w, x))
    (unit,) = found.units
    few = Heuristics(most_operations_timed=15 * len(unit.operations))
    where, how = target(platform=platform), {"timed": timed, "heuristics": few}
    state = state_of(rr.Problem(loss, (w, x)), where, found, traced, **how)
    assert state.costs[unit.name].can_unroll == can


@pytest.mark.parametrize("most", [0, 1, 5, True, 7.0, "12"])
def test_too_few_compiles_are_refused_before_anything_is_measured(most):
    w, x = jnp.ones((8, 4, 4)), jnp.ones((64, 4))
    loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(jnp.sin(x @ w)), w, x).sum()
    problem = rr.Problem(loss, (w, x))
    traced, found = trace_loss(loss, (w, x)), rr.trace(loss, w, x)
    begin = lambda most: state_of(
        problem, rr.target("cpu:1"), found, traced, most_compiles=most
    )
    needed = begin(None).num_needed
    assert needed > 5
    assert begin(needed).space.most_compiles == needed
    few = f"{most} compiles are too few .* needs {needed} or more"
    none = f"most_compiles is {most!r}, which is no number of compiles"
    with pytest.raises(rr.UserError, match=few if type(most) is int else none):
        begin(most)
    assert not begin(None).space.repeats_loss
    stepped = dataclasses.replace(problem, step=lambda loss: (loss, (w, x)))
    again = state_of(stepped, rr.target("cpu:1"), found, traced)
    assert again.space.repeats_loss


def test_passes_come_in_an_order_that_has_reasons():
    """Before an assignment is solved by all costs, all costs are asked for."""
    names = [name_of(one) for one in DECIDE]
    whole = names[names.index("unroll chosen") : names.index("solve")]
    assert whole == [
        "unroll chosen",
        "unrolled candidates",
        "keep last",
        "leave timed loops",
        "candidates",
        "solve briefly",
        "softmax maxima",
        "unroll",
    ]
    assert [name_of(one) for one in PROFILE] == [
        "baseline",
        "gradient barrier",
        "profile layers",
        "calibrate",
    ]
    assert names[:12] == [
        "plain and on paper",
        "settle",
        "recompute around",
        "best on paper",
        "better in loops",
        "plain unroll",
        "best unrolled set",
        "put off",
        "remat pass nearly",
        "unrolled sets",
        "put off",
        "leave loops",
    ]
    assert names[-2:] == ["without barrier", "put off"]


def part_of(number, sites=4, body=10, ops=1, skippable=True, limit=100, part=0.5):
    """Whether a unit of some layers is a small part of a program of so many operations.

    A layer that is one call counts that, too.
    """
    made = [
        SimpleNamespace(ops=[(k, n) for n in range(ops)], body=body, inputs=())
        for k in range(sites)
    ]
    unit: Any = SimpleNamespace(name="u", skippable=skippable)
    traced: Any = SimpleNamespace(
        units=[SimpleNamespace(name="u", sites=made)],
        found=SimpleNamespace(sites=made),
    )
    heuristics = Heuristics(isolate_operations=limit, isolate_part=part)
    return is_small_part(traced, unit, number, heuristics)


@pytest.mark.parametrize(
    ("how", "is_small"),
    [
        ({"number": 101}, True),  # 44 operations are less than half of 101
        ({"number": 100}, False),  # is not large
        ({"number": 101, "ops": 2, "body": 12}, True),  # 48, no call
        ({"number": 101, "ops": 1, "body": 12}, False),  # 52, with the call
        ({"number": 88, "limit": 10}, False),  # half of it
        ({"number": 89, "limit": 10}, True),
        # Of more layers than eight the others are left out, of the whole, too.
        ({"number": 400, "sites": 10}, True),  # 88 of 378
        ({"number": 198, "sites": 10}, False),  # 88 of 176
        ({"number": 199, "sites": 10}, True),
        ({"number": 122, "sites": 10, "part": 2}, False),  # 100 are left
        ({"number": 123, "sites": 10, "part": 2}, True),
        ({"number": 220, "sites": 10, "skippable": False}, False),  # 110 of 220
        ({"number": 221, "sites": 10, "skippable": False}, True),
    ],
)
def test_a_unit_is_a_small_part_of_a_large_program(monkeypatch, how, is_small):
    monkeypatch.setattr(_probe_programs, "num_operations", lambda body: body)
    assert part_of(**how) == is_small


@pytest.mark.parametrize(("number", "found"), [(100, frozenset()), (101, {"u"})])
def test_units_of_small_programs_are_compiled_in_place(monkeypatch, number, found):
    monkeypatch.setattr(_probe_programs, "num_operations", lambda program: number)
    monkeypatch.setattr(_probe_programs, "is_small_part", lambda *_: True)
    traced: Any = SimpleNamespace(found=SimpleNamespace(program=None))
    heuristics = Heuristics(isolate_operations=100)
    assert small_units(traced, graph(unit_of()), heuristics) == found


# ---- Plain unrolled loops ------------------------------------------------------------


def unrolled(more=None, **fixed) -> Any:
    """Loops that may be unrolled, of which that has no cost yet; more that has one."""
    costs = {
        "save all (unrolled)": (SAVE(unroll=True), Cost(10.0, 50.0)),
        "recompute all (unrolled)": (RECOMPUTE(unroll=True), Cost(1.0, 100.0)),
    }
    world = World(costs | (more or {}))
    state, ask = world.state(1000, unroll=True, **fixed)
    few = tuple(
        c for c in state.candidates["u"] if c.name in ("recompute all", "save all")
    )
    state = state.but(candidates={"u": few})
    pools = pools_of(state.space.graph, target(), 0)
    space = dataclasses.replace(state.space, target=target(), pools=pools)
    return state.but(space=space), ask, world


@pytest.mark.parametrize("how", ["", "around", "no unrolling"])
def test_plain_unrolled_loops_are_measured_once(how):
    state, ask, world = unrolled()
    changed = {
        "": {},
        "around": {"enclosing": (unit_of("v"),)},
        "no unrolling": {"unroll": False},
    }[how]
    state = state.but(space=dataclasses.replace(state.space, **changed))
    after = plain_and_on_paper(state.but(gradient_barrier=True), ask)
    assert bool(world.asked) == (how == "")
    if how == "":
        trial = [*after.trials.values()][-1]
        assert dict(trial.key.actions) == {"u": (SAVE(unroll=True),) * 8}
        assert trial.label == "8 x save all (unrolled)"
        assert not trial.key.gradient_barrier


@pytest.mark.parametrize(
    ("sizes", "is_settled"),
    [
        # The step takes 1000 us; more than 5 us to gain are worth a search.
        ((90.0, 1000.0, 50.0), True),
        ((90.0, 1000.0, 50.0 + 5 / 8), True),
        ((90.0, 1000.0, 50.0 + 6 / 8), False),
    ],
)
def test_a_search_ends_where_nothing_gains_enough_on_plain_unrolled_loops(
    sizes, is_settled
):
    size, step_us, layer_us = sizes
    state, ask, world = unrolled()
    world.costs = {
        **world.costs,
        "save all (unrolled)": (SAVE(unroll=True), Cost(10.0, layer_us)),
    }
    world.__post_init__()
    key = state.key_of({"u": (SAVE(unroll=True),) * 8})
    state = state.but(
        probes={
            k: p for k, p in state.probes.items() if k.actions[0] != SAVE(unroll=True)
        }
    )
    state = state.with_measured(Request(BASELINE, ""), measured(500, 2000.0))
    state = state.with_measured(Request(key, "plain"), measured(size, step_us))
    pools = {"u": SimpleNamespace(sets=(), unrolled_sets=())}
    space = dataclasses.replace(state.space, pools=pools, target=target(platform="cpu"))
    after = settle(state.but(space=space), ask)
    assert after.is_settled == is_settled
    gain_us = 8 * (layer_us - 50.0)
    assert after.bound_us == (step_us - gain_us if is_settled else 0.0)


@pytest.mark.parametrize(("layer_us", "is_settled"), [(40.0, False), (50.0, True)])
def test_before_that_the_best_set_by_what_keeps_all_is_measured(layer_us, is_settled):
    """Held to what recomputes all, it seems to be as slow as that."""
    half = Candidate("half", small("abc"))
    costs = {"half (unrolled)": (small("abc", unroll=True), Cost(5.0, layer_us))}
    in_loops = {"save all": (SAVE, Cost(10.0, 60.0))}
    state, ask, _ = unrolled(costs | in_loops)
    key = state.key_of({"u": (SAVE(unroll=True),) * 8})
    state = state.with_measured(Request(BASELINE, ""), measured(500, 2000.0))
    state = state.with_measured(Request(key, "plain"), measured(90, 400.0))
    unit = state.space.graph.units[0]
    traffic = {SAVE: 10.0}  # five microseconds more than all others
    pool = SimpleNamespace(
        sets=(half,),
        unrolled_sets=(),
        unrolled=None,
        kept=lambda one: unit.kept(one.action),
        cost=lambda one: SimpleNamespace(
            traffic=traffic.get(one.action(unroll=False), 5.0)
        ),
        apart=lambda one, other: other.action(unroll=False) != RECOMPUTE,
    )
    card = SimpleNamespace(stream_bandwidth=1e6)
    here: Any = SimpleNamespace(**{**vars(target(platform="cpu")), "card": card})
    space = dataclasses.replace(state.space, pools={"u": pool}, target=here)
    after = settle(state.but(space=space), ask)
    assert "half (unrolled)" in [c.name for c in after.candidates["u"]]
    assert after.is_settled == is_settled


@pytest.mark.parametrize(
    "why", ["too large", "not measured", "another is best", "other units", "inside"]
)
def test_otherwise_the_search_goes_on_and_asks_nothing(why):
    state, _, _ = unrolled()
    key = state.key_of({"u": (SAVE(unroll=True),) * 8})
    state = state.with_measured(Request(BASELINE, ""), measured(500, 2000.0))
    if why != "not measured":
        state = state.with_measured(Request(key, "plain"), measured(90, 1000.0))
    if why == "too large":
        state = state.within(89)
    if why == "another is best":
        other = state.key_of({"u": (RECOMPUTE,) * 8})
        state = state.with_measured(Request(other, ""), measured(90, 999.0))
    if why == "other units":
        block = unit_of("v", kind="block")
        state = state.but(
            units=(*state.units, block), candidates={**state.candidates, "v": ()}
        )
    if why == "inside":
        inner = unit_of("u/u", enclosing="u")
        units = (*state.space.graph.units, inner)
        space = dataclasses.replace(state.space, graph=graph(*units))
        state = state.but(space=space)
    assert settle(state, lambda *_: pytest.fail("was asked")) is state


# ---- Answers -------------------------------------------------------------------------


def answered(state):
    return answer(state, lambda: None)


def test_an_answer_is_the_best_plan_and_what_was_expected_of_it():
    state, ask = World().state(60)
    runs = (("recompute all", 4), ("save all", 4))
    state = ask(state, [state.assignment_request({"u": runs}, 53.6)])
    fit = answered(state)
    assert (fit.plan.budget_bytes, fit.plan.compiled_bytes) == (60, 54)
    assert fit.plan.predicted_bytes == 54
    assert fit.plan.target == "a target"
    assert fit.measurement is state.best.measurement
    assert not fit.is_cut_short
    assert fit.num_compiles == state.num_compiles
    plain = answered(
        State.of(state.space)
        .within(9)
        .with_measured(Request(BASELINE, ""), measured(10, 1.0))
    )
    assert plain.plan.units == ()
    assert plain.plan.predicted_bytes is None


@pytest.mark.parametrize(
    ("budget", "held", "is_cut"), [(29, True, False), (30, False, True)]
)
def test_where_arguments_alone_are_too_large_nothing_is_cut_short(budget, held, is_cut):
    one = measured(50, 1.0)
    memory = dataclasses.replace(one.memory, argument_bytes=30, temp_bytes=20)
    state, _ = World().state(budget)
    state = (
        State.of(state.space)
        .within(budget)
        .with_measured(Request(BASELINE, ""), dataclasses.replace(one, memory=memory))
    )
    fit = answered(state.skip("fill", 2))
    told = "the step's arguments alone (30 B)"
    assert (fit.plan.held_by == told) == held
    assert fit.is_cut_short == is_cut


def test_dropped_are_shortened_programs_then_whole_ones_then_nothing_twice():
    state, _ = World().state(100)
    failed = Failure(RuntimeError("no"))
    probe = state.probe_key(state.units[0], (OFFLOAD,))
    whole = state.key_of({"u": (OFFLOAD,) * 8})
    inner = state.with_measured(Request(probe, "inner"), failed)
    state = state.with_measured(Request(whole, "whole"), failed)
    state = state.with_measured(Request(probe, "first"), failed)
    state = state.but(nested={True: inner, False: None})
    assert [one.name for one in dropped(state)] == ["first", "inner", "whole"]
