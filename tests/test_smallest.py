"""Where nothing fits, what needs least is compiled, and then what holds more surely."""

from types import SimpleNamespace

import pytest

from revremat._smallest import try_smallest
from revremat.policies import Menu, Price

BYTES = {"written out": 3.0, "on the host": 4.0, "full": 5.0}
WAYS = {"unroll": "written out", "on_host": "on the host"}


class Searched:
    """A search where nothing fits yet, and some take more than their prices say."""

    host_bytes = 100.0

    def __init__(self, too_small, budget=6, room=9):
        self.too_small, self.budget, self.room = too_small, budget, room
        self.rows = [SimpleNamespace(bytes=50)]
        self.tried = []

    def best(self, budget):
        return min(self.rows, key=lambda row: row.bytes)

    def room_for(self, number):
        return len(self.tried) + number <= self.room

    def menus_without(self, ways):
        names = [name for name in BYTES if name not in {WAYS[way] for way in ways}]
        prices = [Price(n, 0.0, BYTES[n], float("host" in n), 1.0) for n in names]
        return [Menu("u", 1, tuple(prices))]

    def try_all(self, mixes):
        for counts, predicted in mixes:
            ((name, _),) = counts["u"]
            off = 40 if name in self.too_small else 0
            self.tried.append(name)
            self.rows.append(SimpleNamespace(bytes=predicted + off))


@pytest.mark.parametrize(
    ("too_small", "tried"),
    [
        ((), ["written out"]),
        (("written out",), ["written out", "on the host"]),
        (("written out", "on the host"), ["written out", "on the host", "full"]),
    ],
)
def test_what_needs_least_by_prices_and_then_what_holds_more_surely(too_small, tried):
    search = Searched(too_small)
    try_smallest(search)
    assert search.tried == tried


@pytest.mark.parametrize("how", [{"budget": 50}, {"room": 0}])
def test_nothing_is_compiled_where_something_fits_or_there_is_no_room(how):
    search = Searched((), **how)
    try_smallest(search)
    assert search.tried == []
