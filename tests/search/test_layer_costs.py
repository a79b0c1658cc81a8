"""What a layer costs, told from what small programs take."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat._search import Heuristics
from revremat._search._layer_costs import LayerCosts
from revremat._search._peeled import peeled_cut
from revremat._search._probes import Probe
from revremat._search.passes._calibrate import hold
from revremat.policies import Candidate, preset

OWN, OF_A_LAYER = 1000, 7


def on_host(actions):
    return sum(len(action.offload) for action in actions)


@pytest.fixture(params=[1, 6], ids=["one layer", "six layers"])
def program(request):
    """Of programs with something of their own on the host."""

    def layer(w, x):
        return x + jnp.tanh(jnp.sin(x @ w)) @ w

    def loss(w, x):
        for one in w:
            x = rr.block(layer, "layer")(one, x)
        return x.sum()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    (unit,) = rr.trace(loss, [array(8, 8)] * request.param, array(4, 8)).units

    def probe(actions):
        host_bytes = OWN + sum(OF_A_LAYER + on_host([action]) for action in actions)
        return Probe(len(actions), host_bytes, 1.0)

    moved = Candidate("moved", rr.RECOMPUTE(offload=["dot_general_0", "cos_0"]))
    few = (preset(unit, "recompute all"), preset(unit, "save all"), moved)
    return unit, few, probe


def known(unit, few, probe, names=()):
    """Costs by the longer probes, and by the shorter ones of some candidates."""
    costs = LayerCosts(unit, few, probe, lambda actions: False)
    asked = {*costs.first_probes}
    first = lambda actions: probe(actions) if actions in asked else None
    costs = LayerCosts(unit, few, first, lambda actions: False)
    asked |= {*costs.second_probes(names)}
    return LayerCosts(unit, few, first, lambda actions: False)


def test_what_a_program_has_on_the_host_of_its_own_is_no_cost_of_a_layer(program):
    expected = {"recompute all": 0, "save all": 0, "moved": 2}
    for names in ((), expected):
        options = known(*program, names).options
        assert {p.name: p.host_bytes for p in options.costs} == expected


def scanned(layers=32):
    layer = lambda x, w: (x + jnp.tanh(jnp.sin(x @ w)) @ w, None)
    loss = lambda w, x: jax.lax.scan(layer, x, w)[0].sum()
    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    (unit,) = rr.trace(loss, array(layers, 8, 8), array(4, 8)).units
    return unit


def test_segments_have_longer_probes_of_their_own():
    """So their cost is exact at first, whenever they come."""
    unit = scanned()

    def probe(actions):
        size = 100 + sum(2 if action.segment_length > 1 else 7 for action in actions)
        took_us = 50 + sum(9 if action.segment_length > 1 else 5 for action in actions)
        return Probe(size, 0, took_us)

    segments = Candidate("segments", rr.RECOMPUTE(segment_length=4))
    few = (preset(unit, "recompute all"), preset(unit, "save all"), segments)
    costs = known(unit, few, probe)
    assert {len(cut) for cut in costs.first_probes} == {4, 8, 16}
    (cost,) = (p for p in costs.options.costs if p.name == "segments")
    assert (cost.kept_bytes, cost.base_bytes, cost.time_us) == (2, 100, 9)


def test_peeled_layers_are_those_with_a_cost_outside_of_the_loop():
    unit = scanned()
    few = [preset(unit, name) for name in ("recompute all", "save all", "dots")]
    full, none, dots = (c.action for c in few)
    asked = {peeled_cut(none, full, False), peeled_cut(dots, none, True)}

    def probe(actions):
        is_peeled = len(set(actions)) > 1
        return None if is_peeled and actions not in asked else Probe(1, 0, 1.0)

    costs = LayerCosts(unit, tuple(few), probe, lambda actions: False)
    first, last = ("save all", 1), ("dots", 1)
    assert costs.peeled.split([first, ("recompute all", 3)]) == (
        (first,),
        (("recompute all", 3),),
        (),
    )
    runs = (("recompute all", 3), ("save all", 4), last)
    assert costs.peeled.split(runs) == ((), runs[:2], runs[2:])
    runs = (("recompute all", 1), ("save all", 4))
    assert costs.peeled.split(runs) == ((), runs, ())


def test_peeled_is_what_a_single_layer_can_be():
    """No segments, nothing recomputed ahead, sent to the host or unrolled again."""
    unit = scanned()
    others = [
        Candidate("segments", rr.RECOMPUTE(segment_length=4)),
        Candidate("ahead", rr.RECOMPUTE(ahead=["dot_general_0"])),
        Candidate("on the host", rr.RECOMPUTE(offload=["input"])),
        Candidate("unrolled", rr.RECOMPUTE(unroll=True)),
    ]
    few = [preset(unit, name) for name in ("recompute all", "dots", "save all")]
    offered = (*few, *others)
    found = LayerCosts(unit, offered, lambda _: None, lambda _: False)
    assert sorted(found.peeled.least_recomputed("recompute all", 9)) == [
        "dots",
        "save all",
    ]
    assert found.peeled.least_recomputed("dots", 1) == ["save all"]


def test_what_does_not_compile_has_no_cost_and_is_not_offered_again():
    unit = scanned()
    few = tuple(preset(unit, name) for name in ("recompute all", "dots", "save all"))
    fails = lambda actions: actions[0] == few[1].action
    probe = lambda actions: None if fails(actions) else Probe(1, 0, 1.0)
    costs = LayerCosts(unit, few, probe, fails)
    assert [*costs.candidates] == ["recompute all", "save all"]
    assert few[1].action in costs.known_actions


@pytest.mark.parametrize(("kept_us", "they_hold"), [(80.0, True), (20.0, False)])
def test_costs_are_held_to_the_program_where_a_unit_has_nothing_to_keep(
    kept_us, they_hold
):
    four = SimpleNamespace(num_layers=4)
    by_cost = lambda name: (10, -5.0)
    costs: Any = [
        SimpleNamespace(
            unit=four, candidates={"recompute all", "save all"}, difference=by_cost
        ),
        SimpleNamespace(
            unit=four, candidates={"recompute all", "recompute all, offload input"}
        ),
    ]
    found = hold(costs, (140, kept_us), (100, 100.0), Heuristics())
    assert found == they_hold
