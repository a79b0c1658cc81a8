"""What is measured beside the assignment that costs like best."""

import dataclasses

import pytest

from revremat._search._state import OutOfCompiles
from revremat._search.passes._runners_up import compare, runners_up
from revremat._search.passes._solve import solve
from revremat.policies import Assignment
from tests.search.world import Cost, World, small

MORE = {n: (small(n), Cost(9.0, 51.0 + k / 8)) for k, n in enumerate("abcd")}


def solved(budget, costs=MORE, **how):
    world = World(costs)
    state, ask = world.state(budget, **how)
    state = solve(state, ask)
    chosen = world.asked[-1]
    world.asked.clear()
    return world, state, ask, chosen


def test_a_choice_whose_layers_differ_is_held_to_three_others_one_of_them_alike():
    world, state, ask, chosen = solved(63)
    assert len(chosen) > 1
    runners_up(state, ask)
    assert len(world.asked) == 3
    assert [len(runs) for runs in world.asked].count(1) == 1
    assert len({frozenset(n for n, _ in runs) for runs in [chosen, *world.asked]}) == 4


def test_a_choice_whose_layers_are_alike_is_held_to_three_others():
    world, state, ask, chosen = solved(500)
    assert len(chosen) == 1
    runners_up(state, ask)
    assert len(world.asked) == 3
    assert chosen not in world.asked


def test_what_is_expected_to_be_much_slower_is_not_measured():
    slow = {n: (small(n), Cost(9.0, 90.0)) for n in "ab"}
    world, state, ask, _ = solved(500, slow)
    runners_up(state, ask)
    assert world.asked == []


@pytest.mark.parametrize(
    ("over", "alike"), [(0, "fits"), (4, "fits"), (5, "recompute all")]
)
def test_what_treats_layers_alike_is_held_to_what_others_of_its_kind_were_over(
    over, alike
):
    """It takes 58 of 62 by its costs, and another such took so much more."""
    world = World({"fits": (small(), Cost(6.0, 99.0))})
    state, ask = world.state(62)
    saved = state.assignment_request({"u": (("save all", 8),)}, 90.0 - over)
    state = ask(state, [saved])
    mixed = {"u": (("recompute all", 3), ("save all", 5))}
    leading = Assignment.of(state.options, mixed)
    world.asked.clear()
    compare(state, ask, leading)
    assert [runs[0][0] for runs in world.asked if len(runs) == 1] == [alike]


@pytest.mark.parametrize("room", [0, 1, 2])
def test_of_too_few_compiles_the_first_are_made(room):
    world, state, ask, _ = solved(63)
    most = state.num_compiles + room
    space = dataclasses.replace(state.space, most_compiles=most)
    with pytest.raises(OutOfCompiles) as cut:
        compare(state.but(space=space), ask, state.leading)
    assert len(world.asked) == room
    assert cut.value.state.num_compiles == most
    assert cut.value.number == 3 - room
