"""The segments of a program as a schedule sees them: what each may do, what waits."""

from types import SimpleNamespace
from typing import Any

import pytest

from revremat import RECOMPUTE
from revremat._graph import Graph, Operation, Unit, Value
from revremat._search._chain import chain_of, rates_of, segments_of
from revremat.policies import Way

CARD = SimpleNamespace(
    matmul_efficiency=0.5,
    link_efficiency=0.5,
    link_bandwidth=5.0,
    peak_flops={"bfloat16": 800.0, "float32": 40.0},
    stream_bandwidth=20.0,
)
TARGET: Any = SimpleNamespace(card=CARD)
MOVED_US = 1e6 / CARD.stream_bandwidth
"""For one byte."""


def segment(
    name: str,
    sizes: tuple[int, ...],
    numbers: tuple[int, int],
    flops: tuple[int, ...] = (40_000, 30_000, 20_000),
    enclosing: str = "",
) -> Unit:
    """Products one after the other: `x` is given, then `h`, `i`, `j`; the last goes on.

    Args:
      name: Its own.
      sizes: In bytes, of what it is given and of each product.
      numbers: What the program calls what it is given and what it gives.
      flops: Of its products.
      enclosing: The unit around it.
    """
    values = [
        Value("x", False, (1,), "float32", sizes[0], "input"),
        Value("", False, (1,), "float32", 1, "held"),
    ]
    operations = []
    for k, size in enumerate(sizes[1:]):
        taken = (0 if k == 0 else k + 1, 1)
        values.append(Value("hij"[k], False, (1,), "float32", size, "made"))
        operations.append(
            Operation("dot_general", taken, (k + 2,), flops[k], True, "", "")
        )
    last, read = len(values) - 1, (0, *range(2, len(values)))
    return Unit(
        name,
        "segment",
        "",
        1,
        tuple(values),
        tuple(operations),
        (0, 1, *range(2, len(values))),
        weight_bytes=1,
        forward_flops=10,
        backward_flops=20,
        outputs=(last,),
        read_whole=read,
        crossing=(0, last),
        crossing_ids=numbers,
        enclosing=enclosing,
    )


PAIR = (
    segment("pair", (8, 64, 16), (1, 3)),
    segment("first", (8, 64, 32), (1, 2), enclosing="pair"),
    segment("second", (32, 16), (2, 3), enclosing="pair"),
)
"""Two segments, and both as one."""


def test_rates_are_what_is_done_while_a_byte_is_moved():
    rates = rates_of(TARGET)
    assert (rates.product_flops, rates.other_flops) == (20.0, 2.0)
    assert rates.sent_bytes == 0.125


def test_segments_are_those_without_others_inside():
    loop = Unit("loop", "scan", "", 2, (), (), (), 0, 0, 0)
    found = segments_of(Graph((*PAIR, loop), "", ""))
    assert [unit.name for unit in found] == ["first", "second"]


def test_a_program_of_equal_layers_has_none():
    assert (
        chain_of(
            Graph((Unit("u", "scan", "", 2, (), (), (), 0, 0, 0),), "", ""), TARGET
        )
        is None
    )


def chain(*units) -> Any:
    return chain_of(Graph(units, "", ""), TARGET)


def test_a_segment_stays_as_it_is_or_recomputes_what_costs_least_to_keep():
    """What it shares with others is told apart from what it keeps beside."""
    (group,) = chain(segment("a", (8, 64, 16, 4), (5, 7))).groups
    assert (group.name, group.ways, group.given) == ("", (), frozenset())
    (part,) = group.segments
    plain, recompute, *others = part.ways
    # While it is differentiated there is the largest value beside what it recomputed.
    assert plain == Way(None, frozenset({5, 7}), 64 + 16, 64, 0.0)
    assert recompute.action == RECOMPUTE
    assert recompute.kept == {5}
    assert (recompute.kept_bytes, recompute.working_bytes) == (0, 64 + 16 + 4 + 64)
    assert [way.action for way in others] == [
        RECOMPUTE(save=["j"]),
        RECOMPUTE(save=["i", "j"]),
        RECOMPUTE(save=["h", "j"]),
        RECOMPUTE(save=["h", "i", "j"]),  # all products, whatever that gains
    ]
    assert [way.kept_bytes for way in others] == [0, 16, 64, 64 + 16]
    working = [64 + 16 + 64, 64 + 64, 16 + 64, 64]
    assert [way.working_bytes for way in others] == working
    assert all(way.kept == {5, 7} for way in others)
    # Each product less takes as many bytes' time as it has flops for.
    saved_us = recompute.time_us - others[0].time_us
    assert saved_us == pytest.approx(20_000 / 20 * MOVED_US)
    assert others[0].time_us - others[1].time_us == pytest.approx(
        30_000 / 20 * MOVED_US
    )
    assert part.again_us == recompute.time_us


@pytest.mark.parametrize(
    ("flops", "is_worth_it"), [(1000, False), (3000, False), (4000, True), (8000, True)]
)
def test_what_keeps_more_and_gains_next_to_nothing_is_left_out(flops, is_worth_it):
    """Less than a twentieth of what recomputing all takes: 63,000 and 64,000 flops."""
    (group,) = chain(
        segment("a", (8, 64, 16, 4), (1, 2), (40_000, flops, 20_000))
    ).groups
    actions = [way.action for way in group.segments[0].ways]
    assert (RECOMPUTE(save=["i", "j"]) in actions) == is_worth_it
    assert RECOMPUTE(save=["h", "j"]) in actions


def test_of_what_is_given_out_the_gradient_waits_until_the_last_reader():
    """Of values that a later segment reads; what is read at once waits there alone."""
    found = chain(
        segment("a", (8, 64, 32), (1, 2)),
        segment("b", (32, 16), (2, 3)),
        segment("c", (32, 7), (2, 4)),
        segment("d", (7, 5), (4, 6)),
    )
    waiting = [group.segments[0].waiting_bytes for group in found.groups]
    assert found.sizes == {1: 8, 2: 32, 3: 16, 4: 7, 6: 5}
    assert waiting == [32, 32, 7, 0]


def test_segments_of_one_unit_are_a_group_that_may_be_recomputed_as_one():
    found = chain(*PAIR, segment("alone", (16, 7, 64), (3, 4)))
    pair, alone = found.groups
    assert [part.name for part in pair.segments] == ["first", "second"]
    assert [part.waiting_bytes for part in pair.segments] == [32, 16]
    assert (pair.name, pair.given) == ("pair", {1})
    # To stay as it is says nothing beside what its segments do.
    assert pair.ways[0].action == RECOMPUTE
    assert None not in [way.action for way in pair.ways]
    assert [part.name for part in alone.segments] == ["alone"]
    assert (alone.name, alone.ways, alone.given) == ("", (), frozenset())
    assert found.sizes == {1: 8, 2: 32, 3: 16, 4: 64}


@pytest.mark.parametrize("sizes", [(8, 8), (8, 4), (64, 8, 8), (4, 4, 4, 4)])
def test_every_segment_may_recompute_all(sizes):
    """Even where another action keeps as little, or less."""
    (group,) = chain(segment("a", sizes, (5, 7))).groups
    actions = [way.action for way in group.segments[0].ways]
    assert actions[:2] == [None, RECOMPUTE]
    assert len(actions) == len(set(actions))
