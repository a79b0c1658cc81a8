"""What layers may cost, and which of it is worth telling apart."""

from dataclasses import replace

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
