"""What has no cost is estimated by its nearest neighbour that has one."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from revremat import OFFLOAD, RECOMPUTE, SAVE
from revremat._search.passes._column_generation import (
    _best,
    _is_set,
    _nearest,
    _with_estimates,
    exposed_us,
    without_cost,
)
from revremat.policies import Candidate, LayerCost, Pool, UnitOptions
from tests.search.world import Cost, World, small, unit_of

CARD = SimpleNamespace(stream_bandwidth=2e6, pcie_bandwidth=1e6)
"""A microsecond for two bytes, and for one byte to the host."""


def cost(name, kept, time_us, base=0.0, host=0.0):
    return LayerCost(name, kept, base, host, time_us)


@pytest.mark.parametrize(
    ("sent", "takes_us", "waits_us"),
    [
        # A third of the work is the forward pass's: 10 of 30 flops.
        (0, 90, 0),
        (30, 90, 0),
        (31, 90, 1),
        (60, 90, 30),
        (61, 90, 31 + 1),
        (100, 90, 70 + 40),
    ],
)
def test_transfers_hide_behind_the_pass_that_they_run_beside(sent, takes_us, waits_us):
    unit = unit_of()
    kept: Any = SimpleNamespace(recompute_flops=0)
    told = LayerCost("", 0.0, 0.0, sent, takes_us)
    assert exposed_us(unit, kept, told, 1e6) == pytest.approx(waits_us)
    # What is recomputed is done in the backward pass: then a sixth is the forward's.
    kept.recompute_flops = 30
    more = max(0, sent - takes_us / 6) + max(0, sent - takes_us * 5 / 6)
    assert exposed_us(unit, kept, told, 1e6) == pytest.approx(more)


@pytest.mark.parametrize(
    ("action", "is_set"),
    [
        (SAVE, True),
        (RECOMPUTE, True),
        (small("ab"), True),
        (RECOMPUTE(offload=["a"]), True),
        (RECOMPUTE(unroll=True), True),
        (OFFLOAD, False),
        (small(ahead=["b"]), False),
        (RECOMPUTE(chunks=2), False),
        (RECOMPUTE(segment_length=2), False),
        (RECOMPUTE(chunks=2, segment_length=2), False),
    ],
)
def test_sets_keep_some_values_and_recompute_the_others(action, is_set):
    assert _is_set(Candidate("", action)) == is_set


@pytest.mark.parametrize(
    ("action", "nearest"),
    [
        (small("abc"), "ab"),
        (small("e"), "recompute all"),
        (SAVE(unroll=True), None),
        (RECOMPUTE(save=["a"], offload=["b"]), "a, b on the host"),
        (RECOMPUTE(save=["a", "b", "c", "d", "e"]), "save all"),
    ],
)
def test_near_is_what_keeps_most_of_the_same_and_is_sent_alike(action, nearest):
    costed = [
        Candidate("recompute all", RECOMPUTE),
        Candidate("save all", SAVE),
        Candidate("ab", small("ab")),
        Candidate("a, b on the host", RECOMPUTE(save=["a"], offload=["b"])),
        Candidate("segments", RECOMPUTE(segment_length=2)),
    ]
    found = _nearest(Pool(unit_of()), costed, Candidate("new", action))
    assert (found and found.name) == nearest


@pytest.mark.parametrize(
    ("estimates", "stay"),
    [
        ([cost("x", 5, 5)], "x"),
        ([cost("x", 4, 8)], ""),  # a known one takes as little
        ([cost("x", 4, 7)], "x"),
        ([cost("x", 3, 8)], "x"),
        ([cost("x", 4, 8, base=-1)], "x"),
        ([cost("x", 9, 9)], ""),
        # What has something on the host is no reason against another.
        ([cost("x", 20, 1)], "x"),
        ([cost("x", 5, 5), cost("y", 5, 5)], "x"),
        ([cost("y", 5, 5), cost("x", 5, 6), cost("z", 6, 5)], "y"),
        ([cost("y", 6, 4), cost("x", 5, 5)], "xy"),
        ([cost("y", 5, 5, host=1), cost("x", 6, 5)], "yx"),
    ],
)
def test_of_estimates_those_stay_that_nothing_else_beats(estimates, stay):
    known = {"known": cost("known", 4, 8), "host": cost("host", 1, 1, host=3)}
    assert "".join(one.name for one in _best(estimates, known)) == stay


def estimated(action, near=None, kept=1.0):
    """What is estimated beside recomputing all or another, and how it compares."""
    world = World()
    state, _ = world.state(1000)
    (unit,) = state.units
    target: Any = SimpleNamespace(
        platform="cuda", host_bytes=1e9, num_devices=1, card=CARD
    )
    space = state.space
    pool = Pool(unit)
    space = dataclasses.replace(space, target=target, pools={"u": pool})
    state = state.but(space=space)
    reference = near or Candidate("recompute all", RECOMPUTE)
    full = LayerCost(reference.name, kept, 10.0, 0.0, 100.0, 2)
    options = UnitOptions("u", 8, (full,))
    new = Candidate("new", action)
    found = _with_estimates(state.but(candidates={"u": (reference,)}), options, [new])
    assert (found.unit, found.num_layers, found.costs[0]) == ("u", 8, full)
    saved = pool.cost(reference).traffic - pool.cost(new).traffic
    return found.costs[1:], saved


def test_beside_what_keeps_all_a_set_keeps_what_it_does_on_paper():
    """Of all, 24 bytes on paper, much is fused away: the difference says too little."""
    plain = Candidate("save all", SAVE(unroll=True))
    for kept, told in ((24.0, 4.0), (15.0, 4.0), (30.0, 10.0)):
        (one,), _ = estimated(small("a", unroll=True), plain, kept)
        assert one.kept_bytes == told


def test_an_estimate_is_the_neighbours_cost_and_what_differs():
    (one,), saved = estimated(small("a"))  # which needs no input
    assert saved > 0
    assert (one.name, one.kept_bytes, one.base_bytes) == ("new", 1 + 3, 10)
    assert (one.host_bytes, one.shortest_run) == (0, 2)
    assert one.time_us == pytest.approx(100 - saved / 2)


def test_what_is_sent_waits_for_the_host_beside():
    (one,), saved = estimated(RECOMPUTE(offload=["a"]))
    unit = unit_of()
    assert (one.kept_bytes, one.host_bytes) == (0, 4)
    kept = unit.kept(RECOMPUTE(offload=["a"]))
    took_us = 100 - saved / 2
    wait = exposed_us(unit, kept, LayerCost("", 0, 0, 4, took_us), 1e6)
    assert one.time_us == pytest.approx(took_us + wait)


def test_what_gains_nothing_is_no_option():
    assert estimated(RECOMPUTE)[0] == ()


def proposed(can_send, *offered, layers=8):
    world = World(
        {name: (action, Cost(1, 1)) for name, action in offered}, layers=layers
    )
    state, _ = world.state(1000)
    (unit,) = state.units
    target: Any = SimpleNamespace(platform="cuda" if can_send else "cpu", host_bytes=0)
    space = state.space
    space = dataclasses.replace(space, target=target, pools={"u": Pool(unit)})
    return [c.action for c in without_cost(state.but(space=space), unit)]


def test_proposed_is_what_has_no_cost_unrolled_where_anything_is():
    plain = proposed(False)
    assert not any(action.unroll or action.on_host for action in plain)
    assert RECOMPUTE not in plain
    assert SAVE not in plain
    out = proposed(False, ("out", SAVE(unroll=True)))
    assert {a for a in out if not a.unroll} == {*plain}
    assert SAVE(unroll=True) not in out
    unrolled = {a(unroll=False) for a in out if a.unroll}
    assert {*plain, RECOMPUTE} <= unrolled


def test_proposed_unrolled_are_sets_without_a_stack_too():
    out = proposed(False, ("out", SAVE(unroll=True)))
    world = World({"out": (SAVE(unroll=True), Cost(1, 1))}, layers=8)
    (unit,) = world.state(1000)[0].units
    sets = {c.action(unroll=True) for c in Pool(unit).unrolled_sets}
    assert sets <= {*out, SAVE(unroll=True)}


def test_proposed_with_some_to_an_iteration_are_the_same_beside_unrolled_ones():
    """What is of unrolled layers alone stays with those."""
    some, whole = ("some", SAVE(unroll=4)), ("whole", SAVE(unroll=True))
    of = lambda found: [action for action in found if action.unroll == 4]
    assert of(proposed(False, some, whole)) == of(proposed(False, some))


@pytest.mark.parametrize(("layers", "sends"), [(8, True), (1, False)])
def test_sets_with_a_cost_may_have_one_value_more_on_the_host(layers, sends):
    found = proposed(True, ("a", small("a")), layers=layers)
    assert any(action.on_host for action in found) == sends
    assert (RECOMPUTE(offload=["a"]) in found) == sends
    assert (SAVE(offload=["a"]) in found) == sends
    assert not any(len(action.offload) > 1 for action in found)
