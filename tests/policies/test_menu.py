"""What layers may cost, and which of it is worth telling apart."""

from dataclasses import replace

from revremat.policies import Menu, Price

SAVE = Price("save", 10.0, 10.0, 0.0, 50.0)
SAME = replace(SAVE, name="same")
SLOWER = replace(SAVE, name="slower", time_us=51.0)
MENU = Menu("u", 8, (SAVE, SAME, SLOWER))


def names(menu):
    return [price.name for price in menu.prices]


def test_of_what_costs_exactly_the_same_the_first_stays():
    assert names(MENU.distinct()) == ["save", "slower"]
    assert names(MENU.distinct({"slower"})) == ["save", "slower"]
    assert names(MENU.distinct({"same"})) == ["same", "slower"]


def test_a_menu_says_what_is_on_it():
    assert [MENU.has(name) for name in ("same", "other")] == [True, False]
    assert not MENU.only({"save"}).has("same")
