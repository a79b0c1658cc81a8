"""What has to be there together: the bound, and the buffers that prove it."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from revremat.allocation import AllocationProblem, Buffer, Relation, lower_bound
from revremat.allocation._sections import Section, _pieces, section_ranges

lifetimes = st.lists(
    st.tuples(st.integers(0, 9), st.integers(1, 5)), min_size=1, max_size=9
)


@given(lifetimes)
def test_two_lifetimes_overlap_exactly_if_their_sections_do(rows):
    lower, span = np.array(rows).T
    upper = lower + span
    found = section_ranges(lower, upper)
    for i, j in itertools.product(range(len(rows)), repeat=2):
        overlap = lower[i] < upper[j] and lower[j] < upper[i]
        mine, other = (found.begin[i], found.end[i]), (found.begin[j], found.end[j])
        assert (mine[0] < other[1] and other[0] < mine[1]) == overlap
    live = [{*np.flatnonzero((lower <= t) & (t < upper))} for t in found.times]
    sections = [
        {*np.flatnonzero((found.begin <= s) & (s < found.end))}
        for s in range(found.count)
    ]
    assert live == sections
    # None of them is contained in its neighbour.
    for one, other in itertools.pairwise(live):
        assert not one <= other
        assert not other <= one
    every = [{*np.flatnonzero((lower <= t) & (t < upper))} for t in range(15)]
    assert all(any(one <= other for other in live) for one in every)
    sizes = np.arange(1, len(rows) + 1)
    assert found.loads(sizes).tolist() == [sum(sizes[k] for k in one) for one in live]


def bound(*rows, relation=(), in_place=()):
    buffers = tuple(Buffer(f"b{k}", *row) for k, row in enumerate(rows))
    related = Relation.from_pairs(len(rows), relation) if relation else None
    return lower_bound(AllocationProblem(buffers, related, in_place))


@pytest.mark.parametrize(
    ("rows", "time", "ids", "size"),
    [
        ([(0, 2, 4), (1, 3, 8)], 1, "01", 12),
        ([(0, 2, 4), (2, 3, 8)], 2, "1", 8),
        ([(0, 2, 8), (2, 3, 8)], 0, "0", 8),  # the first of equals
        ([(0, 3, 4), (1, 2, 0)], 1, "0", 4),  # empty ones do not count
        # All but one are padded: 3 to 4 and 5 to 8, and one of them is the topmost.
        ([(0, 1, 3, 4), (0, 1, 5, 4)], 0, "01", 9),
        ([(0, 1, 4, 4), (0, 1, 5, 4)], 0, "01", 9),
        ([(0, 1, 8, 4), (0, 1, 5, 4)], 0, "01", 13),
        ([(0, 1, 3, 2), (0, 1, 5, 4)], 0, "01", 9),  # both are multiples of 2
        ([(0, 1, 3, 2), (0, 1, 5, 3)], 0, "01", 8),  # of nothing in common
        # Padded they are as much, or the first is more; what lies on top is not.
        ([(0, 1, 9, 8), (1, 2, 10, 8)], 1, "1", 10),
        ([(0, 1, 9, 8), (1, 2, 8, 8), (1, 2, 2, 8)], 1, "12", 10),
    ],
)
def test_the_fullest_section_proves_the_bound(rows, time, ids, size):
    found = bound(*rows)
    assert found == Section(time, tuple(f"b{k}" for k in ids), size)


def test_nothing_takes_nothing():
    assert lower_bound(AllocationProblem(())).size_bytes == 0
    assert bound((0, 1, 0)).size_bytes == 0


def test_what_is_kept_apart_counts_together():
    rows = [(0, 1, 4), (1, 2, 5), (2, 3, 6)]
    assert bound(*rows).size_bytes == 6
    two = bound(*rows, relation=[(0, 1)])
    assert (two.size_bytes, two.time, two.ids) == (9, None, ("b0", "b1"))
    three = bound(*rows, relation=[(0, 1), (1, 2), (0, 2)])
    assert (three.size_bytes, three.ids) == (15, ("b0", "b1", "b2"))
    # Where a section alone is as much, it is the one that says when.
    assert bound((0, 1, 9), (1, 2, 5), (2, 3, 4), relation=[(1, 2)]).time == 0


def test_of_what_is_kept_apart_a_section_may_be_left_in_part():
    # Beside the large one of the first section lies what the small one does not mind.
    found = bound((0, 1, 8), (0, 1, 1), (1, 2, 7), relation=[(0, 2)])
    assert (found.size_bytes, found.ids) == (15, ("b0", "b2"))
    padded = bound((0, 1, 7, 4), (1, 2, 5, 4), relation=[(0, 1)])
    assert padded.size_bytes == 8 + 8 - 3


def test_of_what_shares_a_place_the_largest_counts():
    rows = [(0, 3, 4), (2, 5, 7), (2, 3, 2)]
    assert bound(*rows, in_place=(("b0", "b1"),)).size_bytes == 9
    problem = AllocationProblem(
        tuple(Buffer(f"b{k}", *row) for k, row in enumerate(rows)),
        in_place=(("b0", "b1"),),
    )
    lower, upper, sizes, owner = (part.tolist() for part in _pieces(problem))
    found = sorted(zip(lower, upper, sizes, owner, strict=True))
    assert found == [(0, 2, 4, 0), (2, 3, 2, 2), (2, 3, 7, 1), (3, 5, 7, 1)]


@pytest.mark.parametrize(
    ("section", "text"),
    [
        (Section(3, ("a",), 5), "1 buffers (a) are live at time 3 and take 5 bytes"),
        (
            Section(None, ("a", "b"), 5),
            "2 buffers (a, b) must all be kept apart and take 5 bytes",
        ),
        (
            Section(0, tuple("abcd"), 5),
            "4 buffers (a, b, c, d) are live at time 0 and take 5 bytes",
        ),
        (
            Section(0, tuple("abcde"), 5),
            "5 buffers (a, b, c, d, ...) are live at time 0 and take 5 bytes",
        ),
    ],
)
def test_what_a_section_says(section, text):
    assert str(section) == text
