"""What values and operations cost, and what may not run again: units made up."""

import itertools
from dataclasses import replace

import pytest

from revremat.policies import Joint, Rates, bans
from revremat.policies._joint import takes_fused
from tests.policies.test_proposals import unit_of

RATES = Rates(product_flops=100.0, other_flops=10.0)


def joint_of(values, operations, residuals, **more):
    """As `unit_of`, with names in place of positions; products are intensive."""
    unit = unit_of(values, operations, residuals, **more)
    intensive = ("dot_general", "reduce_sum", "sort")
    ops = [replace(o, compute_intensive=o.kind in intensive) for o in unit.operations]
    return Joint(replace(unit, operations=tuple(ops)), RATES)


def by_name(joint, numbers):
    return {joint.unit.values[k].name: n for k, n in numbers.items()}


VALUES = {
    "x": ("input", 10),
    "w": ("held", 7),
    "p": ("made", 100),
    "s": ("made", 20),
    "r": ("made", 4),
    "v": ("made", 100),
}
OPS = [
    ("dot_general", ["x", "w"], ["p"], 5000),
    ("exp", ["p"], ["s"], 30),
    ("reduce_sum", ["s"], ["r"], 60),
    ("reshape", ["p"], ["v"], 0),
]


def names_of(joint, kept):
    return {joint.unit.values[k].name for k in kept}


def test_what_the_backward_pass_needs_and_runs_again():
    joint = joint_of(VALUES, OPS, ["s", "r"])
    at = joint.unit.position
    used, again = joint.needed(())
    assert (names_of(joint, used), again) == ({"x", "p", "s", "r"}, (0, 1, 2))
    used, again = joint.needed({at["p"]})
    assert (names_of(joint, used), again) == ({"p", "s", "r"}, (1, 2))
    used, again = joint.needed({at["s"], at["r"]})
    assert (names_of(joint, used), again) == ({"s", "r"}, ())
    assert names_of(joint, joint.wanted) == {"x", "p", "s", "r"}


def test_costs_are_of_what_is_kept_and_of_inputs_that_the_rest_needs():
    joint = joint_of(VALUES, OPS, ["s", "r"])
    at = joint.unit.position
    assert joint.cost(()).bytes == 10
    assert joint.cost({at["p"]}).bytes == 100
    assert joint.cost({at["s"], at["p"]}).bytes == 20  # nothing needs p then
    assert joint.cost({at["v"]}).bytes == 10
    again, keeping = joint.recomputing, joint.keeping
    assert joint.cost(()).traffic == keeping[at["x"]] + sum(again.values())
    assert joint.cost({at["s"], at["r"]}).traffic == keeping[at["s"]] + keeping[at["r"]]


def test_what_is_written_whether_kept_or_not():
    joint = joint_of(VALUES, OPS, ["s", "r"], outputs=())
    # A product's result, what a view shows of it, and inputs; what is only passed on
    # within a kernel is not.
    assert names_of(joint, joint.written) >= {"x", "p", "v"}
    assert "s" not in names_of(joint, joint.written)
    output = joint_of(VALUES, OPS, ["s", "r"], outputs=(3,))
    assert "s" in names_of(output, output.written)


def test_a_read_is_paid_for_and_a_write_if_there_was_none():
    alone = joint_of(VALUES, OPS, ["s", "p"])
    stacked = joint_of(VALUES, OPS, ["s", "p"], chained=True)
    copied = joint_of(VALUES, OPS, ["s", "p"], chained=True, read_whole=(2,))
    one, layers, whole = (by_name(j, j.keeping) for j in (alone, stacked, copied))
    assert one["p"] == 100  # it is written in any case
    assert layers["p"] == 200
    assert whole["p"] == 400
    assert one["s"] == pytest.approx(layers["s"])
    assert layers["s"] == pytest.approx(2 * 1.05 * 20)  # and a little for its kernel


def test_odd_ones_are_kept_last():
    values = {**VALUES, "t": ("made", 100, True)}
    joint = joint_of(values, [*OPS, ("exp", ["p"], ["t"], 1)], ["t"])
    odd = {name: joint.oddity(k) for name, k in joint.unit.position.items()}
    assert odd["t"] < odd["s"] == odd["p"] == odd["x"] < odd["v"]


@pytest.mark.parametrize(
    ("kind", "flops", "found"),
    [
        ("reshape", 99, 0.0),
        ("exp", 300, 30.0),  # by its arithmetic alone: it is fused
        ("dot_general", 0, 210.0),  # it reads and writes, and is read again
    ],
)
def test_what_running_an_operation_again_moves(kind, flops, found):
    values = {"x": ("input", 10), "y": ("made", 100)}
    joint = joint_of(values, [(kind, ["x"], ["y"], flops)], ["y"])
    assert joint.recomputing == {0: found}


SOURCES = {
    "x": ("input", 100),
    "b": ("held", 100),
    "small": ("input", 4),
    "p": ("made", 100),
    "half": ("made", 50),
    "e": ("made", 100),
    "y": ("made", 100),
}


@pytest.mark.parametrize(
    ("taken", "more"),
    [
        (["p"], 0),
        (["p", "p"], 0),
        (["p", "e"], 0),  # both are computed of p
        (["x", "p"], 100),
        (["x", "e"], 100),
        (["x", "half"], 50),  # no more than it has itself
        (["p", "small"], 4),
        (["p", "b"], 0),  # weights are neither kept nor recomputed
        (["x", "p", "small"], 104),
    ],
)
def test_what_is_fused_without_a_stack_reads_all_that_it_is_computed_of(taken, more):
    operations = [
        ("dot_general", ["x"], ["p"], 0),
        ("exp", ["p"], ["e"], 0),
        ("convert_element_type", ["p"], ["half"], 0),
        ("add", taken, ["y"], 300),
    ]
    moved = [
        joint_of(SOURCES, operations, ["y"], chained=chained).recomputing[3]
        for chained in (True, False)
    ]
    assert moved == [30.0, 30.0 + more]


@pytest.mark.parametrize(
    ("with_", "chained", "found"),
    [
        ("y", False, 200.0),
        ("y", True, 0.0),
        ("t", False, 0.0),
        ("p", False, 0.0),  # of which it is made itself
        ("b", False, 0.0),  # weights lie as they are wanted
        ("small", False, 0.0),
    ],
)
def test_a_transposition_that_meets_another_value_is_written_and_read(
    with_, chained, found
):
    values = {
        "x": ("input", 10),
        "y": ("input", 100),
        "b": ("held", 100),
        "small": ("input", 10),
        "p": ("made", 100),
        "t": ("made", 100),
        "e": ("made", 100),
        "s": ("made", 100),
    }
    operations = [
        ("dot_general", ["x"], ["p"], 0),
        ("transpose", ["p"], ["t"], 0),
        ("exp", ["t"], ["e"], 0),
        ("add", ["e", with_], ["s"], 0),
    ]
    joint = joint_of(values, operations, ["s"], chained=chained)
    assert joint.recomputing[1] == found


def test_a_sum_of_more_than_a_kernel_takes_is_read_as_one_value():
    values, operations, last = {"x": ("input", 10)}, [], "x"
    for n in range(200):
        values |= {f"p{n}": ("made", 10), f"s{n}": ("made", 10)}
        operations.append(("dot_general", [last], [f"p{n}"], 0))
        operations.append(("add", [last, f"p{n}"], [f"s{n}"], 0))
        last = f"s{n}"
    joint = joint_of(values, operations, [last])
    sizes = [len(sources) for sources in joint._sources.values()]
    assert max(sizes) == 96
    # Each sum reads one value more than the sum before it.
    sums = (n for n, op in enumerate(joint.unit.operations) if op.kind == "add")
    assert {joint.recomputing[n] for n in sums} == {10.0}


def test_a_products_flops_count_as_the_bytes_moved_meanwhile():
    values = {"x": ("input", 10), "y": ("made", 100)}
    cost = lambda flops: joint_of(
        values, [("dot_general", ["x"], ["y"], flops)], ["y"]
    ).recomputing[0]
    assert cost(200_000) - cost(100_000) == pytest.approx(1000)


@pytest.mark.parametrize(
    ("kind", "sent", "devices", "found"),
    [
        ("psum", 0, 1, 210.0),  # reads, writes, and is read again
        ("psum", 50, 1, 210.0 + 400),
        ("sharding_constraint", 50, 1, 210.0 + 400),  # one that moves data
        ("dot_general", 0, 1, 1000.0 + 100),
        ("dot_general", 0, 4, 250.0 + 100),  # each device has its part of the work
        ("dot_general", 50, 4, 250.0 + 100 + 400),
    ],
)
def test_what_is_sent_counts_as_the_bytes_moved_meanwhile(kind, sent, devices, found):
    values = {"x": ("input", 10), "y": ("made", 100)}
    flops = 100_000 if kind == "dot_general" else 0
    unit = unit_of(values, [(kind, ["x"], ["y"], flops)], ["y"])
    op = replace(
        unit.operations[0],
        compute_intensive=True,
        sent_bytes=sent,
        num_devices=devices,
    )
    joint = Joint(replace(unit, operations=(op,)), replace(RATES, sent_bytes=0.125))
    assert joint.recomputing == {0: found}


def test_what_is_fused():
    joint = joint_of(VALUES, OPS, ["s", "r"])
    fused = [takes_fused(op) for op in joint.unit.operations]
    assert fused == [False, True, True, True]


# ---- What is not to run again --------------------------------------------------------


def banned(values, operations, residuals, *rules, **more):
    joint = joint_of(values, operations, residuals, **more)
    return {
        joint.unit.operations[n].outputs[0]: why
        for n, why in bans(joint, rules).items()
    }


@pytest.mark.parametrize(("made", "found"), [(24, 1), (25, 0), (26, 0)])
def test_a_reduction_makes_less_than_a_quarter(made, found):
    values = {"x": ("input", 100), "y": ("made", made)}
    ops = [("reduce_sum", ["x"], ["y"], 1)]
    assert len(banned(values, ops, ["y"], "reduction")) == found
    assert len(banned(values, ops, ["y"], "compute-intensive")) == 0


def test_products_are_banned_by_their_own_rule():
    values = {"x": ("input", 100), "y": ("made", 10)}
    ops = [("dot_general", ["x"], ["y"], 1234)]
    (why,) = banned(values, ops, ["y"], "compute-intensive").values()
    assert why == "dot_general takes 1,234 FLOPs"
    assert not banned(values, ops, ["y"], "reduction")


def test_what_is_read_whole_and_what_has_effects():
    values = {"x": ("input", 100), "y": ("made", 10), "z": ("made", 10)}
    ops = [("exp", ["x"], ["y"], 1), ("exp", ["x"], ["z"], 1, "draws")]
    found = banned(values, ops, ["y", "z"], "whole", read_whole=(1,))
    assert found[1] == "the backward pass reads it from memory in any case"
    assert found[2] == "draws"
    assert set(banned(values, ops, ["y", "z"])) == {2}
    views = [("reshape", ["x"], ["y"], 1)]
    assert not banned(values, views, ["y"], "whole", read_whole=(1,))


def test_far_apart_are_uses_before_a_product_and_after_it():
    values = {
        "x": ("input", 100),
        **{name: ("made", 100) for name in ("a", "b", "p", "c")},
    }
    ops = [
        ("exp", ["x"], ["a"], 1),
        ("exp", ["a"], ["b"], 1),
        ("dot_general", ["b"], ["p"], 9),
        ("add", ["a", "p"], ["c"], 1),
    ]
    found = banned(values, ops, ["c"], "far apart")
    assert found == {4: "takes a, which is used before a product, too"}
    # Without a product between they are near.
    ops[2] = ("exp", ["b"], ["p"], 9)
    assert not banned(values, ops, ["c"], "far apart")


@pytest.mark.parametrize(
    ("length", "found"), [(100, []), (101, [101]), (201, [101]), (202, [101, 202])]
)
def test_every_hundred_and_first_in_a_row_ends_a_chain(length, found):
    names = [f"v{k}" for k in range(length + 1)]
    values = {name: ("input" if name == "v0" else "made", 8) for name in names}
    ops = [("exp", [a], [b], 1) for a, b in itertools.pairwise(names)]
    assert sorted(banned(values, ops, names[-1:], "chain")) == found
    # Views do not count.
    ops[0] = ("reshape", ["v0"], ["v1"], 0)
    later = [end + 1 for end in found if end < length]
    assert sorted(banned(values, ops, names[-1:], "chain")) == later


@pytest.mark.parametrize(("at", "found"), [(0, 0), (50, 0), (99, 0)])
def test_a_product_begins_a_chain_anew(at, found):
    names = [f"v{k}" for k in range(102)]
    values = {name: ("input" if name == "v0" else "made", 8) for name in names}
    ops = [("exp", [a], [b], 1) for a, b in itertools.pairwise(names)]
    ops[at] = ("dot_general", *ops[at][1:])
    assert len(banned(values, ops, names[-1:], "chain")) == found
