"""Which loops a plan's layers become, as a table."""

import random

import pytest

from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE
from revremat.program.engine._segments import segments

S, R, F, V = SAVE, RECOMPUTE, OFFLOAD, INVERT
A = RECOMPUTE(ahead=["x"])


PARTS = lambda start: [(start, 1), (start + 1, 3), (start + 4, 1)]


def as_loops(actions):
    return [(s.start, s.repeats, len(s.pattern)) for s in segments(actions)]


@pytest.mark.parametrize(
    ("actions", "loops"),
    [
        ([S], [(0, 1, 1)]),
        ([S] * 5, [(0, 5, 1)]),
        ([S] * 12 + [R] * 12, [(0, 12, 1), (12, 12, 1)]),
        ([S, R] * 12, [(0, 12, 2)]),
        ([S, R, R] * 4, [(0, 4, 3)]),
        ([S, R, R, R] * 3, [(0, 3, 4)]),
        ([S, R, F, R] * 2, [(0, 2, 4)]),
        ([S, S, F, R] * 3 + [R], [(0, 3, 4), (12, 1, 1)]),
        # Longer ones are no patterns.
        ([S, R, R, R, F] * 2, [(k, n, 1) for a in (0, 5) for k, n in PARTS(a)]),
        ([R] * 3 + [S, R] * 3, [(0, 3, 1), (3, 3, 2)]),
        ([V, S] * 3, [(k, 1, 1) for k in range(6)]),
        ([V] * 3 + [S] * 2, [(0, 3, 1), (3, 2, 1)]),
        ([A, S] * 2, [(k, 1, 1) for k in range(4)]),
        ([S, R, F], [(0, 1, 1), (1, 1, 1), (2, 1, 1)]),
    ],
)
def test_runs_and_patterns_become_loops(actions, loops):
    assert as_loops(actions) == loops


@pytest.mark.parametrize("period", [1, 2, 3, 4])
def test_every_layer_is_in_exactly_one_loop_with_its_own_action(period):
    actions = [(S, R, F, V)[k % period] for k in range(4 * period)] + [R, S, S]
    unrolled = [
        action
        for segment in segments(actions)
        for _ in range(segment.repeats)
        for action in segment.pattern
    ]
    assert unrolled == actions


U, G, H = SAVE(unroll=True), RECOMPUTE(segment_length=3), SAVE(segment_length=2)


def as_groups(actions, **how):
    return [(s.start, s.repeats, s.group) for s in segments(actions, **how)]


@pytest.mark.parametrize(
    ("actions", "groups"),
    [
        ([G] * 6, [(0, 2, 3)]),
        ([G] * 7, [(0, 2, 3), (6, 1, 1)]),
        ([G] * 8, [(0, 2, 3), (6, 1, 2)]),
        ([G] * 3, [(0, 1, 3)]),
        ([G] * 2, [(0, 1, 2)]),
        (
            [S, *[G] * 4, *[H] * 4, S],
            [(0, 1, 0), (1, 1, 3), (4, 1, 1), (5, 2, 2), (9, 1, 0)],
        ),
        ([G, S, G], [(0, 1, 1), (1, 1, 0), (2, 1, 1)]),
    ],
)
def test_neighbours_in_segments_are_groups_and_the_smaller_one_runs_last(
    actions, groups
):
    assert as_groups(actions) == groups
    found = segments(actions)
    assert [s.start for s in found] == [
        sum(s.num_layers for s in found[:k]) for k in range(len(found))
    ]
    assert sum(s.num_layers for s in found) == len(actions)
    assert all(s.iteration == (s.group or len(s.pattern)) for s in found)


@pytest.mark.parametrize(
    ("actions", "loops"),
    [
        ([U, S] * 3, [(k, 1, 1) for k in range(6)]),
        ([U] * 3 + [S] * 2, [(0, 3, 1), (3, 2, 1)]),
        ([S, R, U] * 2, [(k, 1, 1) for k in range(6)]),
        ([S, R] * 2 + [U], [(0, 2, 2), (4, 1, 1)]),
        # Of as few bodies, the fewest loops.
        ([S, S, R, R], [(0, 2, 1), (2, 2, 1)]),
        ([], []),
    ],
)
def test_unrolled_layers_form_no_patterns(actions, loops):
    assert as_loops(actions) == loops
    assert [s.unroll for s in segments(actions)] == [
        actions[start].unroll for start, _, _ in loops
    ]


def test_without_loops_no_layers_form_patterns():
    found = segments([S, R] * 2 + [R], loops=False)
    assert [(s.start, s.repeats, len(s.pattern)) for s in found] == [
        (0, 1, 1),
        (1, 1, 1),
        (2, 1, 1),
        (3, 2, 1),
    ]
    assert as_groups([G] * 4, loops=False) == [(0, 1, 3), (3, 1, 1)]


@pytest.mark.parametrize("kinds", [1, 2, 3])
def test_a_stack_may_have_any_number_of_layers(kinds):
    draw = random.Random(0)
    some = [SAVE, RECOMPUTE, RECOMPUTE(save=["hidden"])][:kinds]
    actions = [draw.choice(some) for _ in range(20_000)]
    found = segments(actions)
    assert [action for one in found for action in one.pattern * one.repeats] == actions
    assert kinds > 1 or len(found) == 1
