"""Answers are right, proved and the same however the question is put."""

import csv
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from revremat.allocation import (
    Allocation,
    AllocationProblem,
    Buffer,
    Infeasible,
    Relation,
    _disjunctive,
    allocate,
    lower_bound,
    read_problem,
    validate,
)
from revremat.allocation._blocks import to_blocks
from revremat.allocation._joining import join
from revremat.allocation._rectangles import Rectangles
from revremat.allocation._search import LIMIT, SOLVED

from .families import (
    full_sections,
    guillotine,
    least_by_trying_all,
    small,
    training_step,
)

GAPS = [(46, 10, 12), (2, 14, 20), (10, 14, 20), (91, 14, 20)]
"""Of `full_sections`, those whose optimum is above their bound."""

DATA = Path(__file__).parent / "data"

lifetimes = st.tuples(st.integers(0, 12), st.integers(1, 8), st.integers(0, 20))


@st.composite
def problems(draw, most=9):
    rows = draw(st.lists(lifetimes, min_size=1, max_size=most))
    return AllocationProblem(
        tuple(Buffer(f"b{i}", low, low + d, z) for i, (low, d, z) in enumerate(rows))
    )


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.slow if kind in ("u", "a") else ())
        for kind in ("", "u", "a", "g", "ag", "r", "rg", "ri", "i", "agri")
    ],
)
def test_the_optimum_is_what_trying_everything_finds(kind):
    for seed in range(25):
        problem = small(seed, kind)
        least = least_by_trying_all(problem)
        answer = allocate(problem, seconds=20)
        assert isinstance(answer, Allocation)
        assert (answer.makespan_bytes, answer.optimal) == (least, True)
        assert validate(problem, answer.offsets_bytes, least) == least
        assert lower_bound(problem).size_bytes <= least
        assert isinstance(allocate(problem, least, seconds=20), Allocation)
        if least:
            assert isinstance(allocate(problem, least - 1, seconds=20), Infeasible)


def test_the_padding_within_a_group_depends_on_where_it_lies():
    # From 2 on, a ends where b may begin; from 0 on, two bytes are lost between them.
    buffers = (
        Buffer("a", 0, 1, 6, 1, "g"),
        Buffer("b", 0, 1, 2, 4, "g"),
        Buffer("c", 0, 1, 2, 4),
    )
    problem = AllocationProblem(buffers)
    answer = allocate(problem)
    assert (answer.makespan_bytes, answer.optimal) == (10, True)
    assert isinstance(allocate(problem, 10), Allocation)
    assert isinstance(allocate(problem, 9), Infeasible)


@st.composite
def mixed_groups(draw):
    row = st.tuples(
        st.integers(0, 2),
        st.integers(1, 2),
        st.integers(0, 4),
        st.sampled_from((1, 2, 3, 4, 6)),
        st.sampled_from(("", "g", "g", "h")),
    )
    rows = draw(st.lists(row, min_size=2, max_size=5))
    return AllocationProblem(
        tuple(
            Buffer(f"b{i}", low, low + d, z, align, group)
            for i, (low, d, z, align, group) in enumerate(rows)
        )
    )


@pytest.mark.slow
@given(mixed_groups())
@settings(max_examples=150, deadline=None)
def test_groups_of_mixed_alignments_are_proved_by_the_rules_alone(problem):
    least = least_by_trying_all(problem)
    answer = allocate(problem, seconds=20)
    assert (answer.makespan_bytes, answer.optimal) == (least, True)
    assert isinstance(allocate(problem, least, seconds=20), Allocation)
    if least:
        assert isinstance(allocate(problem, least - 1, seconds=20), Infeasible)


@given(problems())
@settings(max_examples=100, deadline=None)
def test_the_bound_is_the_bytes_of_buffers_that_are_live_together(problem):
    answer = allocate(problem, seconds=20)
    bound = answer.bound
    members = [problem.buffers[problem.index[id]] for id in bound.ids]
    assert all(b.lower <= bound.time < b.upper for b in members)
    assert sum(b.size_bytes for b in members) == bound.size_bytes
    assert answer.makespan_bytes >= bound.size_bytes
    for time in range(24):
        live = [b for b in problem.buffers if b.lower <= time < b.upper]
        assert sum(b.size_bytes for b in live) <= bound.size_bytes


@given(problems(), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_order_of_the_rows_does_not_matter(problem, rng):
    order = list(range(len(problem.buffers)))
    rng.shuffle(order)
    shuffled = AllocationProblem(tuple(problem.buffers[i] for i in order))
    offsets = allocate(problem, seconds=20).offsets_bytes
    assert allocate(shuffled, seconds=20).offsets_bytes == tuple(
        offsets[i] for i in order
    )


@given(problems(), st.lists(st.integers(1, 50), min_size=24, max_size=24))
@settings(max_examples=60, deadline=None)
def test_stretching_time_changes_nothing(problem, steps):
    clock = [sum(steps[:t]) for t in range(24)]
    stretched = AllocationProblem(
        tuple(
            Buffer(b.id, clock[b.lower], clock[b.upper], b.size_bytes)
            for b in problem.buffers
        )
    )
    offsets = allocate(problem, seconds=20).offsets_bytes
    assert allocate(stretched, seconds=20).offsets_bytes == offsets


@given(problems(), st.integers(2, 10**9))
@settings(max_examples=60, deadline=None)
def test_sizes_times_k_take_k_times_the_memory(problem, k):
    scaled = AllocationProblem(
        tuple(Buffer(b.id, b.lower, b.upper, k * b.size_bytes) for b in problem.buffers)
    )
    answer = allocate(problem, seconds=20)
    assert allocate(scaled, seconds=20).makespan_bytes == k * answer.makespan_bytes


@given(st.lists(lifetimes, min_size=1, max_size=60), st.integers(1, 99))
@settings(max_examples=60, deadline=None)
def test_equal_sizes_take_the_bound(rows, size):
    buffers = [Buffer(str(i), a, a + d, size) for i, (a, d, _) in enumerate(rows)]
    answer = allocate(AllocationProblem(tuple(buffers)), seconds=20)
    assert answer.makespan_bytes == answer.bound.size_bytes


@given(st.lists(st.integers(0, 99), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None)
def test_without_overlap_the_largest_buffer_is_enough(sizes):
    buffers = [Buffer(str(i), i, i + 1, size) for i, size in enumerate(sizes)]
    assert allocate(AllocationProblem(tuple(buffers))).makespan_bytes == max(sizes)


def test_the_free_prefix_below_a_live_block_is_used():
    # Placed by size alone, c would go above b although there is room below it.
    buffers = (Buffer("a", 0, 1, 120), Buffer("b", 0, 2, 60), Buffer("c", 1, 3, 60))
    assert allocate(AllocationProblem(buffers)).makespan_bytes == 180


def test_nothing_takes_nothing():
    answer = allocate(AllocationProblem(()))
    assert (answer.makespan_bytes, answer.offsets_bytes) == (0, ())
    empty = AllocationProblem((Buffer("a", 0, 1, 0),))
    assert allocate(empty, 0).offsets_bytes == (0,)


def test_a_group_of_nothing_lies_beside_anything():
    rows = [("a", 2, 6, 3), ("b", 1, 4, 2), ("c", 2, 6, 0), ("d", 5, 9, 0)]
    buffers = [Buffer(*row, 4, "g" if row[0] in "cd" else "") for row in rows]
    relation = Relation.from_pairs(4, [(1, 3)])
    for problem in (
        AllocationProblem(tuple(buffers), relation),
        AllocationProblem(tuple(buffers)),
        AllocationProblem(tuple(buffers[2:])),
    ):
        offsets = allocate(problem).offsets_bytes
        assert offsets[-2:] == (0, 0)


def test_a_capacity_below_the_bound_is_refused_with_the_section():
    answer = allocate(guillotine(50, 0), (1 << 20) - 1)
    assert isinstance(answer, Infeasible)
    assert answer.bound.size_bytes == 1 << 20
    assert "live at time" in str(answer)


@pytest.mark.parametrize(("seed", "steps", "load"), GAPS)
def test_where_the_bound_cannot_be_reached_the_search_proves_it(seed, steps, load):
    problem = full_sections(seed, steps, load)
    assert lower_bound(problem).size_bytes == load
    answer = allocate(problem, load)
    assert isinstance(answer, Infeasible)
    assert "exhaustive search" in str(answer)
    least = allocate(problem)
    assert least.makespan_bytes > load
    assert least.optimal


def test_two_exact_searches_agree():
    for seed in range(120):
        problem = full_sections(seed, 10, 14)
        blocks = to_blocks(problem)
        pairs = _disjunctive.Pairs.of(blocks)
        status, _, _ = _disjunctive.pack(pairs, blocks, 14, 200_000, lambda: False)
        answer = allocate(problem, 14)
        if status != LIMIT:
            assert isinstance(answer, Allocation) == (status == SOLVED)


@pytest.mark.parametrize("name", ["A", "B", "F", "H"])
def test_published_instances_are_packed_perfectly(name):
    problem = read_problem(DATA / f"{name}.1048576.csv")
    answer = allocate(problem, 1 << 20, seconds=60)
    assert isinstance(answer, Allocation)
    assert validate(problem, answer.offsets_bytes, 1 << 20) == 1 << 20


def test_the_resnet_trace_is_packed_to_its_bound():
    answer = allocate(read_problem(DATA / "resnet50.csv"), seconds=60)
    assert answer.excess <= 0.001


@pytest.mark.parametrize("seed", range(6))
def test_perfect_packings_are_found(seed):
    problem = guillotine(150 + 60 * seed, seed)
    answer = allocate(problem, 1 << 20, seconds=60)
    assert isinstance(answer, Allocation)


@pytest.mark.parametrize("seed", range(3))
def test_perfect_packings_over_few_steps_are_put_together_again(seed):
    problem = guillotine(300, seed, capacity=1 << 20, span=40, unit=1)
    assert isinstance(allocate(problem, 1 << 20, seconds=60), Allocation)


def test_joined_buffers_are_whole_rectangles_of_all_buffers():
    for seed in range(20):
        rectangles = Rectangles.of(to_blocks(guillotine(80, seed, span=20, unit=1)))
        begin, end, size = rectangles.begin, rectangles.end, rectangles.size
        rng = np.random.default_rng(seed)
        pieces = join(begin, end, size, 2 + seed % 4, rng, 0.1 * (seed % 3))
        held = [i for piece in pieces for i, _ in piece.members]
        assert sorted(held) == list(range(len(size)))
        assert len(pieces) < len(size)
        for piece in pieces:
            # Every section of a piece is filled from bottom to top, and only once.
            for s in range(piece.begin, piece.end):
                stack = sorted(
                    (offset, offset + size[i])
                    for i, offset in piece.members
                    if begin[i] <= s < end[i]
                )
                assert [0, *(top for _, top in stack)] == [
                    *(bottom for bottom, _ in stack),
                    piece.size,
                ]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_twenty_perfect_packings_are_found_within_a_minute_each(seed):
    problem = guillotine(150 + 300 * seed // 19, seed + 100)
    assert isinstance(allocate(problem, 1 << 20, seconds=60), Allocation)


def test_thousands_of_buffers_come_close_to_the_bound():
    problem = training_step(600, seed=1)
    answer = allocate(problem, seconds=5)
    assert len(problem.buffers) > 8192
    assert answer.excess <= 0.005


def test_published_instances_read_as_they_are():
    with (DATA / "input.12.csv").open() as file:
        rows = list(csv.DictReader(file))
    problem = read_problem(DATA / "input.12.csv")
    assert [b.id for b in problem.buffers] == [row["id"] for row in rows]
    assert allocate(problem).makespan_bytes == 12


def test_progress_is_told_while_the_search_runs():
    rng = random.Random(0)
    buffers = []
    for i in range(300):
        lower = rng.randrange(60)
        upper = lower + rng.randint(1, 30)
        buffers.append(Buffer(str(i), lower, upper, rng.randint(1000, 9999)))
    told = []
    answer = allocate(
        AllocationProblem(tuple(buffers)), seconds=1, progress=told.append
    )
    assert answer.optimal or told
    assert all(p.best_bytes >= answer.makespan_bytes >= p.bound_bytes for p in told)
