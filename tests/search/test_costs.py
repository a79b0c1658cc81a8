"""What is compiled to tell a layer's cost, and the cost that comes of it."""

import dataclasses
from typing import Any

import pytest

from revremat import OFFLOAD, RECOMPUTE, SAVE
from revremat._search import Heuristics
from revremat._search._layer_costs import LayerCosts, plain_of, unrolled
from revremat._search._peeled import can_peel, neighbour, peeled_cut
from revremat._search._probes import Probe, cuts, first_cuts, is_loop
from revremat._search.passes._calibrate import corrections, hold
from revremat.policies import Candidate
from tests.search.world import small, unit_of

FULL, KEEP = Candidate("recompute all", RECOMPUTE), Candidate("save all", SAVE)
TAG = Candidate("a", small())


# ---- What is compiled ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "few", "more"),
    [(2, 1, 2), (3, 1, 3), (7, 3, 7), (8, 4, 8), (9, 4, 8), (100, 4, 8)],
)
def test_of_many_layers_four_and_eight_are_compiled_of_few_half_and_all(
    layers, few, more
):
    for action in (SAVE, RECOMPUTE):
        assert cuts(unit_of(layers=layers), action) == [
            (action,) * few,
            (action,) * more,
        ]


@pytest.mark.parametrize("length", [2, 3, 8])
def test_of_segments_two_and_four_are_compiled(length):
    action = RECOMPUTE(segment_length=length)
    found = cuts(unit_of(layers=48), action)
    assert found == [(action,) * (2 * length), (action,) * (4 * length)]


@pytest.mark.parametrize("layers", [4, 5])
def test_where_layers_cannot_be_left_out_half_of_them_recompute_everything(layers):
    unit = unit_of(layers=layers, skippable=False)
    assert cuts(unit, SAVE) == [
        (*(RECOMPUTE,) * (layers - 2), SAVE, SAVE),
        (SAVE,) * layers,
    ]
    assert cuts(unit, RECOMPUTE) == [(RECOMPUTE,) * layers]


@pytest.mark.parametrize("skippable", [True, False])
def test_of_one_layer_there_is_one_program(skippable):
    assert cuts(unit_of(layers=1, skippable=skippable), SAVE) == [(SAVE,)]


def test_at_first_there_is_one_program_for_each_and_two_for_segments():
    pairs = Candidate("pairs", RECOMPUTE(segment_length=2))
    found = first_cuts(unit_of(layers=9), [KEEP, pairs, FULL])
    expected = [(pairs.action, 4), (SAVE, 8), (pairs.action, 8), (RECOMPUTE, 8)]
    assert found == [(action,) * n for action, n in expected]


@pytest.mark.parametrize(
    ("how", "loop", "peels"),
    [
        ({"layers": 9}, True, True),
        ({"layers": 8}, True, False),  # all of it is compiled already
        ({"layers": 9, "skippable": False}, True, False),
        ({"layers": 9, "kind": "block"}, False, False),
        ({"layers": 2}, True, False),
        ({"layers": 1}, False, False),
    ],
)
def test_loops_of_many_layers_have_a_first_and_a_last_one(how, loop, peels):
    unit = unit_of(**how)
    assert (is_loop(unit), can_peel(unit)) == (loop, peels)


def test_a_peeled_layer_stands_beside_seven_others():
    assert peeled_cut(SAVE, RECOMPUTE, last=False) == (SAVE, *(RECOMPUTE,) * 7)
    assert peeled_cut(SAVE, RECOMPUTE, last=True) == (*(RECOMPUTE,) * 7, SAVE)


@pytest.mark.parametrize(
    ("runs", "first", "last"),
    [
        ([("a", 4)], ("a", False), ("a", False)),
        ([("a", 1)], ("a", False), ("a", False)),
        ([("a", 1), ("b", 3)], ("b", True), ("b", False)),
        ([("a", 3), ("b", 1)], ("a", False), ("a", True)),
        ([("a", 1), ("b", 1)], ("b", True), ("a", True)),
        ([("a", 1), ("b", 4), ("c", 1)], ("b", True), ("b", True)),
        ([("a", 2), ("b", 4), ("c", 2)], ("a", False), ("c", False)),
    ],
)
def test_a_layer_stands_alone_where_its_run_is_one_of_several(runs, first, last):
    assert (neighbour(runs, last=False), neighbour(runs, last=True)) == (first, last)


def test_unrolled_candidates_know_the_same_in_a_loop():
    out = unrolled(TAG)
    assert (out.name, out.action) == ("a (unrolled)", small()(unroll=True))
    assert plain_of(out) is TAG
    assert plain_of(Candidate("x", out.action)) == Candidate("x", small())
    assert plain_of(TAG) == TAG


# ---- What is asked for ---------------------------------------------------------------


def costs_of(unit, offered, probes, **how) -> Any:
    """Costs by what shortened programs take: from their actions to a `Probe`."""
    known = {actions: Probe(*sizes) for actions, sizes in probes.items()}
    return LayerCosts(unit, tuple(offered), known.get, lambda actions: False, **how)


def test_first_come_one_program_for_each_candidate_and_the_reference_twice():
    costs = costs_of(unit_of(), (KEEP, FULL), {})
    expected = [(RECOMPUTE, 4), (SAVE, 8), (RECOMPUTE, 8)]
    assert costs.first_probes == [(action,) * n for action, n in expected]
    assert costs_of(unit_of(layers=1), (FULL, KEEP), {}).first_probes == [
        (RECOMPUTE,),
        (SAVE,),
    ]


def test_of_few_layers_the_last_set_is_what_the_others_are_held_to():
    """The second cut of eight layers is the whole, so none tells of more layers."""
    on_host = Candidate("sent", RECOMPUTE(offload=["a"]))
    offered = (FULL, KEEP, TAG, on_host)
    first = lambda layers, few=offered: costs_of(unit_of(layers=layers), few, {})
    assert first(8).first_probes[0] == (TAG.action,) * 4
    assert first(9).first_probes[0] == (RECOMPUTE,) * 4
    assert first(8, (FULL, KEEP)).first_probes[0] == (RECOMPUTE,) * 4
    later = Candidate("b", small("b"))
    many = (FULL, KEEP, TAG, on_host, later)  # which is not among those of the start
    assert first(8, many).first_probes[0] == (TAG.action,) * 4


def test_rough_costs_have_the_constant_of_whatever_has_two_probes():
    probes = {
        (TAG.action,) * 4: (140.0, 3.0, 40.0),
        (TAG.action,) * 8: (180.0, 5.0, 80.0),
        (RECOMPUTE,) * 8: (148.0, 5.0, 104.0),
        (SAVE,) * 8: (260.0, 5.0, 64.0),
    }
    costs = costs_of(unit_of(), (FULL, KEEP, TAG), probes)
    assert costs.has_reference
    found = {
        c.name: (c.kept_bytes, c.base_bytes, c.time_us) for c in costs.options.costs
    }
    assert found == {
        "a": (10.0, 100.0, 10.0),
        "recompute all": (6.0, 100.0, 13.0),
        "save all": (20.0, 100.0, 8.0),
    }
    # What recomputed layers have on the host, half a byte each, is no layer's cost.
    assert [c.host_bytes for c in costs.options.costs] == [0.0, 0.0, 0.0]
    exact = probes | {(RECOMPUTE,) * 4: (140.0, 3.0, 48.0)}
    costs = costs_of(unit_of(), (FULL, KEEP, TAG), exact)
    assert costs.cost("recompute all").kept_bytes == 2.0
    assert costs.cost("save all").kept_bytes == 2.0 + 112 / 8


@pytest.mark.parametrize(
    ("size", "kept", "base"),
    [
        (148.0, 6.0, 100.0),  # more than on paper, even with all else as in the loop
        (132.0, 4.0, 100.0),
        (116.0, 4.0, 84.0),  # as on paper
        (92.0, 4.0, 60.0),
        (84.0, 3.0, 60.0),  # less, even with all else as if nothing were recomputed
    ],
)
def test_rough_costs_of_unrolled_layers_are_as_on_paper_within_two_constants(
    size, kept, base
):
    """In the loop all else takes 100, with plain unrolled layers 60; `a` has 4."""
    plain, tag = SAVE(unroll=True), TAG.action(unroll=True)
    offered = (FULL, Candidate("plain", plain), Candidate("a unrolled", tag))
    probes = {
        (RECOMPUTE,) * 4: (108.0, 0.0, 40.0),
        (RECOMPUTE,) * 8: (116.0, 0.0, 80.0),
        (plain,) * 4: (140.0, 0.0, 20.0),
        (plain,) * 8: (220.0, 0.0, 40.0),
        (tag,) * 8: (size, 0.0, 48.0),
    }
    cost = costs_of(unit_of(), offered, probes).cost("a unrolled")
    assert (cost.kept_bytes, cost.base_bytes, cost.time_us) == (kept, base, 6.0)
    probes.pop((plain,) * 4)  # then all else is as in the loop
    cost = costs_of(unit_of(), offered, probes).cost("a unrolled")
    assert cost.kept_bytes == max(0.0, (size - 100) / 8)


def test_without_two_probes_of_anything_nothing_is_held_to_it():
    costs = costs_of(unit_of(), (FULL, TAG), {(RECOMPUTE,) * 8: (1.0, 0.0, 1.0)})
    assert not costs.has_reference


def test_second_come_those_that_are_missing_each_once():
    deep = {(SAVE,) * 8: (9, 0, 9), (SAVE,) * 4: (9, 0, 9), (RECOMPUTE,) * 8: (9, 0, 9)}
    costs = costs_of(unit_of(), (FULL, KEEP, TAG), deep)
    wanted = ["a", "save all", "a", "recompute all", "unknown"]
    assert costs.second_probes(wanted) == [(small(),) * 4, (RECOMPUTE,) * 4]
    assert (
        costs_of(unit_of(layers=1), (FULL,), {}).second_probes(["recompute all"]) == []
    )


@pytest.mark.parametrize(
    ("known", "has_reference"),
    [
        ([], False),
        ([(SAVE, 8)], False),
        ([(SAVE, 4)], False),
        ([(RECOMPUTE, 8)], False),
        ([(RECOMPUTE, 4)], False),
        ([(SAVE, 4), (SAVE, 8)], False),
        ([(RECOMPUTE, 4), (RECOMPUTE, 8)], True),
        ([(RECOMPUTE, 8), (SAVE, 4), (SAVE, 8)], True),
    ],
)
def test_there_are_no_costs_before_what_all_are_held_to(known, has_reference):
    probes = {(action,) * n: (9.0, 0.0, 9.0) for action, n in known}
    costs = costs_of(unit_of(), (FULL, KEEP), probes)
    assert costs.has_reference == has_reference
    assert bool(costs.options.costs) == has_reference


@pytest.mark.parametrize(
    ("how", "layers", "operations", "can"),
    [
        ({}, 100, 6, True),
        ({}, 101, 6, False),
        ({"most_unrolled_layers": 7}, 8, 6, False),
        ({"most_unrolled_operations": 48}, 8, 6, True),
        ({"most_unrolled_operations": 47}, 8, 6, False),
        ({}, 1, 6, False),
    ],
)
def test_loops_that_compile_soon_can_be_unrolled(how, layers, operations, can):
    unit = unit_of(layers=layers)
    assert len(unit.operations) == operations
    costs = costs_of(unit, (FULL,), {}, heuristics=Heuristics(**how))
    assert costs.can_unroll == can
    assert bool(costs.not_unrolled()) == can


def test_unrolled_is_what_is_not_yet_and_worth_it():
    out = unrolled(KEEP)
    pairs = Candidate("pairs", RECOMPUTE(segment_length=2))
    offered = (FULL, KEEP, TAG, pairs, out)
    names = lambda costs: [candidate.name for candidate in costs.not_unrolled()]
    assert names(costs_of(unit_of(), offered, {})) == [
        "recompute all (unrolled)",
        "a (unrolled)",
    ]
    dominated = costs_of(unit_of(), offered, {}, dominated={"a"})
    assert names(dominated) == ["recompute all (unrolled)"]
    fails = lambda actions: actions[0] == out.action
    failing = LayerCosts(unit_of(), offered, lambda _: None, fails)
    assert names(failing) == ["recompute all (unrolled)", "a (unrolled)"]


# ---- Costs ---------------------------------------------------------------------------

LOOP = {
    # Bytes, bytes on the host, time.
    (RECOMPUTE,) * 4: (1040.0, 100.0, 70.0),
    (RECOMPUTE,) * 8: (1080.0, 104.0, 110.0),
    (SAVE,) * 4: (1100.0, 100.0, 50.0),
    (SAVE,) * 8: (1300.0, 104.0, 58.0),
    (OFFLOAD,) * 4: (1040.0, 128.0, 90.0),
    (OFFLOAD,) * 8: (1080.0, 160.0, 170.0),
    (small(),) * 8: (1160.0, 112.0, 94.0),
}
HOST = Candidate("host", OFFLOAD)


@pytest.mark.parametrize(
    ("name", "kept", "base", "host", "time_us"),
    [
        ("recompute all", 10, 1000, 0, 10),
        ("save all", 50, 900, 0, 2),
        ("host", 10, 1000, 7, 20),  # one byte of each is the program's own
        # By one program: as if all else were as where everything is recomputed.
        ("a", 20, 1000, 1, 8),
    ],
)
def test_a_layers_cost_is_the_slope_and_all_else_the_rest(
    name, kept, base, host, time_us
):
    costs = costs_of(unit_of(), (FULL, KEEP, HOST, TAG), LOOP)
    found = costs.cost(name)
    assert (found.kept_bytes, found.base_bytes) == (kept, base)
    assert (found.host_bytes, found.time_us) == (host, time_us)
    assert costs.difference(name) == (kept - 10, time_us - 10)


@pytest.mark.parametrize("name", ["save all", "a"])
def test_what_layers_of_other_units_keep_is_no_part_of_the_rest(name):
    costs = costs_of(unit_of(), (FULL, KEEP, TAG), LOOP, kept_by_others=300.0)
    alone = costs_of(unit_of(), (FULL, KEEP, TAG), LOOP)
    assert costs.cost(name).base_bytes == alone.cost(name).base_bytes - 300
    assert costs.cost(name).kept_bytes == alone.cost(name).kept_bytes


def test_no_layer_keeps_or_sends_less_than_nothing():
    """Programs may become smaller with more layers."""
    shrinks = {
        (RECOMPUTE,) * 4: (100.0, 9.0, 1.0),
        (RECOMPUTE,) * 8: (80.0, 5.0, 2.0),
        (small(),) * 8: (72.0, 1.0, 3.0),
    }
    costs = costs_of(unit_of(), (FULL, TAG), shrinks)
    full, tag = costs.cost("recompute all"), costs.cost("a")
    assert (full.kept_bytes, full.base_bytes, full.host_bytes) == (0, 80, 0)
    assert (tag.kept_bytes, tag.base_bytes, tag.host_bytes) == (0, 72, 0)


def test_of_layers_that_cannot_be_left_out_slopes_are_against_recomputed_ones():
    """Those keep their input, one byte."""
    unit = unit_of(layers=5, skippable=False)
    probes = {
        (RECOMPUTE,) * 5: (1000.0, 0.0, 80.0),
        (RECOMPUTE,) * 3 + (SAVE,) * 2: (1060.0, 8.0, 60.0),
        (SAVE,) * 5: (1150.0, 20.0, 30.0),
    }
    costs = costs_of(unit, (FULL, KEEP), probes)
    full, keep = costs.reference, costs.cost("save all")
    assert (full.kept_bytes, full.base_bytes, full.time_us) == (1, 995, 0)
    assert (keep.kept_bytes, keep.base_bytes) == (31, 1150 - 5 * 31)
    assert (keep.host_bytes, keep.time_us) == (4, -10)
    probes.pop((RECOMPUTE,) * 3 + (SAVE,) * 2)
    rough = costs_of(unit, (FULL, KEEP), probes).cost("save all")
    assert (rough.kept_bytes, rough.host_bytes, rough.time_us) == (31, 4, -10)


def test_of_one_layer_all_that_its_program_takes_is_its_cost():
    unit = unit_of(layers=1)
    probes = {(RECOMPUTE,): (100.0, 7.0, 30.0), (SAVE,): (150.0, 12.0, 20.0)}
    costs = costs_of(unit, (FULL, KEEP), probes)
    full, keep = costs.reference, costs.cost("save all")
    size = unit.kept(SAVE).device_bytes
    assert (full.kept_bytes, full.base_bytes) == (1, 99)
    assert (full.host_bytes, full.time_us) == (0, 30)
    assert (keep.kept_bytes, keep.base_bytes) == (size, 150 - size)
    assert (keep.host_bytes, keep.time_us) == (5, 20)


@pytest.mark.parametrize(
    ("layers", "correction", "base", "shortest"),
    [(9, 24.0, 924, 2), (8, 24.0, 924, 1), (9, -24.0, 876, 2), (9, -1000.0, 0, 2)],
)
def test_options_are_set_right_and_say_how_short_a_loop_may_be(
    layers, correction, base, shortest
):
    out = unrolled(KEEP)
    probes = LOOP | {(out.action,) * 8: (1300.0, 104.0, 58.0)}
    offered = (FULL, KEEP, out, Candidate("unknown", small("bc")))
    unit = unit_of("layers", layers)
    costs = costs_of(unit, offered, probes, correction=correction)
    options = costs.options
    assert (options.unit, options.num_layers) == ("layers", layers)
    found = {cost.name: cost for cost in options.costs}
    assert [*found] == ["recompute all", "save all", "save all (unrolled)"]
    assert found["save all"].base_bytes == base
    assert found["save all"].shortest_run == shortest
    assert found["save all (unrolled)"].shortest_run == 1
    assert costs.cost("save all").base_bytes == 900


# ---- Peeled layers -------------------------------------------------------------------

ENDS = LOOP | {
    (SAVE, *(RECOMPUTE,) * 7): (1095.0, 106.0, 95.0),
    (*(SAVE,) * 7, RECOMPUTE): (1270.0, 103.0, 61.0),
}


def test_a_peeled_layer_costs_what_its_program_takes_more_than_the_loop():
    costs = costs_of(unit_of(layers=9), (FULL, KEEP, TAG), ENDS)
    first = costs.peeled.cost("save all", "recompute all", last=False)
    last = costs.peeled.cost("recompute all", "save all", last=True)
    sizes = lambda cost: dataclasses.astuple(cost)[:5]
    assert sizes(first) == ("save all", 15, 0, 2, -15)
    assert sizes(last) == ("recompute all", -30, 0, -1, 3)
    assert costs.peeled.known("recompute all", last=False) == [first]
    assert costs.peeled.known("recompute all", last=True) == []
    assert costs.peeled.cost("a", "recompute all", last=False) is None
    assert costs.peeled.cost("save all", "save all", last=False) is None
    short = costs_of(unit_of(layers=8), (FULL, KEEP), ENDS)
    assert short.peeled.cost("save all", "recompute all", last=False) is None


@pytest.mark.parametrize(
    ("runs", "time_us"),
    [
        ([("recompute all", 9)], 90),
        ([("recompute all", 7), ("save all", 2)], 74),
        ([("save all", 1), ("recompute all", 8)], 80 + 10 - 15),
        ([("save all", 8), ("recompute all", 1)], 16 + 2 + 3),
        (
            [
                ("save all", 1),
                ("recompute all", 2),
                ("save all", 5),
                ("recompute all", 1),
            ],
            (10 - 15) + 20 + 10 + (2 + 3),
        ),
        # No program told of this one.
        ([("recompute all", 8), ("save all", 1)], 82),
    ],
)
def test_layers_take_their_cost_and_peeled_ones_their_own(runs, time_us):
    costs = costs_of(unit_of(layers=9), (FULL, KEEP), ENDS)
    assert costs.layers_us(runs) == time_us


def test_of_those_that_recompute_least_the_smaller_comes_first():
    sets = [Candidate(n, small(n)) for n in ("a", "f", "ef", "abcdef")]
    costs = costs_of(unit_of(layers=9), (FULL, KEEP, *sets), {})
    unit = unit_of()
    flops = lambda c: unit.kept(c.action).recompute_flops
    assert flops(sets[1]) > flops(sets[2]) > flops(sets[3]) == flops(KEEP) == 0
    found = costs.peeled.least_recomputed("recompute all", 4)
    assert found[:2] == ["abcdef", "save all"]
    assert costs.peeled.least_recomputed("abcdef", 2) == ["save all", found[2]]


# ---- Whole programs ------------------------------------------------------------------


def pair(**how):
    """Costs of two units of eight layers; saving everything keeps 40 bytes more each.

    And takes 8 us less. The other unit has nothing that could be kept.
    """
    one = costs_of(unit_of("u"), (FULL, KEEP), LOOP, **how)
    return [one, costs_of(unit_of("v"), (FULL,), LOOP, **how)]


@pytest.mark.parametrize(
    ("saved", "holds"),
    [
        ((1320, 36.0), True),
        # A quarter of 64 us off, and two of a hundred of the whole.
        ((1320, 36.0 + 16 + 2), True),
        ((1320, 36.0 + 16 + 2.5), False),
        ((1320, 36.0 - 22 - 2), True),
        ((1320, 36.0 - 22 - 2.5), False),
        # A quarter of 320 bytes more, and two of a hundred of the whole; or much less.
        ((1000 + 400 + 20, 36.0), True),
        ((1000 + 400 + 21, 36.0), False),
        ((900, 36.0), True),
    ],
)
def test_costs_hold_up_to_a_quarter_of_a_difference(saved, holds):
    assert hold(pair(), saved, (1000, 100.0), Heuristics()) == holds


def test_where_the_program_is_given_as_much_as_costs_say_a_part_is_of_the_larger():
    """Of what is found or what costs say, whichever is more."""
    strict = Heuristics(off_whole=0.0, off_difference=0.5)
    for found_us, holds in ((-32.0, True), (-31.0, False), (-128, True), (-129, False)):
        assert hold(pair(), (1000, 100 + found_us), (1000, 100.0), strict) == holds


@pytest.mark.parametrize("is_isolated", [False, True])
def test_the_rest_is_set_right_by_one_whole_program(is_isolated):
    """Alone, a unit's own rest says nothing; all are off by the same then."""
    costs = pair(is_isolated=is_isolated)
    predict = lambda found: 5000 + sum(found.values())
    kept = 2 * 8 * 10
    alone = 1900 - kept - 1000 if is_isolated else 0
    off = 1900 - (5000 + 2 * alone)
    assert corrections(costs, 1900, predict) == {"u": alone + off, "v": alone + off}
