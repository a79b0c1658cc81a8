"""No mix of what has prices is faster than its bound, whatever prices are off by."""

from types import SimpleNamespace
from typing import Any

import pytest

from revremat._bounds import bounds
from revremat.policies import Menu, Price, choose, predict_bytes

REST_US = 100.0
MENU = Menu(
    "u", 10, (Price("full", 0.0, 50.0, 0.0, 10.0), Price("save", 10.0, 0.0, 0.0, 1.0))
)


class Searched:
    """A search whose compiles take so much more than their prices say, or less."""

    host_bytes = 0.0

    def __init__(self, budget, error):
        self.budget, self.error = budget, error

    def row(self, saved):
        counts = {"u": (("full", 10 - saved), ("save", saved))}
        counts = {"u": tuple(run for run in counts["u"] if run[1])}
        size = predict_bytes(self.menus(), counts) + self.error
        time_us = REST_US + self.layers_us(SimpleNamespace(counts=counts))
        return SimpleNamespace(counts=counts, bytes=size, time_us=time_us)

    def fastest_us(self):
        rows = map(self.row, range(11))
        return min(row.time_us for row in rows if row.bytes <= self.budget)

    def menus(self):
        return (MENU,)

    def counts_of(self, row):
        return row.counts

    def layers_us(self, row):
        return sum(n * {"full": 10, "save": 1}[name] for name, n in row.counts["u"])

    def mix(self, menus, limit):
        return choose(menus, limit, host_budget_bytes=self.host_bytes)


@pytest.mark.parametrize("error", [-12.0, -3.0, 0.0, 3.0])
@pytest.mark.parametrize("budget", [63.0, 75.0, 90.0, 95.0])
@pytest.mark.parametrize("saved", [0, 1])
def test_no_mix_that_fits_is_faster_than_the_bound(budget, error, saved):
    search: Any = Searched(budget, error)
    best = search.row(saved)
    assert best.bytes <= budget
    bound_us, greedy_us = bounds(search, best)
    assert bound_us <= search.fastest_us() + 1e-3
    assert greedy_us is not None
    assert greedy_us >= bound_us


def test_what_takes_as_much_as_its_prices_say_has_a_close_bound():
    search: Any = Searched(95.0, 0.0)
    bound_us, _ = bounds(search, search.row(1))
    assert bound_us == pytest.approx(search.fastest_us(), abs=1e-2)
