"""The baselines of the search do what their descriptions say."""

import dataclasses
import itertools
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

import revremat as rr
from experiments.bench.baselines import (
    BASELINES,
    Comparison,
    Estimator,
    Greedy,
    Line,
    MemoryBudget,
    PlainJax,
    PlainSplits,
    RematPass,
    Splits,
    UnrolledMemoryBudget,
)
from experiments.bench.baselines._budget import Part
from experiments.bench.baselines._knapsack import knapsack
from experiments.bench.baselines._ladder import tensors
from experiments.bench.comparison import budgets_of, comparison_of
from experiments.bench.plain_jax import FORMS, POLICIES, Loops
from experiments.bench.searching import Searching
from revremat.policies import PRESETS, LayerCost, UnitOptions, preset
from tests.experiments.small_stack import LAYERS, loss, problem


@pytest.fixture(scope="module")
def graph():
    return rr.trace(loss, *problem().specs)


@pytest.fixture(scope="module")
def search():
    found = Searching(problem(), rr.target("cpu:1"))
    found.prepare()
    return found


@pytest.fixture
def comparison(graph):
    """Bytes are what is kept, and time is what is recomputed."""
    unit = graph["stack"]

    def compile(name, actions):
        actions = actions or {"stack": (rr.SAVE,) * LAYERS}
        kept = [unit.kept(action) for action in graph.plan(actions).units[0].actions]
        return SimpleNamespace(
            name=name,
            bytes=sum(k.device_bytes for k in kept),
            time_us=float(sum(k.recompute_flops + k.host_bytes for k in kept)),
        )

    return Comparison((unit,), compile, lambda unroll: ())


def test_the_estimators_order_is_contracting_dimension_then_width(graph, comparison):
    assert {t.name: (t.contracting, t.width) for t in tensors(graph["stack"])} == {
        "wide": (16, 48),
        "back": (48, 16),
        "wider": (16, 64),
    }
    ladder = Estimator(comparison)
    assert [t.name for t in ladder.tensors] == ["back", "wider", "wide"]
    steps = [ladder.rematerialize(1 - k / 3)["stack"][0] for k in range(4)]
    keeps = [("back", "wide", "wider"), ("wide", "wider"), ("wide",), ()]
    assert [step.save for step in steps] == keeps
    steps = [ladder.offload(1 - k / 6)["stack"][0] for k in range(7)]
    assert [(len(s.save), s.offload) for s in steps] == [
        (3, ()),
        (2, ("back",)),
        (1, ("back", "wider")),
        (0, ("back", "wide", "wider")),
        (0, ("wide", "wider")),
        (0, ("wide",)),
        (0, ()),
    ]


def test_products_stand_in_where_a_program_is_no_transformer():
    def plain(w, x):
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    w = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
    x = jax.ShapeDtypeStruct((32, 8), jnp.float32)
    traced = rr.trace(lambda w, x: rr.stack(plain, w, x).sum(), w, x)
    assert [t.contracting for t in tensors(traced["stack"])] == [8, 8]


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3)), max_size=4
    ),
    st.integers(0, 30),
)
def test_the_knapsack_is_as_good_as_trying_everything(items, capacity):
    weights, values, counts = ([item[k] for item in items] for k in range(3))
    taken = knapsack(weights, [float(v) for v in values], counts, capacity)
    total = lambda per, number: sum(a * b for a, b in zip(per, number, strict=True))
    assert all(0 <= n <= most for n, most in zip(taken, counts, strict=True))
    assert total(weights, taken) <= capacity
    every = itertools.product(*(range(n + 1) for n in counts))
    best = max(total(values, n) for n in every if total(weights, n) <= capacity)
    assert total(values, taken) == best


def test_a_knapsack_of_three_equal_items_and_room_for_one():
    assert knapsack([1], [5.0], [3], 1) == [1]


def test_the_memory_budget_saves_no_more_than_its_share(comparison):
    baseline = MemoryBudget(comparison)
    (part,) = baseline.parts
    fastest = LAYERS * part.num_bytes(part.saved(part.fastest))
    unit = comparison.units[0]
    inputs = LAYERS * unit.kept(rr.RECOMPUTE).device_bytes
    sizes = []
    for share in (0.0, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0):
        actions = baseline.propose(share)["stack"]
        kept = sum(unit.kept(action).device_bytes for action in actions) - inputs
        assert kept <= (share + 1e-3) * fastest
        sizes.append(kept)
    assert sizes[0] == 0 < sizes[2] < sizes[-1]
    assert sizes == sorted(sizes)


def test_the_memory_budget_keeps_one_value_behind_each_product(comparison):
    part = Part(comparison.units[0])
    names = {part.unit.values[k].name for k in part.saved(part.fewer)}
    assert names == {"wide", "back", "wider"}
    (heavy, *_) = part.items
    assert part.unit.operations[heavy[0]].kind == "dot_general"
    assert part.saved(()) == frozenset()  # nothing forbidden: inputs alone


@pytest.mark.parametrize("kind", [MemoryBudget, Greedy, Estimator])
def test_baselines_fill_a_budget_as_far_as_their_steps_allow(kind, comparison):
    baseline = kind(comparison, most=12)
    unit = comparison.units[0]
    least = LAYERS * unit.kept(rr.RECOMPUTE).device_bytes
    most = LAYERS * unit.kept(rr.SAVE).device_bytes
    times = []
    for budget in (least - 1, least, (least + most) // 2, most):
        baseline.ask(budget)
    for budget in (least - 1, least, (least + most) // 2, most):
        row = baseline.best(budget)
        assert (row is None) == (budget < least)
        if row is not None:
            assert row.bytes <= budget
            times.append(row.time_us)
    assert times == sorted(times, reverse=True)
    assert times[0] > times[-1]


@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=30),
    st.integers(0, 1000),
    st.integers(2, 12),
)
def test_looking_along_a_line_ends_whatever_the_bytes(sizes, budget, most):
    asked = []

    def propose(position):
        return {"u": (rr.RECOMPUTE(save=[str(round(position * (len(sizes) - 1)))]),)}

    def compile(name, actions):
        size = sizes[int(actions["u"][0].save[0])]
        asked.append(size)
        return SimpleNamespace(bytes=size, time_us=0.0)

    Line(propose, compile, "line").ask(budget, most)
    assert len(asked) <= most
    if sizes == sorted(sizes) and most == 12 and sizes[0] <= budget:
        best = max(size for size in sizes if size <= budget)
        assert max(s for s in asked if s <= budget) >= best - 0.002 * budget - 1 or (
            len(asked) == most
        )


@pytest.mark.slow
def test_every_baselines_answers_are_plans_that_compile_to_what_they_say(search):
    budget = budgets_of(search, 3)[1]
    comparison = comparison_of(search)
    for kind in BASELINES[1:]:
        if kind in (PlainJax, PlainSplits, RematPass):
            continue
        baseline = kind(comparison)
        baseline.ask(budget)
        assert all(row.plan is not None for row in baseline.rows), kind.name
        row = baseline.rows[-1]
        step = jax.value_and_grad(rr.apply(loss, row.plan))
        found = rr.measure(step, *search.problem.specs, target=search.target)
        assert found.memory.total_bytes == row.bytes, kind.name


def costed(unit, slope=1.0):
    """Costs by which a layer's bytes and time are what the comparison says."""
    costs = []
    for name in PRESETS:
        kept = unit.kept(preset(unit, name).action)
        size = slope * kept.device_bytes
        costs.append(LayerCost(name, size, 0.0, 0.0, float(kept.recompute_flops)))
    return (UnitOptions(unit.name, unit.num_layers, tuple(costs)),)


@pytest.mark.parametrize("slope", [1.0, 0.8, 1.2])
def test_splits_find_the_best_of_all_or_near_it_by_costs_that_are_off(
    comparison, slope
):
    unit = comparison.units[0]
    comparison = dataclasses.replace(
        comparison, presets=lambda unroll: costed(unit, slope)
    )
    action = {name: preset(unit, name).action for name in PRESETS}
    every = [
        comparison.compile(
            "", {"stack": (action[a],) * n + (action[b],) * (LAYERS - n)}
        )
        for a, b in itertools.permutations(PRESETS, 2)
        for n in range(LAYERS + 1)
    ]
    sizes = sorted({row.bytes for row in every})
    baseline = Splits(comparison, most=8)
    for budget in sizes:
        baseline.ask(budget)
        enough = budget if slope == 1.0 else 0.85 * budget
        best = [row.time_us for row in every if row.bytes <= enough]
        assert baseline.best(budget).time_us <= min(best, default=math.inf)
    assert baseline.best(sizes[0] - 1) is None


def test_unrolled_ones_propose_the_same_with_loops_unrolled(comparison):
    asked = []

    def compile(name, actions):
        asked.append((name, {a.unroll for few in actions.values() for a in few}))
        return comparison.compile(name, actions)

    unit = comparison.units[0]
    UnrolledMemoryBudget(dataclasses.replace(comparison, compile=compile)).ask(10**9)
    assert asked
    assert all(name.endswith(", unrolled") for name, _ in asked)
    assert all(unroll == {True} for _, unroll in asked)
    # Where there is no loop they propose nothing: it would be what others propose.
    asked.clear()
    flat = dataclasses.replace(unit, kind="repeat")
    few = dataclasses.replace(comparison, compile=compile, units=(flat,))
    UnrolledMemoryBudget(few).ask(10**9)
    assert asked == []


def made_up(sizes, limits_fit=True):
    """Plain JAX whose programs take these bytes; the pass goes to its limit."""
    asked = []

    def write(loops, limit):
        asked.append((loops, limit))
        size, time_us = sizes.get(loops, (1000, 100.0))
        if limit is not None and limits_fit:
            size, time_us = min(size, limit + 5), 1.1 * time_us
        return SimpleNamespace(name=str(loops), bytes=size, time_us=time_us)

    every = [Loops(form, policy) for form in FORMS for policy in POLICIES]
    ways = tuple(way for way in every if way != Loops())
    none = lambda *_: write(None, None)
    one = Comparison((), none, lambda _: (), write, ways, 12, lambda b: int(b))
    return one, asked


def test_plain_jax_writes_every_preset_in_every_form():
    comparison, asked = made_up({Loops("unrolled"): (800, 60.0)})
    baseline = PlainJax(comparison)
    for _ in range(2):
        baseline.ask(900)
    assert len(asked) == len(FORMS) * len(POLICIES)  # once for all budgets
    assert baseline.best(900).time_us == 60.0
    assert baseline.best(700) is None


def test_plain_splits_mix_what_is_fast_with_what_fits():
    """Of 12 layers, each takes 100 bytes saved or 20 recomputed, beside 100 others."""
    sizes = {
        Loops("unrolled"): (1300, 60.0),
        Loops("unrolled", "recompute all"): (340, 90.0),
    }
    for n in range(1, 12):
        for split in (
            Loops("unrolled", "save all", n, "recompute all"),
            Loops("unrolled", "recompute all", 12 - n, "save all"),
        ):
            sizes[split] = (100 + 100 * n + 20 * (12 - n), 90.0 - 2.5 * n)
    comparison, asked = made_up(sizes)
    baseline = PlainSplits(comparison)
    baseline.ask(800)
    best = baseline.best(800)
    assert best.time_us == 90.0 - 2.5 * 5
    assert best.bytes == 740
    asked.clear()
    baseline.ask(1300)  # what is fastest fits as it is
    assert not [way for way, _ in asked if way and way.number is not None]


def test_the_remat_passs_limit_is_moved_until_a_program_fits():
    comparison, asked = made_up({Loops("unrolled"): (800, 60.0), None: (900, 70.0)})
    baseline = RematPass(comparison, most=1)
    baseline.ask(500)
    limits = [(loops, limit) for loops, limit in asked if limit is not None]
    assert limits == [
        (None, 500),
        (None, 495),
        (Loops("unrolled"), 500),
        (Loops("unrolled"), 495),
    ]
    assert baseline.best(500).time_us == pytest.approx(66.0)
    # What fits by itself is asked without it.
    asked.clear()
    baseline.ask(2000)
    assert asked == []


def test_the_remat_pass_gives_up_where_it_helps_nothing():
    comparison, asked = made_up({}, limits_fit=False)
    baseline = RematPass(comparison, most=0, most_limits=2)
    baseline.ask(500)
    assert baseline.best(500) is None
    assert len([one for one in asked if one[1] is not None]) == 2 * 2
