"""What is compiled beside the mix that the prices like best."""

from types import SimpleNamespace

import pytest

import revremat as rr
from revremat._choose import Search
from revremat._rivals import try_rivals
from revremat.policies import Choice


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
        others = (c for c in MIXED if c.support not in excluding)
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
    few = [SimpleNamespace(action=action) for action in (rr.SAVE, rr.RECOMPUTE)]
    search.candidates = {"u": few, "v": few}
    plan = SimpleNamespace(in_order=False, actions=actions)
    assert search.is_priced(SimpleNamespace(plan=plan)) == is_priced
