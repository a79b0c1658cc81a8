"""Whichever programs do not compile, a search ends with an answer that is right."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

import revremat as rr
from revremat._measure import Failure
from revremat._search import Asking, Request, answer, decide
from tests.search.model import told_of
from tests.search.programs import CASES
from tests.search.tape import Tape, budgets_of, measurement, state_of, text_of

QUICKLY = ("repeats-h100", "microbatches-cpu", "two_kinds-cpu")
SHARES = (0.1, 0.3, 0.6, 0.9, 1.0)


@dataclass
class Failing:
    """Says what is on a tape, or what a model makes up, unless that fails.

    Attributes:
      tape: The measurements.
      on_host: Whether the model has a host.
      fails: Whether a program does, by its text.
      failed: Those that did.
      asked: All, in order.
    """

    tape: Tape
    on_host: bool
    fails: Callable[[str], bool]
    failed: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)

    def measure(self, requests: Iterable[Request]):
        return [self._measured(text_of(r.key, self.tape.graph)) for r in requests]

    def _measured(self, text: str):
        self.asked.append(text)
        if text != "baseline" and self.fails(text):
            self.failed.add(text)
            return Failure(RuntimeError("no way"))
        known = self.tape.measured.get(text)
        return measurement(known or told_of(text, self.tape.graph, self.on_host))


def answered(name, fails, place, most):
    """What a search answers at one of the budgets of a case, and the oracle."""
    case, tape = CASES[name], Tape.load(name)
    budget = budgets_of(case, tape)[place]
    on_host = rr.target(case.target).platform != "cpu"
    oracle = Failing(tape, on_host, fails)
    state = state_of(case, tape, most).within(budget)
    found = answer(decide(state, Asking(oracle)), lambda: None)
    assert found.plan.fits == (found.measurement.memory.total_bytes <= budget)
    assert len(found.dropped) == len(oracle.failed)
    assert "no way" in rr.render(found) or not oracle.failed
    return oracle


every_case = pytest.mark.parametrize(
    "name",
    [n if n in QUICKLY else pytest.param(n, marks=pytest.mark.slow) for n in CASES],
)


@every_case
@pytest.mark.parametrize("is_limited", [True, False], ids=["limited", "free"])
def test_any_one_of_the_programs_may_fail(name, is_limited):
    most = CASES[name].limits[0] if is_limited else None
    asked = answered(name, lambda text: False, 1, most).asked
    for one in [*dict.fromkeys(asked)][1 :: 1 if is_limited else 4]:
        for place in (1, -1):
            answered(name, lambda text, one=one: text == one, place, most)


@every_case
@pytest.mark.parametrize("share", SHARES)
def test_any_part_of_the_programs_may_fail(name, share):
    for seed in range(3):
        fails = lambda text, seed=seed: random.Random(f"{seed} {text}").random() < share
        for most in (CASES[name].limits[0], None):
            answered(name, fails, seed, most)
