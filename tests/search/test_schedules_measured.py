"""Schedules are measured, those first that a model likes, which learns from each."""

from types import SimpleNamespace
from typing import Any

import pytest

import revremat as rr
from revremat._graph import Graph
from revremat._measurement import Measurement, Memory, Time
from revremat._search import (
    BASELINE,
    Asking,
    Heuristics,
    Request,
    Space,
    State,
    decide,
)
from revremat.policies import Group, Segment
from tests.search.world import unit_of

NAMES = ("a", "b", "c", "d", "e", "f", "g")
FIXED = 100
"""Bytes of arguments, which no schedule changes."""


class Liked:
    """A model that likes some schedules, one after the other, and notes what it hears.

    Three groups, `a`, `b` and `c`, so that five programs come before it is asked.
    """

    expected = 800.0
    groups = tuple(Group((Segment(name, (), 0.0, 0.0),)) for name in "abc")
    gains_us = 3.0

    def __init__(self, liked, is_within=lambda number, limit: True):
        self.liked, self.is_within = liked, is_within
        self.known, self.limits, self.excluded, self.near = [], [], [], []
        self.optimism = []
        self.number, self.is_asked = -1, False

    def sized(self, known, optimism=0.0):
        self.known.append(known)
        self.optimism.append(optimism)
        self.is_asked = False
        return self

    def predict(self, actions):
        """Of those with as many actions, what comes first takes least."""
        return 700.0, float(ord(min(actions)))

    def timed(self, known, optimism=0.0):
        return self

    def schedule(self, limit, excluded=(), near=None):
        self.number += not self.is_asked
        self.is_asked, number = True, self.number
        self.limits.append(limit)
        self.excluded.append(list(excluded))
        self.near.append(near)
        if number >= len(self.liked) or not self.is_within(number, limit):
            return None
        actions = dict.fromkeys(self.liked[number], rr.RECOMPUTE)
        return SimpleNamespace(
            actions=actions, bytes=self.expected, time_us=self.gains_us
        )


class Compiler:
    """Says what programs take, by the units that recompute."""

    def __init__(self, **known):
        self.known, self.asked = known, []

    def measure(self, requests):
        return [self._measured(request) for request in requests]

    def _measured(self, request):
        actions = request.key.actions or ()
        name = "".join(unit for unit, _ in actions)
        self.asked.append((name, request.predicted_bytes))
        size, time_us = self.known.get(name, (2000, 100.0))
        memory = Memory(FIXED, 0, 0, size - FIXED, 0)
        return Measurement("", "", "", 1, 1, 0, memory, Time(time_us, time_us))


def searched(model, compiler, budget=1000, **heuristics) -> Any:
    """What is known after a search, with the baseline measured before."""
    units = tuple(unit_of(name, 1, kind="segment") for name in NAMES)
    target: Any = SimpleNamespace(host_bytes=0)
    how = {"chain": model, "heuristics": Heuristics(**heuristics)}
    space = Space(Graph(units, "", ""), target, (), pools={}, proposed={}, **how)
    ask = Asking(compiler)
    state = ask(State.of(space).within(budget), [Request(BASELINE, "baseline")])
    compiler.asked.clear()
    return decide(state, ask)


def names(compiler):
    return [name for name, _ in compiler.asked]


UNIFORM = ["abc", "a", "ab"]
"""Programs that come first; segments and groups are the same here."""


def test_what_recomputes_everything_comes_first_and_then_what_the_model_likes():
    model, compiler = Liked(["b", "c"]), Compiler()
    searched(model, compiler)
    assert compiler.asked == [
        *((name, None) for name in UNIFORM),
        ("b", 800.0 + FIXED),
        ("c", 800.0 + FIXED),
    ]


def test_nothing_is_measured_where_the_program_fits_as_it_is():
    compiler = Compiler(**{"": (1000, 50.0)})
    searched(Liked(["b"]), compiler)
    assert compiler.asked == []


@pytest.mark.parametrize(("time_us", "bound_us"), [(3.0, 50.0), (-4.0, 46.0)])
def test_what_no_schedule_beats_is_told_where_the_program_fits(time_us, bound_us):
    model = Liked(["b"])
    model.gains_us = time_us
    model.known = [()]
    state = searched(model, Compiler(**{"": (1000, 50.0)}))
    assert state.bound_us == bound_us
    assert model.limits == [1000 - FIXED]


def test_the_model_hears_what_schedules_take_without_what_none_of_them_changes():
    model = Liked(["b", "c"])
    searched(model, Compiler(b=(1300, 5.0)))
    told = [{"".join(a): size for a, size in known} for known in model.known]
    first = {"abc": 1900, "a": 1900, "ab": 1900, "": 1900}
    assert told == [first, first | {"b": 1200}, {**first, "b": 1200, "c": 1900}]


def test_every_second_is_the_best_without_one_of_its_actions():
    model, compiler = Liked(["d", "e", "f"]), Compiler(abc=(700, 9.0))
    searched(model, compiler)
    # Which one, the model's times say; `ab` and `a` are known before.
    assert names(compiler)[len(UNIFORM) :] == ["d", "ac", "e", "bc", "f"]


def test_no_action_is_left_out_of_what_does_not_fit():
    compiler = Compiler()
    searched(Liked(["d", "e", "f"]), compiler)
    assert names(compiler)[len(UNIFORM) :] == ["d", "e", "f"]


@pytest.mark.parametrize(
    ("too_large", "shares"),
    [
        # Two in six may be over the budget: by half of what was hoped, once it was.
        ("", [0.0, 0.0, 0.2, 0.0, 0.3, 0.0, 0.0, 0.0, 0.45, 0.0]),
        ("e", [0.0, 0.0, 0.2, 0.0, 0.1, 0.0, 0.0, 0.0, 0.15, 0.0]),
        ("ef", [0.0, 0.0, 0.2, 0.0, 0.1, 0.0, 0.0, 0.0, 0.05, 0.0]),
    ],
)
def test_some_may_be_over_the_budget_by_as_much_as_was_found_right(too_large, shares):
    model = Liked(["c", "d", "e", "b", "f", "g", "de", "df", "dg", "ef"])
    sizes = {name: (2000 if name in too_large else 1000, 100.0) for name in "bcdefg"}
    searched(model, Compiler(**sizes))
    asked = model.limits[: len(shares)]
    assert asked == pytest.approx([900 + 1000 * share for share in shares])


def test_some_differ_little_from_the_best_where_that_is_a_schedule_that_fits():
    model = Liked(["c", "d", "e", "b", "f", "g", "cd", "ce", "de"])
    searched(model, Compiler(ab=(900, 10.0), e=(900, 5.0)))
    best = dict.fromkeys("ab", rr.RECOMPUTE), {"e": rr.RECOMPUTE}
    few = Heuristics().most_changes
    found = [(k, near) for k, near in enumerate(model.near) if near]
    assert found == [(1, (best[0], few)), (7, (best[1], few))]


def test_nothing_is_near_the_best_as_long_as_nothing_fits():
    model = Liked(["c", "d", "e"])
    searched(model, Compiler())
    assert set(model.near) == {None}


def test_others_differ_in_two_units_from_what_takes_as_much_as_another():
    model = Liked(["c", "d"])
    searched(model, Compiler(abc=(1700, 9.0), a=(1700, 9.0), ab=(1900, 9.0)))
    apart = [("".join(actions), number) for actions, number in model.excluded[-1]]
    # `abc` comes as segments, as groups and as both: what was measured is like itself.
    assert apart == [
        ("", 1),  # what the program does as it is
        ("abc", 1),
        ("abc", 2),
        ("abc", 2),
        ("a", 2),
        ("ab", 1),
        ("c", 1),
        ("d", 2),
    ]


def test_as_long_as_nothing_fits_every_second_is_the_smallest():
    is_within = lambda number, limit: number != 2 or limit is None
    model = Liked(["c", "d", "e", "f"], is_within)
    searched(model, Compiler())
    assert model.limits == [
        *(900.0, None),
        *(1100.0, 900.0, None),  # within the budget, and then the smallest
        None,
        *(1000.0, 900.0, None),  # the last three found nothing
    ]


@pytest.mark.parametrize(("most", "asked"), [(3, "abc"), (5, "ab"), (6, "c"), (7, "d")])
def test_no_more_are_measured_than_are_allowed(most, asked):
    compiler = Compiler()
    searched(Liked(["c", "d", "e"]), compiler, most_schedules=most)
    assert names(compiler)[-1] == asked


@pytest.mark.parametrize(
    ("better", "last"),
    [([], "c"), (["a"], "c"), (["ab"], "d"), (["c"], "e"), (["c", "e"], "g")],
)
def test_it_ends_after_some_that_were_no_better(better, last):
    """Each that is faster than all before begins the count anew."""
    compiler = Compiler(**{name: (900, 50.0 - k) for k, name in enumerate(better)})
    model = Liked(["c", "d", "e", "f", "g"])
    model.expected = 1900.0
    searched(model, compiler, most_failures=2)
    assert names(compiler)[-1] == last


@pytest.mark.parametrize(("size", "last"), [(2000, "c"), (2050, "c"), (2070, "g")])
def test_one_that_was_no_better_counts_only_where_it_is_as_the_model_said(size, last):
    """Else the model knows better then, so that what it likes next is worth a try."""
    compiler = Compiler(**dict.fromkeys("cdefg", (size, 100.0)))
    model = Liked(["c", "d", "e", "f", "g"])
    model.expected = 1900.0
    searched(model, compiler, most_failures=2)
    assert names(compiler)[-1] == last


def test_as_long_as_nothing_fits_sizes_may_be_smaller_than_likely():
    model = Liked(["c", "d", "e"])
    searched(model, Compiler(d=(900, 50.0)))
    assert model.optimism[:3] == [1.0, 1.0, 0.0]
