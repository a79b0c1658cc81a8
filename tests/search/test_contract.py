"""What every pass promises, wherever it stands and whatever the program is."""

import functools

import pytest

from revremat._search import DECIDE, PROFILE, Asking, answer
from revremat._search._run import REQUIRED
from tests.search.programs import CASES
from tests.search.tape import Model, Tape, TapeOracle, budgets_of, state_of

NAMES = ("repeats-cpu", "microbatches-cpu", "two_kinds-cpu", "repeats-h100")
PASSES = [*PROFILE, *DECIDE]


def name_of(one):
    return getattr(one, "__name__", repr(one))


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
    for what in ("late", "exhausted", "compared"):
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
    again = graph.plan(actions, in_order=fit.plan.in_order)
    assert again.units == fit.plan.units
    assert fit.measurement in [row.measurement for row in fit.rows]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("most", [12, 16, 24])
def test_no_more_is_measured_than_is_allowed(name, most):
    needed = state_of(CASES[name], oracle_of(name).tape, most).num_needed
    found = searched(name, 1, most=max(most, needed))[-1].num_compiles
    assert found <= max(most, needed)
