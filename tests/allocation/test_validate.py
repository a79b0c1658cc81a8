"""The validator accepts what the rules allow and names what breaks them."""

import pytest

from revremat.allocation import (
    AllocationProblem,
    Buffer,
    InvalidAllocation,
    Relation,
    validate,
)


def problem(*buffers, **more):
    return AllocationProblem(tuple(Buffer(*b) for b in buffers), **more)


def test_lifetimes_that_only_touch_may_share():
    assert validate(problem(("a", 0, 2, 8), ("b", 2, 4, 8)), [0, 0]) == 8


def test_lifetimes_that_overlap_by_one_step_may_not():
    with pytest.raises(InvalidAllocation, match="'a' at 0 and 'b' at 7 overlap"):
        validate(problem(("a", 0, 3, 8), ("b", 2, 4, 8)), [0, 7])


def test_a_short_buffer_inside_a_long_one_is_seen():
    long_and_short = problem(("a", 0, 9, 8), ("b", 4, 5, 2), ("c", 0, 9, 8))
    assert validate(long_and_short, [0, 8, 10]) == 18
    with pytest.raises(InvalidAllocation):
        validate(long_and_short, [0, 9, 10])


def test_capacity_alignment_and_sign():
    one = problem(("a", 0, 1, 8, 4))
    assert validate(one, [4], 12) == 12
    with pytest.raises(InvalidAllocation, match="takes 12 bytes"):
        validate(one, [4], 11)
    with pytest.raises(InvalidAllocation, match="no multiple"):
        validate(one, [2])
    with pytest.raises(InvalidAllocation, match="placed at -4"):
        validate(one, [-4])
    with pytest.raises(InvalidAllocation, match="0 offsets are given for 1"):
        validate(one, [])


def test_groups_lie_back_to_back_in_order():
    group = problem(("a", 0, 1, 3, 1, "g"), ("b", 0, 1, 8, 4, "g"))
    assert validate(group, [0, 4]) == 12
    for offsets in ([0, 8], [8, 0]):
        with pytest.raises(InvalidAllocation, match="must follow 'a'"):
            validate(group, offsets)


def test_a_relation_keeps_apart_what_lifetimes_would_not():
    related = problem(
        ("a", 0, 1, 4), ("b", 1, 2, 4), relation=Relation.from_pairs(2, [(0, 1)])
    )
    assert validate(related, [0, 4]) == 8
    with pytest.raises(InvalidAllocation, match="the relation keeps them apart"):
        validate(related, [0, 3])


def test_in_place_means_one_offset_and_only_for_its_members():
    shared = problem(
        ("a", 0, 3, 4), ("b", 2, 5, 4), ("c", 2, 3, 4), in_place=(("a", "b"),)
    )
    assert validate(shared, [0, 0, 4]) == 8
    with pytest.raises(InvalidAllocation, match="one offset"):
        validate(shared, [0, 4, 8])
    with pytest.raises(InvalidAllocation, match="overlap"):
        validate(shared, [0, 0, 3])


def test_empty_buffers_overlap_nothing():
    assert validate(problem(("a", 0, 2, 0), ("b", 0, 2, 8)), [4, 0]) == 8
