"""What the best plan leaves of a budget is used, and compiles have the last word."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import revremat as rr
from revremat._prices import NUM_EDGES
from revremat._refine import fill, is_filled, trim_ends, try_ends, use_up
from revremat.policies import Menu, Price, choose, predict_bytes

LAYERS = 8
REBUILD = Price("rebuild", 1.0, 10.0, 0.0, 100.0)
SAVE = Price("save", 10.0, 10.0, 0.0, 50.0)
SMALL = Price("small", 4.0, 10.0, 0.0, 80.0)


class Searched:
    """A search whose compiles take what `error` says above the prices."""

    def __init__(self, budget, error, prices=(REBUILD, SAVE)):
        self.budget, self.error = budget, error
        self.menu = Menu("u", LAYERS, tuple(prices))
        self.tried: list[Any] = []

    def row(self, **counts):
        ordered = sorted(self.menu.prices, key=lambda p: p.kept_bytes)
        runs = tuple((p.name, counts[p.name]) for p in ordered if counts.get(p.name))
        return self.compiled({"u": runs})

    def compiled(self, counts):
        menus = [replace(self.menu, unit=unit) for unit in counts]
        predicted = predict_bytes(menus, counts)
        times = {p.name: p.time_us for p in self.menu.prices}
        runs = [run for unit in counts.values() for run in unit]
        return SimpleNamespace(
            plan="a plan",
            measurement=object(),
            counts=counts,
            predicted_bytes=predicted,
            bytes=predicted + self.error(dict(runs)),
            time_us=sum(times[name] * n for name, n in runs)
            + self.slower_us(dict(runs)),
        )

    def layers_us(self, row):
        return row.time_us

    def counts_of(self, row):
        return row.counts

    far_off, prices = (), ()
    slower_us = staticmethod(lambda counts: 0.0)

    def menus(self):
        return (self.menu,)

    def menus_without(self, ways):
        return [m.only({p.name for p in m.prices} - set(ways)) for m in self.menus()]

    def mix(self, menus, limit, excluding=()):
        return choose(menus, limit, excluding=excluding)

    def is_priced(self, row):
        return True

    def room_for(self, number):
        return True

    def refine(self, choice):
        return False

    def try_all(self, mixes):
        self.tried += [dict(counts["u"]) for counts, _ in mixes if "u" in counts]
        return [self.compiled(counts) for counts, _ in mixes]


def filled(search, row, is_full=True) -> Any:
    best, full = fill(search, row)
    assert full == is_full
    return best


def test_what_prices_took_for_used_is_used():
    search = Searched(60, lambda counts: -6.0)
    best = filled(search, search.row(rebuild=4, save=4))  # 48 of 60; one more takes 9
    assert dict(best.counts["u"]) == {"rebuild": 3, "save": 5}
    assert best.bytes == 57


def test_one_more_kind_of_layers_may_come_in():
    search = Searched(60, lambda counts: -3.0, (REBUILD, SMALL, SAVE))
    best = filled(search, search.row(rebuild=4, save=4))  # 51 of 60
    assert dict(best.counts["u"]) == {"rebuild": 1, "small": 3, "save": 4}
    assert best.bytes == 60


@pytest.mark.parametrize("budget", [54, 60, 62])
def test_nothing_is_compiled_where_no_mix_can_be_faster(budget):
    search = Searched(budget, lambda counts: 0.0)
    row = search.row(rebuild=4, save=4)  # 54, and one more takes 63
    assert filled(search, row) is row
    assert search.tried == []


def test_what_comes_out_too_large_is_left_alone():
    search = Searched(60, lambda counts: 20.0 if counts["save"] > 4 else -6.0)
    row = search.row(rebuild=4, save=4)
    assert filled(search, row) is row
    assert search.tried == [{"rebuild": 3, "save": 5}]


def test_what_came_out_too_large_does_not_come_again_and_other_kinds_do():
    """Layers that there were more of are taken to be as much larger."""
    close = replace(SAVE, name="close", time_us=51.0)
    error = lambda counts: 3.0 if counts.get("save", 0) > 4 else 0.0
    search = Searched(63, error, (REBUILD, SAVE, close))
    best = filled(search, search.row(rebuild=4, save=4))  # 54, and 63 are expected
    assert search.tried == [
        {"rebuild": 3, "save": 5},  # 66 are taken, so a layer of it seems to take 13
        {"rebuild": 2, "close": 5, "save": 1},  # 72
        {"rebuild": 3, "close": 3, "save": 2},
    ]
    assert (best.bytes, best.time_us) == (63, 553)


def test_what_is_over_in_all_mixes_is_laid_to_what_they_have_in_common():
    """Not to the kinds that come in, another one in each of them."""
    others = [replace(REBUILD, name=f"{k}", time_us=99.0 + k / 20) for k in range(12)]
    error = lambda counts: 6.0 * max(0, counts.get("save", 0) - 4)
    search = Searched(79, error, (REBUILD, SAVE, *others))
    best = filled(search, search.row(rebuild=4, save=4))  # 54 of 79
    assert search.tried == [
        {"0": 2, "save": 6},  # 84 are taken, and 72 are expected
        {"1": 2, "save": 6},
        {"0": 3, "save": 5},
    ]
    assert best.bytes == 69


def test_what_takes_more_than_its_prices_say_comes_in_where_it_fits_all_the_same():
    """How much more is told by the first mix that has it."""
    error = lambda counts: 25.0 if counts.get("small") else 0.0
    search = Searched(60, error, (REBUILD, SMALL))
    best = filled(search, search.row(rebuild=8))  # 18 of 60
    assert search.tried == [
        {"small": 8},  # 42 are expected, and 67 are taken
        {"rebuild": 2, "small": 6},
        {"rebuild": 3, "small": 5},
    ]
    assert best.bytes == 58


def test_of_what_costs_the_same_one_comes_in():
    close = replace(SAVE, name="close", kept_bytes=9.0)
    same = replace(close, name="same")
    error = lambda counts: 60.0 if counts.keys() & {"close", "same"} else 0.0
    search = Searched(62, error, (REBUILD, close, same, SAVE))
    row = search.row(rebuild=4, save=4)  # 54 of 62
    assert filled(search, row) is row
    assert search.tried == [{"rebuild": 3, "close": 5}]


def test_what_is_known_to_be_far_off_does_not_come_in():
    sure = replace(SAVE, name="sure", time_us=60.0)
    search = Searched(63, lambda counts: 0.0, (REBUILD, SAVE, sure))
    search.far_off = ("save",)
    best = filled(search, search.row(rebuild=4, sure=4))
    assert dict(best.counts["u"]) == {"rebuild": 3, "sure": 5}
    again = filled(search, search.row(rebuild=4, save=4))  # it has it already
    assert dict(again.counts["u"]) == {"rebuild": 3, "save": 5}


def test_kinds_that_came_out_too_large_beside_one_may_come_again_without_it():
    twin = replace(SAVE, name="twin", kept_bytes=8.0, time_us=55.0)
    error = lambda counts: 60.0 if "twin" in counts else 0.0
    search = Searched(63, error, (REBUILD, SAVE, twin))
    known = property(lambda self: ("twin",) if self.tried else ())
    search.__class__ = type("Learning", (Searched,), {"far_off": known})
    best = filled(search, search.row(rebuild=4, save=4))
    assert "twin" in search.tried[0]
    assert dict(best.counts["u"]) == {"rebuild": 3, "save": 5}


def test_what_may_be_faster_still_after_some_compiles_is_not_called_full():
    more = [replace(SAVE, name=f"save {k}", time_us=50.0 + k) for k in range(9)]
    error = lambda counts: 0.0 if counts.get("rebuild") == 8 else 550.0
    search = Searched(560, error, (REBUILD, *more))
    row = search.row(rebuild=8)
    assert filled(search, row, is_full=False) is row
    assert len(search.tried) == 8


@pytest.mark.parametrize("said", [float("nan"), 0.0, 1e9])
def test_what_was_once_expected_of_a_row_does_not_count(said):
    """Prices may have been refined since."""
    search = Searched(63, lambda counts: 0.0)
    row = search.row(rebuild=4, save=4)
    row.predicted_bytes = said
    best = filled(search, row)
    assert dict(best.counts["u"]) == {"rebuild": 3, "save": 5}


def test_what_comes_out_slower_does_not_come_again_and_other_kinds_do():
    close = replace(SAVE, name="close", time_us=51.0)
    search = Searched(64, lambda counts: 0.0, (REBUILD, SAVE, close))
    search.slower_us = lambda counts: 500.0 if counts.get("save", 0) > 4 else 0.0
    best = filled(search, search.row(rebuild=4, save=4))
    assert search.tried[0] == {"rebuild": 3, "save": 5}
    assert (best.bytes, best.time_us) == (63, 551)


class Outside:
    """Prices of a unit whose layers may stand outside of its loop, and some do."""

    def __init__(self, first=0, last=0):
        self.unit, self.first, self.last = SimpleNamespace(name="u"), first, last

    def ends(self, runs):
        stop = len(runs) - self.last
        return runs[: self.first], runs[self.first : stop], runs[stop:]


@pytest.mark.parametrize(("first", "last"), [(1, 0), (0, 1), (1, 1)])
def test_what_stands_outside_of_a_loop_stays_there(first, last):
    end = replace(SAVE, name="end", time_us=120.0)
    search = Searched(72, lambda counts: -5.0, (REBUILD, SAVE, end))
    search.prices = [Outside(first, last)]
    before, after = (("end", 1),) * first, (("end", 1),) * last
    loop = 8 - first - last
    runs = lambda n: (*before, ("rebuild", loop - n), ("save", n), *after)
    best = filled(search, search.compiled({"u": runs(3)}))
    most = max(n for n in range(loop) if search.compiled({"u": runs(n)}).bytes <= 72)
    assert best.counts["u"] == runs(most)
    assert most > 3


def test_what_was_seen_to_be_full_is_not_filled_again():
    search = Searched(63, lambda counts: 0.0)
    row = search.row(rebuild=4, save=4)
    search.best, search.full = lambda budget: row, [row.measurement]
    use_up(search)
    assert search.tried == []
    search.full = []
    use_up(search)
    assert search.tried == [{"rebuild": 3, "save": 5}]


def test_no_plan_over_its_budget_is_filled():
    search = Searched(53, lambda counts: 0.0)
    row = search.row(rebuild=4, save=4)
    search.best, search.full = lambda budget: row, [row.measurement]
    assert not is_filled(search, row)


class Ends:
    """Prices of the first and the last layer of a loop: both are better off outside."""

    has_edges = True
    ends = staticmethod(lambda runs: ((), runs, ()))
    choices = dict.fromkeys(("rebuild", "save"), SimpleNamespace(action=rr.SAVE))

    def __init__(self, name="u"):
        self.unit = SimpleNamespace(name=name)
        self.asked: list[Any] = []
        self.numbers: list[int] = []

    def least_rebuilt(self, beside, number):
        self.numbers.append(number)
        return ["save"]

    def edges(self, names, beside, last):
        self.asked += [(beside, "last" if last else "first") for _ in names]
        return dict(zip(names, self.known_edges(beside, last), strict=False))

    def known_edges(self, beside, last):
        return [Price("save", 9.0, 0.0, 0.0, -60.0)]


@pytest.mark.parametrize(
    ("runs", "asked"),
    [
        ([("rebuild", 8)], [("rebuild", "first"), ("rebuild", "last")]),
        ([("save", 1), ("rebuild", 7)], [("rebuild", "last")]),
        ([("save", 1), ("rebuild", 6), ("save", 1)], []),
    ],
)
def test_ends_that_stand_alone_are_tried_once(runs, asked):
    search, ends = Searched(200, lambda counts: 0.0), Ends()
    search.prices = [ends]
    assert trim_ends(search, search.compiled({"u": tuple(runs)})) == -120.0
    assert ends.asked == asked


def test_ends_of_several_loops_share_the_compiles_of_one():
    search = Searched(200, lambda counts: 0.0)
    search.prices = [Ends("a"), Ends("b"), Ends("c")]
    trim_ends(search, search.compiled({name: (("rebuild", 8),) for name in "abc"}))
    asked = [number for ends in search.prices for number in ends.numbers]
    assert asked == [NUM_EDGES // 3] * 6


class GivingBack(Ends):
    """A last layer outside of the loop takes 9 bytes less, and is faster."""

    def known_edges(self, beside, last):
        return [Price("save", -9.0, 0.0, 0.0, -60.0)] if last else []


@pytest.mark.parametrize(
    ("taken", "tried"),
    [(56, []), (60, [(("rebuild", 7), ("save", 1))]), (66, []), (80, [])],
    ids=["fits", "a little too large", "larger than that", "far too large"],
)
def test_what_is_a_little_too_large_may_fit_with_ends(taken, tried):
    search = Searched(56, lambda counts: 0.0)
    best, near = search.row(save=8), search.row(rebuild=8)
    best.bytes, best.time_us, near.bytes = 56, 2000.0, taken
    near.takes = lambda *ways: False
    search.rows, search.prices = {"near": near}, [GivingBack()]
    search.best = lambda budget: best
    asked = []
    search.try_all = lambda mixes: asked.extend(c["u"] for c, _ in mixes) or [best]
    try_ends(search, best, 0.0)
    assert [runs for runs in asked if ("rebuild", 7) in runs] == tried


class Slower(GivingBack):
    """A last layer outside of the loop takes 9 bytes less, and more time."""

    def known_edges(self, beside, last):
        return [Price("save", -9.0, 0.0, 0.0, 60.0)] if last else []


@pytest.mark.parametrize(("best_bytes", "tried"), [(56, 0), (57, 1)])
def test_ends_that_are_slower_are_tried_where_nothing_fits(best_bytes, tried):
    search = Searched(56, lambda counts: 0.0)
    near = search.row(rebuild=8)
    near.bytes, search.prices = 60, [Slower()]
    best = SimpleNamespace(bytes=best_bytes, time_us=2000.0)
    search.best = lambda budget: best
    assert trim_ends(search, near) == 0.0
    assert len(search.tried) == tried
