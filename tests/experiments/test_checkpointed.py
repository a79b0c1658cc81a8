"""Programs with their author's checkpoints are no worse off than without."""

import json

import pytest

from experiments.bench.checkpointed import MOST_WORSE, PROGRAMS, RESULT, ratio, worst


def row(bare, checkpointed):
    keys = ("fits", "step_us", "bytes")
    return {
        "bare": dict(zip(keys, bare, strict=True)),
        "checkpointed": dict(zip(keys, checkpointed, strict=True)),
    }


@pytest.mark.parametrize(
    ("bare", "checkpointed", "expected"),
    [
        ((True, 10.0, 5), (True, 11.0, 9), 1.1),  # time alone, where both fit
        ((False, 10.0, 5), (False, 99.0, 6), 1.2),  # bytes, where neither does
        ((True, 10.0, 5), (False, 10.0, 6), float("inf")),
        ((False, 10.0, 6), (True, 10.0, 5), 0.0),
    ],
)
def test_what_counts_as_worse(bare, checkpointed, expected):
    assert ratio(row(bare, checkpointed)) == pytest.approx(expected)


def test_none_of_the_recorded_programs_is_worse():
    programs = json.loads(RESULT.read_text())["programs"]
    assert programs.keys() == PROGRAMS.keys()
    assert {
        name for name, rows in programs.items() if worst(rows) > 1 + MOST_WORSE
    } == (set())
