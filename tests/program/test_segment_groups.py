"""Groups of segments: the largest sum of what is kept and handed on is about least."""

import itertools
import math

import numpy as np
import pytest

from revremat.program.units._segment_groups import _ABOUT_AS_GOOD, _Chain


def random_chain(seed):
    """What groups of five or six parts keep and output, with values that skip some."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(5, 7))
    own = rng.integers(1, 100, count)
    kept = np.zeros((count + 1, count + 1))
    given = np.zeros((count + 1, count + 1))
    for a, b in itertools.combinations(range(count + 1), 2):
        kept[a, b] = own[a:b].sum()
    for _ in range(2 * count):
        made, last = sorted(rng.integers(0, count, 2))
        given[: made + 1, made + 1 : last + 1] += rng.integers(1, 40)
    return _Chain(kept, given)


def takes(chain, ends):
    """The largest sum while any group is differentiated, and all that is handed on."""
    peak, before = 0.0, 0.0
    for a, b in itertools.pairwise((0, *ends)):
        peak = max(peak, before + chain.kept[a, b])
        before += chain.given[a, b]
    return peak, before


def all_ends(count):
    """Every way to group so many parts."""
    for size in range(count):
        for inner in itertools.combinations(range(1, count), size):
            yield (*inner, count)


@pytest.mark.parametrize("seed", range(40))
def test_no_grouping_is_better(seed):
    chain = random_chain(seed)
    ways = [takes(chain, ends) for ends in all_ends(len(chain.kept) - 1)]
    least = min(peak for peak, _ in ways)
    peak, handed_on = takes(chain, chain.best_ends())
    assert peak <= _ABOUT_AS_GOOD * least * (1 + 1e-6)
    as_good = [given for size, given in ways if size <= _ABOUT_AS_GOOD * least]
    assert handed_on <= min(as_good)


def test_equal_layers_come_in_about_as_many_groups_as_each_has():
    count = 16
    k = np.arange(count + 1)
    number = np.maximum(0, k[None, :] - k[:, None]).astype(float)
    chain = _Chain(4 * number, np.where((number > 0) & (k < count), 4.0, 0.0))
    assert abs(len(chain.best_ends()) - math.isqrt(count)) <= 1


def test_what_nothing_is_gained_by_is_one_group():
    number = np.array([[0.0, 1.0, 2.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert _Chain(number, 9 * number).best_ends() == (2,)
