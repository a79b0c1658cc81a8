"""What a layer costs, told from what small programs take."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._cut import UnitCut
from revremat._prices import UnitPrices, hold, neighbour
from revremat.policies import Candidate, preset

OWN, OF_A_LAYER = 1000, 7


def on_host(actions):
    return sum(len(action.offload) for action in actions)


@pytest.fixture(params=[1, 6], ids=["one layer", "six layers"])
def prices(request):
    """Of programs with something of their own on the host."""

    def layer(w, x):
        return x + jnp.tanh(jnp.sin(x @ w)) @ w

    def loss(w, x):
        for one in w:
            x = rr.block(layer, "layer")(one, x)
        return x.sum()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    (unit,) = rr.trace(loss, [array(8, 8)] * request.param, array(4, 8)).units

    def measured(actions) -> Any:
        host_bytes = OWN + sum(OF_A_LAYER + on_host([action]) for action in actions)
        memory = SimpleNamespace(total_bytes=len(actions), host_bytes=host_bytes)
        return SimpleNamespace(memory=memory, time=SimpleNamespace(step_us=1.0))

    ask = lambda steps: [measured(actions) for _, actions in steps]
    same: Any = lambda actions: actions
    cut = UnitCut(same, False, 0.0, 1.0)
    moved = Candidate("moved", rr.RECOMPUTE(offload=["dot_general_0", "cos_0"]))
    few = (preset(unit, "full"), preset(unit, "none"), moved)
    found = UnitPrices(unit, few, cut, ask)
    found.start(cut)
    found.price_roughly()
    return found


def test_what_a_program_has_on_the_host_of_its_own_is_no_price_of_a_layer(prices):
    expected = {"full": 0, "none": 0, "moved": 2}
    rough = {p.name: p.host_bytes for p in prices.menu().prices}
    assert rough == expected
    prices.refine(list(expected))
    assert {p.name: p.host_bytes for p in prices.menu().prices} == expected


def test_segments_that_come_later_cost_what_they_would_have_cost_at_first():
    """Their cuts are longer than the reference's, so they need two of their own."""
    layer = lambda x, w: (x + jnp.tanh(jnp.sin(x @ w)) @ w, None)
    loss = lambda w, x: jax.lax.scan(layer, x, w)[0].sum()
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    (unit,) = rr.trace(loss, array(32, 8, 8), array(4, 8)).units

    def measured(actions) -> Any:
        size = 100 + sum(2 if action.every > 1 else 7 for action in actions)
        took_us = 50 + sum(9 if action.every > 1 else 5 for action in actions)
        memory = SimpleNamespace(total_bytes=size, host_bytes=0)
        return SimpleNamespace(memory=memory, time=SimpleNamespace(step_us=took_us))

    ask = lambda steps: [measured(actions) for _, actions in steps]
    same: Any = lambda actions: actions
    segments = Candidate("segments", rr.RECOMPUTE(every=4))
    few = (preset(unit, "full"), preset(unit, "none"))
    first, later = (
        UnitPrices(unit, given, UnitCut(same, False, 0.0, 1.0), ask)
        for given in ((*few, segments), few)
    )
    first.price_roughly()
    later.price_roughly()
    later.offer([segments])
    assert later.menu() == first.menu()
    (price,) = (p for p in later.menu().prices if p.name == "segments")
    assert (price.kept_bytes, price.base_bytes, price.time_us) == (2, 100, 9)


def test_ends_are_layers_that_have_a_price_outside_of_the_loop():
    found = UnitPrices.__new__(UnitPrices)
    probe: Any = "measured"
    found.beside = {("none", "full", False): probe, ("dots", "none", True): probe}
    assert found.ends([("none", 1), ("full", 3)]) == (
        (("none", 1),),
        (("full", 3),),
        (),
    )
    runs = (("full", 3), ("none", 4), ("dots", 1))
    assert found.ends(runs) == ((), runs[:2], runs[2:])
    assert found.ends([("full", 1), ("none", 4)]) == (
        (),
        (("full", 1), ("none", 4)),
        (),
    )


@pytest.mark.parametrize(
    "runs",
    [
        [("full", 9)],
        [("full", 8), ("none", 1)],
        [("none", 1), ("full", 8)],
        [("none", 1), ("full", 7), ("none", 1)],
        [("none", 1), ("full", 7), ("dots", 1)],
        [("full", 4), ("none", 5)],  # no end stands alone
        [("full", 4), ("none", 4), ("dots", 1)],
    ],
    ids=str,
)
def test_ends_cost_what_they_cost_beside_the_loop_and_not_in_it(runs):
    """The first layer takes 3 us more than one of a loop, the last one 20 us less."""
    layer = lambda x, w: (x + jnp.tanh(jnp.sin(x @ w)) @ w, None)
    loss = lambda w, x: jax.lax.scan(layer, x, w)[0].sum()
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    (unit,) = rr.trace(loss, array(9, 8, 8), array(4, 8)).units
    few = {name: preset(unit, name) for name in ("full", "none", "dots")}
    took = {few["full"].action: 70, few["none"].action: 50, few["dots"].action: 60}

    def measured(actions) -> Any:
        step_us = 500 + sum(took[action] for action in actions)
        step_us += 3 * (actions[0] != actions[1]) - 20 * (actions[-1] != actions[-2])
        memory = SimpleNamespace(total_bytes=100 + len(actions), host_bytes=0)
        return SimpleNamespace(memory=memory, time=SimpleNamespace(step_us=step_us))

    ask = lambda steps: [measured(actions) for _, actions in steps]
    same: Any = lambda actions: actions
    found = UnitPrices(unit, list(few.values()), UnitCut(same, False, 0.0, 1.0), ask)
    found.price_roughly()
    found.refine(list(few))
    for last in (False, True):
        beside, stands_alone = neighbour(runs, last)
        if stands_alone:
            found.edges([runs[-1 if last else 0][0]], beside, last)
    actions = [few[name].action for name, n in runs for _ in range(n)]
    first_us = 3 * (runs[0][1] == 1)
    last_us = -20 * (runs[-1][1] == 1)
    expected = sum(took[action] for action in actions) + first_us + last_us
    assert found.layers_us(runs) == pytest.approx(expected)


def test_at_an_end_stands_what_a_single_layer_can_be():
    """No segments, nothing rebuilt ahead, sent to the host or written out again."""
    layer = lambda x, w: (x + jnp.tanh(jnp.sin(x @ w)) @ w, None)
    loss = lambda w, x: jax.lax.scan(layer, x, w)[0].sum()
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    (unit,) = rr.trace(loss, array(32, 8, 8), array(4, 8)).units
    others = [
        Candidate("segments", rr.RECOMPUTE(every=4)),
        Candidate("ahead", rr.RECOMPUTE(ahead=["dot_general_0"])),
        Candidate("on the host", rr.RECOMPUTE(offload=["input"])),
        Candidate("unrolled", rr.RECOMPUTE(unroll=True)),
    ]
    few = [preset(unit, name) for name in ("full", "dots", "none")]
    nothing: Any = None
    cut = UnitCut(nothing, False, 0.0, 1.0)
    found = UnitPrices(unit, [*few, *others], cut, nothing)
    assert sorted(found.least_rebuilt("full", 9)) == ["dots", "none"]
    assert found.least_rebuilt("dots", 1) == ["none"]


@pytest.mark.parametrize(("kept_us", "they_hold"), [(80.0, True), (20.0, False)])
def test_prices_are_held_to_the_program_where_a_unit_has_nothing_to_keep(
    kept_us, they_hold
):
    four = SimpleNamespace(num_layers=4)
    by_price = lambda name: (10, -5.0)
    prices: Any = [
        SimpleNamespace(unit=four, choices={"full", "none"}, difference=by_price),
        SimpleNamespace(unit=four, choices={"full", "full, offload input"}),
    ]
    program: Any = lambda size, us: SimpleNamespace(
        memory=SimpleNamespace(total_bytes=size), time=SimpleNamespace(step_us=us)
    )
    assert hold(prices, program(140, kept_us), program(100, 100.0)) == they_hold
