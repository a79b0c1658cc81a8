"""What layers may cost, and which of it is worth telling apart."""

from dataclasses import replace

import pytest

from revremat.policies import LayerCost, UnitOptions, predict_bytes

SAVE = LayerCost("save", 10.0, 10.0, 0.0, 50.0)
SAME = replace(SAVE, name="same")
SLOWER = replace(SAVE, name="slower", time_us=51.0)
OPTIONS = UnitOptions("u", 8, (SAVE, SAME, SLOWER))


def names(unit_options):
    return [cost.name for cost in unit_options.costs]


def test_of_what_costs_exactly_the_same_the_first_stays():
    assert names(OPTIONS.distinct()) == ["save", "slower"]
    assert names(OPTIONS.distinct({"slower"})) == ["save", "slower"]
    assert names(OPTIONS.distinct({"same"})) == ["same", "slower"]


def test_a_unit_options_says_what_is_on_it():
    assert [OPTIONS.has(name) for name in ("same", "other")] == [True, False]
    assert not OPTIONS.only({"save"}).has("same")


def test_what_layers_in_segments_keep_is_counted_by_segments():
    in_threes = replace(SAVE, name="threes", kept_bytes=2.0, segment_length=3)
    assert [in_threes.kept_by(n) for n in (0, 1, 3, 4, 7)] == [0, 6, 6, 12, 18]
    options = UnitOptions("u", 8, (in_threes, SAVE))
    runs = {"u": (("threes", 7), ("save", 1))}
    assert predict_bytes([options], runs) == 18 + 10 + 10


@pytest.mark.parametrize(
    ("change", "left"),
    [
        ({}, ["save"]),  # as good in everything: one is enough
        ({"time_us": 51.0}, ["save"]),
        ({"kept_bytes": 11.0, "base_bytes": 11.0, "host_bytes": 1.0}, ["save"]),
        ({"shortest_run": 2}, ["save"]),
        ({"segment_length": 3}, ["save"]),
        ({"time_us": 49.0}, ["other"]),
        ({"kept_bytes": 9.0, "time_us": 51.0}, ["other", "save"]),
        ({"base_bytes": 9.0, "time_us": 51.0}, ["other", "save"]),
        ({"kept_bytes": 9.0, "segment_length": 3}, ["other", "save"]),
        ({"host_bytes": -1.0}, ["other"]),
    ],
)
def test_what_another_beats_is_left_out(change, left):
    other = replace(SAVE, name="other", **change)
    for costs in ((SAVE, other), (other, SAVE)):
        found = UnitOptions("u", 8, costs).undominated()
        # Of two that cost the same, the first by name stays.
        expected = ["other"] if not change else left
        assert sorted(names(found)) == expected


def test_what_keeps_less_takes_no_place_before_a_larger_peak():
    small = LayerCost("small", 1.0, 10.0, 0.0, 5.0)
    beaten = LayerCost("beaten", 5.0, 10.0, 0.0, 6.0)
    between = LayerCost("between", 3.0, 30.0, 0.0, 1.0)
    options = UnitOptions("u", 8, (small, beaten))
    assert names(options.undominated()) == ["small"]
    options = UnitOptions("u", 8, (small, between, beaten))
    assert names(options.undominated()) == ["small", "between", "beaten"]
    # Four layers of `between` and four more: of `small` they run before it.
    after = {"u": (("between", 4), ("beaten", 4))}
    before = {"u": (("small", 4), ("between", 4))}
    predicted = [predict_bytes([options], runs) for runs in (after, before)]
    assert predicted == [42.0, 46.0]
