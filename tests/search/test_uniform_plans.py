"""Plans of one action for all layers, of searches by measured times."""

import pytest

from revremat._search import Heuristics
from revremat._search.passes._uniform_plans import uniform_plans
from tests.search.world import Cost, World, small

MORE = {"fast": (small("a"), Cost(5.0, 40.0)), "slow": (small("b"), Cost(9.0, 90.0))}
"""In 20 layers they take 110 and 190; to save all takes 210, to recompute all 30."""


def asked(budget, costs=MORE, heuristics=None, layers=20):
    world = World(costs, layers=layers)
    heuristics = heuristics or Heuristics().for_measured_times()
    uniform_plans(*world.state(budget, heuristics=heuristics))
    return [dict(runs) for runs in world.asked]


@pytest.mark.parametrize(
    ("budget", "names"),
    [
        (500, ["fast", "save all", "slow"]),
        # 2 % over may still fit: costs are no more exact.
        (187, ["fast", "slow", "recompute all"]),
        (130, ["fast", "recompute all"]),
        (40, ["recompute all"]),
        (10, []),
    ],
)
def test_the_fastest_candidates_that_fit_are_measured_for_all_layers(budget, names):
    assert asked(budget) == [{name: 20} for name in names]


def test_no_plan_is_asked_twice_where_there_are_few():
    assert asked(500, {}) == [{"save all": 20}, {"recompute all": 20}]


def test_of_few_layers_costs_come_from_those_plans():
    assert asked(500, layers=16) == []


def test_estimated_times_need_no_such_plans():
    assert asked(500, heuristics=Heuristics()) == []


def test_what_a_stopwatch_cannot_tell_is_not_tried():
    given, measured = Heuristics(), Heuristics().for_measured_times()
    assert given.least_gain_local < given.timing_error == measured.least_gain_local
    assert measured.least_gain_column == measured.least_gain_settled == 0.02


def test_loops_that_may_be_unrolled_are_left_to_other_passes():
    world = World(MORE)
    heuristics = Heuristics().for_measured_times()
    uniform_plans(*world.state(500, heuristics=heuristics, unroll=True))
    assert world.asked == []
