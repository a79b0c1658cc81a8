"""What searches ask, in order, and what they answer: as it was recorded."""

import pytest

from tests.search.programs import CASES
from tests.search.tape import expected, replay

LONG = ("gpt-h100", "reversible-cpu", "wide-h100", "two_kinds-h100")
"""Many assignments are solved anew."""


@pytest.mark.every_commit(
    "repeats-h100",
    "microbatches-cpu",
    "reversible-h100",
    "two_kinds-cpu",
    "accumulated-h100",
)
@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in CASES],
)
def test_a_search_asks_and_answers_what_it_did(name):
    found = replay(CASES[name])
    for run, before in zip(found, expected(CASES[name]), strict=True):
        label = f"{run['budgets']} by {run['most']}"
        assert run["asked"] == before["asked"], label
        for answer, known in zip(run["answers"], before["answers"], strict=True):
            assert answer.keys() == known.keys()
            for what, value in answer.items():
                if isinstance(value, float):
                    value = pytest.approx(value, rel=1e-6)
                assert known[what] == value, f"{label}: {what}"
