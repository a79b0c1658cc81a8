"""Unrolled programs that are too large get XLA's remat pass, its limit moved down."""

from types import SimpleNamespace
from typing import Any

import pytest

from revremat import RECOMPUTE, SAVE
from revremat._graph import Graph
from revremat._measure import Failure
from revremat._measurement import Measurement, Memory, Time
from revremat._search import (
    BASELINE,
    Asking,
    Heuristics,
    ProgramKey,
    Request,
    Space,
    State,
)
from revremat._search.passes._remat_pass import remat_pass, remat_pass_nearly
from tests.search.world import unit_of

FIXED, USABLE = 110, 1110
"""Bytes of arguments and results, and of the device: a percent is ten bytes."""

UNROLLED = {
    "all": (SAVE(unroll=True),) * 8,
    "half": (SAVE(unroll=True),) * 4 + (RECOMPUTE(unroll=True),) * 4,
    "none": (RECOMPUTE(unroll=True),) * 8,
}
LOOPS = {"loop": (RECOMPUTE,) * 8, "mixed": (SAVE(unroll=True), *(RECOMPUTE,) * 7)}


class Compiler:
    """Says what programs take, by label and the pass's limit; None: it does not."""

    def __init__(self, known):
        self.known, self.asked = known, []

    def measure(self, requests):
        return [self._measured(request) for request in requests]

    def _measured(self, request):
        percent = request.key.remat_pass_percent
        if percent is not None:
            self.asked.append((request.label, percent))
        found = self.known[request.label]
        if percent is not None:
            found = self.known.get((request.label, percent), found)
        if found is None:
            return Failure(RuntimeError("no"))
        size, time_us = found
        memory = Memory(100, 30, 20, size - FIXED, 0)
        return Measurement("", "", "", 1, 1, 0, memory, Time(time_us, time_us))


def asked(
    known,
    budget,
    kind="scan",
    platform="cuda",
    enclosing=(),
    one=remat_pass,
    **heuristics,
):
    """What is asked with the pass on, after programs that are known."""
    unit = unit_of(kind=kind)
    target: Any = SimpleNamespace(platform=platform, usable_bytes=USABLE)
    how = {"enclosing": enclosing, "heuristics": Heuristics(**heuristics)}
    space = Space(Graph((unit,), "", ""), target, (unit,), {}, {}, **how)
    ask = Asking(Compiler({"baseline": (2000, 100.0), **known}))
    requests = [Request(BASELINE, "baseline")]
    for label in known:
        if actions := {**UNROLLED, **LOOPS}.get(label):
            requests.append(Request(ProgramKey.of({"u": actions}, False), label))
    state = ask(State.of(space).within(budget), requests)
    after = one(state, ask)
    return ask.oracle.asked, after


@pytest.mark.parametrize(
    ("sizes", "limits"),
    [
        # Aimed at the budget, then lower by what it was over, then by twice that.
        ([600], [49]),
        ([640, 600], [49, 45]),
        ([640, 610, 590], [49, 45, 43]),
        ([640, 610, 601], [49, 45, 43]),  # three limits, no more
        ([601, 601, 600], [49, 48, 47]),  # always another one
        ([None], [49]),  # does not compile
        ([1090], [49]),  # no limit says that
        ([1080], [49, 1]),
        ([1080, 601], [49, 1]),
    ],
)
def test_the_limit_moves_until_the_program_fits(sizes, limits):
    steps = zip(limits, sizes, strict=False)
    known = {("all", at): size and (size, 50.0) for at, size in steps}
    found, _ = asked({"all": (1090, 50.0)} | known, 600)
    assert found == [("all", at) for at in limits]


def test_what_fits_with_the_pass_is_a_plan_that_says_so():
    known = {"all": (900, 50.0), ("all", 49): (600, 60.0)}
    _, state = asked(known, 600)
    assert state.best.name == "all; XLA's remat pass at 49 %"
    assert state.best.plan.remat_pass_percent == 49


@pytest.mark.parametrize(
    ("known", "labels"),
    [
        ({"all": (900, 5.0), "half": (800, 6.0), "none": (700, 7.0)}, ["all", "half"]),
        ({"all": (900, 9.0), "half": (800, 8.0), "none": (700, 7.0)}, ["none", "half"]),
        # Only what is too large, has no loop left and is faster than what fits.
        ({"all": (600, 5.0), "half": (601, 4.0)}, ["half"]),
        ({"loop": (900, 5.0), "mixed": (900, 5.0)}, []),
        ({"loop": (500, 6.0), "all": (900, 6.0), "half": (900, 5.0)}, ["half"]),
        ({"loop": (601, 6.0), "all": (900, 7.0)}, ["all"]),
        ({"all": None}, []),
    ],
)
def test_of_unrolled_programs_the_fastest_are_tried(known, labels):
    found, _ = asked(known, 600, most_remat_limits=1)
    assert [label for label, _ in found] == labels


def test_a_program_without_loops_is_tried_as_it_is():
    found, state = asked({"baseline": (900, 5.0)}, 600, kind="block")
    assert {label for label, _ in found} == {"baseline"}
    assert state.row(ProgramKey((), False, 49)) is not None
    assert asked({"baseline": (900, 5.0)}, 600, kind="scan")[0] == []


def test_a_program_with_the_pass_is_not_given_it_once_more():
    known = {"all": (900, 50.0)}
    first, state = asked(known, 600, most_remat_limits=1)
    ask = Asking(Compiler(known))
    remat_pass(state, ask)
    assert (first, ask.oracle.asked) == ([("all", 49)], [])


@pytest.mark.parametrize(
    ("how", "is_asked"),
    [
        ({}, True),
        ({"platform": "cpu"}, False),
        ({"enclosing": (unit_of("v"),)}, False),
        ({"num_remat_passes": 0}, False),
    ],
)
def test_only_where_the_pass_takes_a_limit_and_nothing_is_around(how, is_asked):
    assert bool(asked({"all": (900, 50.0)}, 600, **how)[0]) == is_asked


@pytest.mark.parametrize(
    ("times_us", "limits"),
    [
        ([69.0, 69.0], [49, 45]),
        ([70.0], [49]),  # no longer worth it: a lower limit has more recomputed
        ([69.9], [49]),  # by less than is worth a compile
    ],
)
def test_the_limit_stays_where_what_fits_is_faster(times_us, limits):
    steps = zip((49, 45), times_us, strict=False)
    known = {("all", at): (640, time_us) for at, time_us in steps}
    loop = {"loop": (500, 70.0)}
    found, _ = asked(loop | {"all": (900, 50.0)} | known, 600, most_remat_limits=2)
    assert [at for _, at in found] == limits


@pytest.mark.parametrize(("size", "is_asked"), [(900, True), (901, False)])
def test_first_only_what_nearly_fits_gets_the_pass(size, is_asked):
    found, _ = asked({"all": (size, 50.0)}, 600, one=remat_pass_nearly)
    assert bool(found) == is_asked


@pytest.mark.parametrize(("budget", "limits"), [(110, []), (115, []), (120, [1])])
def test_where_no_limit_says_the_budget_nothing_is_asked(budget, limits):
    found, _ = asked({"all": (900, 50.0)}, budget)
    assert [at for _, at in found] == limits
