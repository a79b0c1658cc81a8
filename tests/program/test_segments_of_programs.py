"""Programs without equal layers: segments, how they nest, and what they keep."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from experiments.bench.gradients import TOLERANCE, check
from experiments.bench.random_nets import make_net, make_schedule
from revremat import RECOMPUTE
from tests.program.unequal import chain, with_skips

BATCH, WIDTHS = 64, (8, 16, 24, 32, 24, 16, 8)


def specs(widths=WIDTHS):
    pairs = itertools.pairwise(widths)
    ws = [jax.ShapeDtypeStruct(pair, jnp.float32) for pair in pairs]
    return ws, jax.ShapeDtypeStruct((BATCH, widths[0]), jnp.float32)


def test_a_program_without_equal_layers_is_cut_into_segments():
    graph = rr.trace(chain, *specs())
    assert {u.kind for u in graph.units} == {"segment"}
    products = [
        sum(op.kind == "dot_general" for op in u.operations)
        for u in graph.units
        if u.enclosing or not any(v.enclosing == u.name for v in graph.units)
    ]
    assert sum(products) == len(WIDTHS) - 1
    assert min(products) >= 1


@pytest.mark.parametrize("loss", [chain, with_skips])
def test_a_group_has_its_segments_inside(loss):
    graph = rr.trace(loss, *specs())
    for unit in graph.units:
        if unit.enclosing:
            group = graph[unit.enclosing]
            assert unit.name.startswith(f"{group.name}/")
            assert group.forward_flops >= unit.forward_flops
    groups = {u.enclosing for u in graph.units} - {""}
    for name in groups:
        inside = [u for u in graph.units if u.enclosing == name]
        assert len(inside) > 1
        assert sum(u.forward_flops for u in inside) == graph[name].forward_flops


def test_a_recomputed_segment_keeps_what_it_is_given():
    graph = rr.trace(chain, *specs())
    sizes = {4 * BATCH * width for width in WIDTHS}
    for unit in graph.units[1:]:
        kept = unit.kept(RECOMPUTE)
        first = unit.operations[0].source == graph.units[0].operations[0].source
        assert first or kept.device_bytes in sizes


def test_what_is_joined_later_is_one_array_to_all_who_read_it():
    graph = rr.trace(with_skips, *specs((8, 16, 32, 16, 8)))
    readers: dict[int, int] = {}
    for unit in graph.units:
        if not any(v.enclosing == unit.name for v in graph.units):
            for number in unit.crossing_ids:
                readers[number] = readers.get(number, 0) + 1
    assert max(readers.values()) >= 3  # its maker, the next one, and one on the way up


@pytest.mark.parametrize(
    ("name", "loss"),
    [
        ("two products", lambda ws, x: (jnp.tanh(x @ ws[0]) @ ws[1]).sum()),
        ("no product", lambda ws, x: jnp.tanh(x * ws[0].sum()).sum()),
        ("one line", lambda ws, x: (x @ ws[0]).sum()),
    ],
)
def test_what_is_too_short_to_be_cut_is_one_unit(name, loss):
    units = rr.trace(loss, *specs()).units
    assert [(u.name, u.kind) for u in units] == [("whole_0", "whole")]


def test_equal_layers_stay_layers():
    def loss(ws, x):
        for w in ws:
            x = jnp.tanh(x @ w)
        return x.sum()

    units = rr.trace(loss, *specs((16,) * 7)).units
    assert [(u.kind, u.num_layers) for u in units] == [("repeat", 6)]


def test_a_graph_of_segments_comes_back_from_json():
    graph = rr.trace(with_skips, *specs())
    assert rr.Graph.from_json(graph.to_json()) == graph


def nested(graph):
    return {u.name: RECOMPUTE for u in graph.units}


def outermost(graph):
    return {u.name: RECOMPUTE for u in graph.units if not u.enclosing}


@pytest.mark.parametrize("loss", [chain, with_skips])
@pytest.mark.parametrize("actions", [nested, outermost])
def test_compiled_it_computes_the_same(loss, actions):
    graph = rr.trace(loss, *specs())
    planned = rr.apply(loss, graph.plan(actions(graph)))
    rng = np.random.default_rng(0)
    args = jax.tree.map(lambda s: jnp.asarray(rng.normal(size=s.shape)), specs())
    args = jax.tree.map(lambda a: a.astype(jnp.float32), args)
    expected, found = (jax.jit(jax.grad(f))(*args) for f in (loss, planned))
    for a, b in zip(*map(jax.tree.leaves, (expected, found)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_a_group_that_keeps_something_has_nothing_else_decided_inside():
    graph = rr.trace(chain, *specs((8, 16, 32, 16, 8)))
    inside = next(u for u in graph.units if u.enclosing)
    with pytest.raises(rr.UserError, match="is a part of every layer"):
        graph.plan({inside.enclosing: rr.SAVE, inside.name: RECOMPUTE})


@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(1), id="every commit"),
        pytest.param(range(1, 300), id="now and then", marks=pytest.mark.slow),
    ],
)
def test_no_schedule_changes_a_gradient(seeds):
    with jax.enable_x64(True):
        checks = [c for seed in seeds for c in check(seed, 2, make_net, make_schedule)]
    wrong = [c for c in checks if not c.error <= TOLERANCE]
    assert not wrong


def test_random_programs_are_mostly_cut_into_segments():
    kinds = []
    for seed in range(4):
        loss, *args = make_net(seed)
        kinds.append({u.kind for u in rr.trace(loss, *args).units})
    assert kinds.count({"segment"}) >= 3


def with_wide_middles(ws, x):
    """Blocks whose inside is much wider than what they output."""
    for up, down in zip(ws[::2], ws[1::2], strict=True):
        x = jnp.tanh(jax.nn.silu(x @ up) @ down)
    return (x**2).mean()


@pytest.mark.parametrize(
    ("loss", "widths", "products"),
    [
        # Cut in the middle, the first part would output all that it makes.
        (with_wide_middles, (8, 64, 9, 72, 10, 80, 11, 88, 12), [2, 2, 2, 2]),
        (with_wide_middles, (9, 40, 8, 48, 10, 36, 11, 60, 7), [2, 2, 2, 2]),
        # What a tanh keeps is what it hands on, and its layer alone gives nothing back.
        (chain, (8, 9, 10, 11, 12), [2, 1, 1]),
    ],
)
def test_no_cut_is_made_that_gives_nothing_back(loss, widths, products):
    graph = rr.trace(loss, *specs(widths))
    outer = {u.enclosing for u in graph.units}
    found = [
        sum(op.kind == "dot_general" for op in u.operations)
        for u in graph.units
        if u.name not in outer
    ]
    assert found == products


def attends(w, x):
    """Its weights are as wide as the batch."""
    weights = jax.nn.softmax(jnp.exp(jnp.sin((x @ w["q"]) @ x.T)))
    return x + (weights @ x) @ w["o"]


def gates(w, x):
    return x + (jax.nn.silu(x @ w["up"]) * jnp.cos(x @ w["gate"])) @ w["down"]


def mixes(w, x):
    return x + jnp.tanh(jnp.sin(w["t"] @ x)) @ w["q"]


def blocks_of(order):
    def loss(ws, x):
        for block, w in zip(order, ws, strict=True):
            x = block(w, x)
        return (x**2).mean()

    return loss


@pytest.mark.parametrize(
    "order",
    [(attends, gates, mixes), (gates, attends, mixes), (mixes, attends, gates)],
)
def test_groups_output_what_blocks_do(order):
    spec = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    rows, width = 64, 24

    def weights(k):
        inner = 8 * width + 8 * k
        square, wide = spec(width, width), spec(width, inner)
        w = {"q": square, "o": square, "t": spec(rows, rows)}
        return {**w, "up": wide, "gate": wide, "down": spec(inner, width)}

    ws = [weights(k) for k in range(len(order))]
    graph = rr.trace(blocks_of(order), ws, spec(rows, width))
    # What a block hands on is one state; nothing else leaves a group.
    *groups, _ = [u for u in graph.units if not u.enclosing]
    assert groups
    assert {handed_on(u) for u in groups} == {4 * rows * width}


def handed_on(unit):
    """Bytes of what a unit gives."""
    return sum(unit.values[k].num_bytes for k in unit.outputs)


def test_one_layer_of_three_products_is_cut():
    def loss(ws, x):
        h = jax.nn.gelu(x @ ws[0])
        h = jax.nn.silu(h @ ws[1]) * jnp.sin(h)
        return jnp.square(x + jnp.tanh(h @ ws[2])).mean()

    units = rr.trace(loss, *specs((8, 64, 64, 8))).units
    assert {u.kind for u in units} == {"segment"}
