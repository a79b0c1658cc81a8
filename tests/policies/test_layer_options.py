"""What layers may cost, and which of it is worth telling apart."""

from dataclasses import replace

from revremat.policies import LayerCost, UnitOptions

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
