"""Pairs as bits in words: the loops that a compiler takes, run as Python."""

import numpy as np
import pytest

from revremat.allocation._safety import _symmetric_complement, _transpose


def bits(words):
    return np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")


def test_a_block_is_transposed_within_its_64_words():
    words = np.random.default_rng(0).integers(0, 2**64, 64, np.uint64)
    turned = words.copy()
    _transpose.__wrapped__(turned)
    assert (bits(turned[:, None]) == bits(words[:, None]).T).all()


@pytest.mark.parametrize("count", [1, 63, 64, 65, 100, 128, 129])
def test_what_is_in_neither_direction_is_left_but_for_the_diagonal(count, monkeypatch):
    blocks = -(-count // 64)
    drawn = np.random.default_rng(count).random((64 * blocks,) * 2) < 0.3
    drawn[count:], drawn[:, count:] = False, False
    words = np.packbits(drawn, axis=-1, bitorder="little").view(np.uint64)
    function = _symmetric_complement.__wrapped__
    monkeypatch.setitem(function.__globals__, "_transpose", _transpose.__wrapped__)
    function(words, count)
    free = ~(drawn | drawn.T) & ~np.eye(64 * blocks, dtype=bool)
    free[count:], free[:, count:] = False, False
    assert (bits(words) == free).all()
