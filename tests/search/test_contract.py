"""What every pass promises, wherever it stands and whatever the program is."""

import dataclasses
import functools
import itertools

import pytest

from revremat._search import (
    DECIDE,
    PROFILE,
    Asking,
    Heuristics,
    answer,
    decide,
    name_of,
)
from revremat._search._run import REQUIRED
from revremat._search.passes._keep_last import keep_last
from tests.search.programs import CASES
from tests.search.tape import Model, Tape, TapeOracle, budgets_of, state_of

NAMES = ("repeats-cpu", "microbatches-cpu", "two_kinds-cpu", "repeats-h100")
PASSES = [*PROFILE, *DECIDE]


LABELS = [f"{k:02d} {name_of(one)}" for k, one in enumerate(PASSES)]


def oracle_of(name):
    """What is on tape, and made up where a pass asks something else."""
    tape = Tape.load(name)
    return TapeOracle(tape, Model(tape.graph, not name.endswith("cpu")))


def searched(name, share, without=(), most=None):
    """What is known before each pass, and at the end.

    Args:
      name: A case.
      share: Which of its budgets.
      without: Numbers of passes that are left out.
      most: Compiles that are allowed.
    """
    oracle = oracle_of(name)
    case, tape = CASES[name], oracle.tape
    state, ask = state_of(case, tape, most), Asking(oracle)
    state = state.within(budgets_of(case, tape)[share])
    found = [state]
    for number, one in enumerate(PASSES):
        state = state if number in without else one(state, ask)
        if number == len(PROFILE) - 1:
            state = state.but(is_profiled=True)
        found.append(state)
    return found


states = functools.cache(searched)


@pytest.fixture(params=[(name, share) for name in NAMES for share in (0, 1)], ids=str)
def before(request):
    return request.param, states(*request.param)


@pytest.mark.parametrize("number", range(len(PASSES)), ids=LABELS)
def test_every_pass_keeps_its_promises(before, number):
    (name, _), known = before
    state, one = known[number], PASSES[number]
    oracle = oracle_of(name)
    after = one(state, Asking(oracle))

    # Knowledge only grows.
    for what in ("probes", "trials"):
        assert getattr(state, what).keys() <= getattr(after, what).keys(), what
    for unit, few in state.candidates.items():
        assert after.candidates[unit][: len(few)] == few
    for what in ("generated", "exhausted", "compared"):
        assert getattr(state, what) <= getattr(after, what), what
    assert after.num_compiles == state.num_compiles + len(oracle.asked)

    # The best plan never gets worse.
    if state.trials:
        assert after.best.bytes <= max(state.best.bytes, state.budget_bytes)
        if state.fits:
            assert after.fits
            assert after.best.time_us <= state.best.time_us

    # Of equal states the same is asked.
    again = oracle_of(name)
    one(state, Asking(again))
    assert again.asked == oracle.asked

    # What it asked is not asked again.
    third = oracle_of(name)
    one(after, Asking(third))
    assert third.asked == [], LABELS[number]


OPTIONAL = [k for k, one in enumerate(PASSES) if one not in REQUIRED]


@pytest.mark.parametrize("number", OPTIONAL, ids=[LABELS[k] for k in OPTIONAL])
def test_any_optional_pass_may_be_left_out(number):
    """The plan is one that was measured, and fits if that does."""
    name = "two_kinds-cpu"
    state = searched(name, 1, without=(number,))[-1]
    fit = answer(state, lambda: None)
    assert fit.plan.fits
    assert fit.plan.compiled_bytes <= fit.plan.budget_bytes
    graph = state.space.graph
    actions = {unit: [*few] for unit, few in fit.plan.actions.items()}
    again = graph.plan(actions)
    assert again.units == fit.plan.units
    assert fit.measurement in [row.measurement for row in fit.rows]


LIMITS = (8, 12, 16, 24, None)
LIMITED = (*NAMES[:2], *NAMES[3:], "reversible-cpu", "time_steps-h100", "wide-h100")


@pytest.mark.every_commit(
    "repeats-cpu-0",
    "microbatches-cpu-1",
    "repeats-h100-1",
    "reversible-cpu-0",
    "time_steps-h100-0",
    "wide-h100-1",
)
@pytest.mark.parametrize("share", [0, 1])
@pytest.mark.parametrize("name", LIMITED)
def test_a_limited_search_is_the_beginning_of_a_free_one(name, share):
    """So more compiles never give a worse plan."""
    found = []
    for most in LIMITS:
        oracle = oracle_of(name)
        state = state_of(CASES[name], oracle.tape, most)
        budget = budgets_of(CASES[name], oracle.tape)[share]
        found.append((oracle, decide(state.within(budget), Asking(oracle))))
    free, whole = found[-1]
    assert whole.skipped == ()
    for most, (oracle, state) in zip(LIMITS[:-1], found[:-1], strict=True):
        assert oracle.asked == free.asked[:most]
        assert state.num_compiles == len(oracle.asked)
        is_cut = len(free.asked) > most
        assert bool(state.skipped) == is_cut
        assert {one.what for one in state.skipped} <= {*map(name_of, PASSES)}
        assert all(one.num_compiles > 0 for one in state.skipped)
    for (_, less), (_, more) in itertools.pairwise(found):
        if less.fits:
            assert more.fits
            assert more.best.time_us <= less.best.time_us
        else:
            assert more.fits or more.best.bytes <= less.best.bytes


@pytest.mark.parametrize("name", ["repeats-cpu", "two_kinds-cpu", "two_kinds-h100"])
def test_a_timed_search_ends_when_the_last_layers_of_its_best_plan_were_tried(name):
    case, tape = CASES[name], Tape.load(name)
    state, ask = state_of(case, tape), Asking(oracle_of(name))
    timed = Heuristics().for_measured_times()
    state = state.but(space=dataclasses.replace(state.space, heuristics=timed))
    found = decide(state.within(budgets_of(case, tape)[0]), ask)
    assert found.skipped == ()
    assert keep_last(found, ask) == found
