"""Which valley of a skyline is filled next: by each rule, and between equals."""

from types import SimpleNamespace

import numpy as np
import pytest

from revremat.allocation import _skyline
from revremat.allocation._skyline import FEWEST, LOWEST, WEIGHTED

FIRST, LAST = (0, 1, 4), (2, 3, 4)  # a buffer of 4 in either of two valleys


def asked(floor, buffers, capacity, rule, failures, monkeypatch):
    """The section that is asked, in plain Python; buffers by begin, end and size."""
    monkeypatch.setattr(_skyline, "_rim", _skyline._rim.__wrapped__)
    count = len(floor)
    begin, end, size = np.array(sorted(buffers)).T
    rest = [sum(z for b, e, z in buffers if b <= s < e) for s in range(count)]
    zeros = lambda: np.zeros(count + 1, np.int64)
    scratch = ("answers", "smallest", "valley_begin", "valley_end")
    return _skyline.survey.__wrapped__(
        0,
        count,
        SimpleNamespace(
            begin=begin,
            end=end,
            size=size,
            first=np.searchsorted(begin, range(count + 1)),
        ),
        SimpleNamespace(
            floor=np.array(floor), rest=np.array(rest), offsets=np.full(len(size), -1)
        ),
        capacity,
        rule,
        np.array(failures),
        SimpleNamespace(**{name: zeros() for name in scratch}),
    )


@pytest.mark.parametrize(
    ("floor", "buffers", "capacity", "rule", "failures", "found"),
    [
        ((2, 9, 1), (FIRST, LAST), 100, LOWEST, (1, 1, 1), 2),
        ((1, 9, 2), (FIRST, LAST), 100, LOWEST, (1, 1, 1), 0),
        ((1, 9, 1), (FIRST, LAST), 100, LOWEST, (1, 1, 1), 0),  # the first of equals
        ((1, 9, 1), (FIRST, FIRST, LAST), 100, LOWEST, (1, 1, 1), 2),  # fewer choices
        ((2, 9, 1), (FIRST, LAST, LAST), 100, LOWEST, (1, 1, 1), 2),
        # As many choices: the lower one of two.
        ((2, 9, 1), (FIRST, LAST), 100, FEWEST, (1, 1, 1), 2),
        ((1, 9, 2), (FIRST, LAST), 100, FEWEST, (1, 1, 1), 0),
        ((2, 9, 1), (FIRST, LAST, LAST), 100, FEWEST, (1, 1, 1), 0),
        ((9, 2, 9, 1), (FIRST, (1, 2, 4), (3, 4, 4)), 100, FEWEST, (1, 1, 1, 1), 3),
        # To leave a valley lower is a choice where what is left fits above it.
        ((2, 9, 1), (FIRST, LAST), 10, FEWEST, (1, 1, 1), 2),
        ((2, 9, 1), (FIRST, LAST), 9, FEWEST, (1, 1, 1), 0),
        ((2, 9, 1), (FIRST, LAST), 8, FEWEST, (1, 1, 1), 2),
        ((2, 3, 1), (FIRST, LAST), 7, FEWEST, (1, 1, 1), 2),
        ((2, 3, 1), (FIRST, LAST, (2, 3, 1)), 7, FEWEST, (1, 1, 1), 0),
        # Buffers that reach beyond a valley are none of its choices.
        ((2, 9, 1), (FIRST, (0, 2, 4), (0, 3, 4), LAST), 100, FEWEST, (1, 1, 1), 2),
        ((2, 9, 1), (FIRST, LAST, LAST), 100, WEIGHTED, (1, 1, 10), 2),
        ((2, 9, 1), (FIRST, LAST, LAST), 100, WEIGHTED, (10, 1, 1), 0),
        ((2, 9, 1), (FIRST, LAST, LAST), 100, WEIGHTED, (2, 9, 3), 0),
    ],
)
def test_of_valleys_one_is_asked(
    floor, buffers, capacity, rule, failures, found, monkeypatch
):
    assert asked(floor, buffers, capacity, rule, failures, monkeypatch) == found
