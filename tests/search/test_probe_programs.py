"""A unit is costed without the program around it as it would be in it."""

import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat._search import BASELINE, Heuristics, Request, begin, profile, run
from revremat._search._probe_programs import (
    _is_sharded,
    is_small_part,
    isolate,
    small_units,
)
from revremat._search.passes._ask import probe
from revremat._search.passes._baseline import baseline
from revremat._search.passes._profile import profile_layers
from revremat.program._loss import trace_loss
from revremat.program.ir._costs import num_operations
from revremat.program.ir._ops import Value
from tests.program_kinds import PLAIN
from tests.search.world import measured

ROWS = 8


def arrays_like(specs):
    random = np.random.default_rng(0)

    def one(spec):
        if jnp.issubdtype(spec.dtype, jax.dtypes.prng_key):
            return jax.random.split(jax.random.key(0), spec.shape)
        if not jnp.issubdtype(spec.dtype, jnp.inexact):
            return jnp.zeros(spec.shape, spec.dtype)
        return jnp.asarray(random.normal(size=spec.shape), spec.dtype)

    *given, scale = jax.tree.map(one, specs)
    return (*given, jnp.ones_like(scale))


def units_of(loss, args):
    """Those that stand in the program itself."""
    traced, graph = trace_loss(loss, args), rr.trace(loss, *args)
    ours = {site.ops[0] for site in traced.found.sites}
    found = {unit.name: unit for unit in traced.units}
    return (
        traced,
        graph,
        [u for u in graph.units if found[u.name].sites[0].ops[0] in ours],
    )


@pytest.mark.every_commit(
    "scanned",
    "experts by one-hot",
    "own derivatives, scanned",
    "callback",
    "batch statistics",
    "odd leaves",
)
@pytest.mark.parametrize(
    "kind",
    [kind for kind in PLAIN],
)
def test_gradients_of_layers_alone_do_not_depend_on_what_they_keep(kind):
    with jax.enable_x64(True):
        loss, *args = PLAIN[kind](ROWS)
        traced, graph, units = units_of(loss, args)
        for unit in units:
            ways = [rr.SAVE, rr.RECOMPUTE, *([rr.INVERT] if unit.invertible else [])]
            found = []
            for way in ways:
                actions = (way,) * unit.num_layers
                step, specs = isolate(traced, graph, unit.name, actions)
                found.append(jax.tree.leaves(step(*arrays_like(specs))))
            scale = max(jnp.abs(leaf).max() for leaf in found[0])
            assert scale > 0
            for other in found[1:]:
                for a, b in zip(found[0], other, strict=True):
                    np.testing.assert_allclose(a / scale, b / scale, atol=1e-9)


def test_layers_alone_are_those_of_the_program():
    def layer(w, x):
        return jnp.tanh(x @ w)

    def loss(ws, x):
        for w in ws:
            x = rr.block(layer, "layer")(w, x)
        return (x**3).sum()

    ws, x = [jnp.eye(3) * k for k in (0.5, 1.0, 1.5)], jnp.linspace(-1, 1, 6)
    args = (ws, x.reshape(2, 3))
    traced, graph, _ = units_of(loss, args)
    step, specs = isolate(traced, graph, "layer", (rr.RECOMPUTE,) * 2)
    wanted, others, cotangents, one = arrays_like(specs)
    assert [w.shape for w in wanted] == [(3, 3), (2, 3), (3, 3), (3, 3)]
    assert others == []

    def by_hand(wanted):
        first, x, second, _ = wanted
        y = layer(second, layer(first, x))
        return (y * cotangents[0]).sum() ** 2

    for found, expected in zip(
        step(wanted, others, cotangents, one), jax.grad(by_hand)(wanted), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


def two_kinds(num_each):
    """Layers of two kinds in turn, some of whose values are compute-intensive."""

    def wide(w, x):
        return x + jnp.sin(jnp.tanh(x @ w["up"])) @ w["down"]

    def gated(w, x):
        y = jax.nn.softmax(jnp.cos(x @ w["gate"]), axis=-1)
        return x + (y * jnp.exp(-(y**2))) @ w["back"]

    def loss(params, x):
        for w in params:
            x = rr.block(gated, "gated")(w, rr.block(wide, "wide")(w, x))
        return (x**2).mean()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    one = {
        "up": array(1024, 4096),
        "down": array(4096, 1024),
        "gate": array(1024, 2048),
        "back": array(2048, 1024),
    }
    return rr.Problem(loss, ([one] * num_each, array(8192, 1024)))


ALONE = Heuristics(isolate_operations=0, isolate_part=2, isolate_fused_time=math.inf)
"""Whatever can be is compiled alone, however small the program."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) for name in ("wide", "gated")]
)
def test_costs_are_those_within_the_program(name):
    state, ask = begin(two_kinds(4), rr.target("h100:1"), heuristics=ALONE)
    state = baseline(state, ask)
    (unit,) = [unit for unit in state.units if unit.name == name]
    few = ("recompute all", "save all", "dots")
    chosen = tuple(c for c in state.space.proposed[name] if c.name in few)
    state = state.but(candidates={**state.candidates, name: chosen})
    found = []
    for isolated in (frozenset({name}), frozenset()):
        state = state.but(isolated=isolated)
        costs = state.costs[name]
        cuts = [*costs.first_probes, *costs.second_probes(few)]
        state = probe(state, ask, unit, cuts)
        found.append({n: state.costs[name].cost(n) for n in few})
    layers_us = state.baseline.time_us / 4
    for one in ("save all", "dots"):
        alone_bytes, within_bytes = (p[one].kept_bytes for p in found)
        assert alone_bytes == pytest.approx(within_bytes, rel=0.02)
        faster = [p["recompute all"].time_us - p[one].time_us for p in found]
        assert faster[0] == pytest.approx(faster[1], abs=0.05 * layers_us)


@pytest.mark.slow
def test_a_plan_by_such_costs_fits():
    problem, target = two_kinds(2), rr.target("h100:1")
    plain = rr.measure(problem, target=target).memory.total_bytes
    fit = run(problem, target, int(0.6 * plain), heuristics=ALONE)
    assert 0.5 * plain < fit.plan.compiled_bytes <= 0.6 * plain
    assert fit.bound_us > 0


def accumulated(loss, specs):
    def step(ws, xs):
        def add(total, x):
            return jax.tree.map(jnp.add, total, jax.grad(loss)(ws, x)), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, ws), xs)[0]

    ws, x = specs
    return step, (ws, jax.ShapeDtypeStruct((4, *x.shape), x.dtype))


def ensemble(loss, specs):
    four = lambda leaf: jax.ShapeDtypeStruct((4, *leaf.shape), leaf.dtype)
    return jax.vmap(jax.grad(loss)), jax.tree.map(four, specs)


def twice(loss, specs):
    def step(ws, x):
        ws = jax.tree.map(jnp.add, ws, jax.grad(loss)(ws, x))
        return jax.grad(loss)(ws, x)

    return step, specs


@pytest.mark.every_commit("twice-False")
@pytest.mark.parametrize(
    ("kind", "is_alone"),
    [
        (None, True),
        (accumulated, False),
        (ensemble, False),
        (twice, False),
    ],
)
def test_steps_that_run_the_loss_several_times_are_compiled_whole(kind, is_alone):
    def layer(w, x):
        return x + jnp.sin(jnp.tanh(x @ w["up"])) @ w["down"]

    def loss(ws, x):
        for w in ws:
            x = rr.block(layer, "layer")(w, x)
        return (x**2).mean()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    specs = ([{"up": array(512, 2048), "down": array(2048, 512)}] * 4, array(4096, 512))
    step = kind and (lambda loss: kind(loss, specs))
    problem = rr.Problem(loss, specs, step)
    state, ask = begin(problem, rr.target("h100:1"), heuristics=ALONE)
    assert bool(profile(state, ask).isolated) == is_alone


def loss_of_layers(num_layers, layer=lambda w, x: jnp.tanh(x @ w)):
    """Layers one after the other, and what their loss is made of."""

    def loss(ws, x):
        for w in ws:
            x = rr.block(layer, "layer")(w, x)
        return (x**2).sum()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return loss, [array(8, 8)] * num_layers, array(4, 8)


def is_small(loss, args, heuristics=ALONE):
    (unit,) = rr.trace(loss, *args).units
    traced = trace_loss(loss, args)
    number = num_operations(traced.found.program)
    if number <= heuristics.isolate_operations:
        assert not small_units(traced, rr.trace(loss, *args), heuristics)
    return is_small_part(traced, unit, number, heuristics)


@pytest.mark.parametrize(
    ("large", "part", "small"),
    [(0, 2, True), (10**6, 2, False), (0, 0.01, False)],
)
def test_small_parts_of_large_programs_are_compiled_alone(large, part, small):
    heuristics = Heuristics(isolate_operations=large, isolate_part=part)
    loss, *args = PLAIN["scanned"](ROWS)
    assert is_small(loss, args, heuristics) == small


def test_all_of_a_program_is_no_small_part_of_it_however_many_layers():
    loss, *args = loss_of_layers(100)
    assert not is_small(loss, args, Heuristics(isolate_operations=0))


def test_what_stands_within_another_operation_is_compiled_in_place():
    loss, *args = PLAIN["shard_map, scanned"](ROWS)
    assert not is_small(loss, args)


def test_what_is_sharded_by_its_type_is_compiled_in_place():
    explicit = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((1,), ("d",), axis_types=explicit)
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    loss, *args = loss_of_layers(4)
    assert is_small(loss, args)
    array = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=whole)
    with jax.set_mesh(mesh):
        assert not is_small(loss, jax.tree.map(array, args))


@pytest.mark.parametrize(
    ("kinds", "sharded"),
    [("", False), ("a", False), ("e", True), ("ae", True), ("ea", True), ("aa", False)],
)
def test_one_explicit_axis_is_enough(kinds, sharded):
    types = {"a": jax.sharding.AxisType.Auto, "e": jax.sharding.AxisType.Explicit}

    def array(kind):
        mesh = jax.make_mesh((1,), ("d",), axis_types=(types[kind],))
        where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        return Value(jax.typeof(jax.device_put(jnp.ones(2), where)))

    assert _is_sharded(SimpleNamespace(inputs=map(array, kinds))) is sharded


@pytest.mark.parametrize(("times", "is_alone"), [(100, False), (300, True)])
def test_layers_that_cost_as_much_as_passing_them_on_are_compiled_in_place(
    times, is_alone
):
    heuristics = Heuristics(isolate_operations=0, isolate_part=2)
    loss, *args = loss_of_layers(4)
    problem = rr.Problem(loss, tuple(args))
    passed_us = 2 * 4 * (2 * 4 * 8 * 4) / 3.35e6  # twice, 4 layers, [4, 8] in and out
    state, _ = begin(problem, rr.target("h100:1"), heuristics=heuristics)
    nothing = lambda state, requests: state
    request = Request(BASELINE, "baseline")
    state = state.with_measured(request, measured(10, times * passed_us))
    state = profile_layers(state, nothing)
    assert bool(state.isolated) == is_alone
