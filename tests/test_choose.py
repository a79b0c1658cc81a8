"""What is compiled beside the mix that the prices like best."""

from types import SimpleNamespace
from typing import Any

import pytest

import revremat as rr
from revremat import _choose
from revremat._choose import Search
from revremat._rivals import try_rivals
from revremat.policies import Choice, Menu, Price


def mix(*runs):
    return Choice({"u": runs}, 0.0, 0.0, 0.0, 0.0)


ALIKE = mix(("a", 6))
MIXED = [mix(("a", 5), (name, 1)) for name in "bcdef"]


class Chosen(Search):
    """A search that has chosen, and takes what it compiles down."""

    def __init__(self, room=100):
        self.rows, self.budget, self.reference, self.room = {}, 100, None, room
        self.compiled = []

    def room_for(self, number):
        return number <= self.room

    def choose(self, limit, without=(), pure=False, excluding=()):
        by_time = (MIXED[0], ALIKE, *MIXED[1:])
        others = (c for c in by_time if c.support not in excluding)
        return ALIKE if pure else next(others)

    def best_priced(self):
        return None

    def try_all(self, mixes):
        self.compiled = [dict(counts) for counts, _ in mixes]
        return []


@pytest.mark.parametrize(
    ("choice", "found"),
    [(MIXED[0], [ALIKE, *MIXED[1:3]]), (ALIKE, [ALIKE, *MIXED[:3]])],
    ids=["layers differ", "all alike"],
)
def test_a_choice_is_held_against_three_others(choice, found):
    search = Chosen()
    try_rivals(search, choice)
    assert search.compiled == [dict(c.counts) for c in found]


def test_nothing_is_held_against_it_where_there_is_no_room():
    search = Chosen(room=2)
    try_rivals(search, ALIKE)
    assert search.compiled == []


def test_rivals_are_no_more_than_there_is_room_for():
    """Second prices, made while they are chosen, take some of it."""

    class Asking(Chosen):
        def choose(self, limit, without=(), pure=False, excluding=()):
            self.room -= 2
            return super().choose(limit, without, pure, excluding)

    search = Asking(room=5)
    try_rivals(search, MIXED[0])
    assert search.compiled == [dict(ALIKE.counts)]
    assert search.room == 1


class Tightened(Search):
    """A search of ten layers whose compiles take more than their prices say."""

    in_order, around, reference, most_compiles = False, (), None, None

    def __init__(self, budget, error):
        self.budget, self.error, self.rows, self.tried = budget, error, {}, []
        self.target = SimpleNamespace(host_bytes=50.0)
        offloaded = Price("offload", 0.0, 100.0, 10.0, 12.0)
        self.menu = Menu("u", 10, (Price("full", 1.0, 100.0, 0.0, 10.0), offloaded))

    def menus(self):
        return (self.menu,)

    def refine(self, support):
        return False

    def try_mix(self, choice):
        self.tried.append(dict(choice.counts["u"]))
        return SimpleNamespace(bytes=choice.bytes + self.error)


@pytest.mark.parametrize(
    ("error", "offloaded"), [(0, [3]), (0.5, [3, 4]), (1.5, [3, 5])]
)
def test_a_mix_too_large_is_followed_by_one_that_is_smaller_by_as_much(
    error, offloaded
):
    """The host has room for half of the layers: no smallest mix is alike in all."""
    search = Tightened(107.2, error)
    search._tighten()
    assert [counts["offload"] for counts in search.tried] == offloaded


@pytest.mark.parametrize(
    ("error", "offloaded"),
    [
        (-0.3, [3]),  # not worth a compile
        (-0.4, [3]),  # worth one, which chooses the same
        (-1.0, [3, 2]),
        (-2.0, [3, 1]),
        (-5.0, [3, 0]),
    ],
)
def test_a_mix_that_came_out_smaller_is_followed_by_one_that_uses_what_is_left(
    error, offloaded
):
    search = Tightened(107.2, error)
    search._tighten()
    tried = [counts.get("offload", 0) for counts in search.tried]
    assert list(dict.fromkeys(tried)) == offloaded


def test_where_none_is_smaller_by_as_much_smaller_ones_are_tried():
    search = Tightened(107.2, 4.0)
    search._tighten()
    assert [counts["offload"] for counts in search.tried] == [3, 5]


@pytest.mark.parametrize(
    ("actions", "is_priced"),
    [
        ({"u": (rr.SAVE,), "v": (rr.RECOMPUTE,)}, True),
        ({"u": (rr.SAVE,)}, False),  # nothing is known of the other one's layers
        ({"u": (rr.SAVE,), "v": (rr.INVERT,)}, False),
        ({"u": (rr.SAVE,), "v": (rr.RECOMPUTE,), "w": (rr.SAVE,)}, False),
    ],
)
def test_a_row_has_prices_if_all_its_units_do(actions, is_priced):
    search = Chosen()
    search.in_order, search.around = False, ()
    names = {rr.SAVE: "none", rr.RECOMPUTE: "full"}
    search.prices = [
        SimpleNamespace(unit=SimpleNamespace(name=name), names=names) for name in "uv"
    ]
    plan = SimpleNamespace(in_order=False, actions=actions)
    assert search.is_priced(SimpleNamespace(plan=plan)) == is_priced


@pytest.mark.parametrize(("room", "is_left"), [(6, True), (7, False)])
def test_prices_of_layers_alone_stay_where_there_is_no_room_for_others(
    monkeypatch, room, is_left
):
    """All kept, the prices anew, and one choice by them."""
    monkeypatch.setattr(_choose, "hold", lambda *_: False)
    search: Any = Chosen(room)
    cut = SimpleNamespace(is_alone=True)
    search.prices = [SimpleNamespace(num_first_compiles=5, cut=cut)]
    search.add = lambda *_: SimpleNamespace(measurement=None)
    search.all_alike = lambda *_: ({}, {})
    search._name = str
    assert search._hold(SimpleNamespace(measurement=None)) == is_left
