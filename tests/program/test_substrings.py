"""Every stretch that comes more than once: against all stretches there are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from revremat.program.units._substrings import (
    _shared_prefixes,
    _suffix_array,
    repeated,
)

rows = st.lists(st.integers(0, 2), max_size=24)


def by_definition(tokens):
    """From places to the longest stretch that begins at all of them."""
    places: dict[tuple, set[int]] = {}
    for begin in range(len(tokens)):
        for end in range(begin + 1, len(tokens) + 1):
            places.setdefault(tuple(tokens[begin:end]), set()).add(begin)
    longest: dict[frozenset[int], int] = {}
    for stretch, at in places.items():
        if len(at) > 1:
            key = frozenset(at)
            longest[key] = max(longest.get(key, 0), len(stretch))
    return sorted((sorted(at), length) for at, length in longest.items())


@given(rows)
def test_stretches_are_those_of_the_definition(tokens):
    found = [(sorted(map(int, at)), n) for at, n in repeated(np.array(tokens, int))]
    assert sorted(found) == by_definition(tokens)


@given(rows)
def test_suffixes_are_in_lexical_order(tokens):
    order = _suffix_array(np.array(tokens, int)).tolist()
    suffixes = [tokens[k:] for k in range(len(tokens))]
    assert order == sorted(range(len(tokens)), key=suffixes.__getitem__)


@pytest.mark.parametrize(
    ("tokens", "shared"),
    [([1], [0]), ([1, 1, 1], [0, 1, 2]), ([1, 2, 1, 2, 1], [0, 1, 3, 0, 2])],
)
def test_what_each_suffix_shares_with_the_one_before_it(tokens, shared):
    row = np.array(tokens)
    assert [int(n) for n in _shared_prefixes(row, _suffix_array(row))] == shared
