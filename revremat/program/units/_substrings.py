"""Every stretch of numbers that comes more than once, by a suffix array."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Int


def repeated(
    tokens: Int[np.ndarray, " n"],
) -> Iterator[tuple[Int[np.ndarray, " places"], int]]:
    """All stretches that come twice or more and are as long as they can be.

    Args:
      tokens: Integers `[n]`.

    Yields:
      Where a stretch begins and its length. Each set of places comes once,
      with the longest stretch that all of them share; places may overlap.

    >>> [(sorted(map(int, at)), n) for at, n in repeated(np.array([7, 1, 2, 3, 1, 2]))]
    [([1, 4], 2), ([2, 5], 1)]
    """
    order = _suffix_array(tokens)
    shared = _shared_prefixes(tokens, order)
    # Intervals of the order whose suffixes share a prefix, open ones on a stack.
    opened: list[tuple[int, int]] = []
    for k, length in enumerate([*shared[1:], 0], start=1):
        begin = k - 1
        while opened and opened[-1][1] > length:
            begin, longer = opened.pop()
            yield order[begin:k], longer
        if length and (not opened or opened[-1][1] < length):
            opened.append((begin, int(length)))


def _suffix_array(tokens: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Where suffixes begin, in lexical order, by doubling what is compared."""
    rank = np.unique(tokens, return_inverse=True)[1].astype(np.int64)
    n, reach = len(tokens), 1
    while True:
        after = np.zeros(n, np.int64)
        after[: max(0, n - reach)] = rank[reach:] + 1
        key = rank * (n + 1) + after
        order = np.argsort(key, kind="stable")
        steps = np.diff(key[order], prepend=key[order[:1]]) > 0
        rank = np.empty(n, np.int64)
        rank[order] = np.cumsum(steps)
        if reach >= n or not n or rank[order[-1]] == n - 1:
            return order
        reach *= 2


def _shared_prefixes(
    tokens: Int[np.ndarray, " n"], order: Int[np.ndarray, " n"]
) -> list[int]:
    """How many tokens each suffix shares with the one before it in order.

    In the order of positions what is shared shrinks by one at most (Kasai et al. 2001).
    """
    listed, n = tokens.tolist(), len(tokens)
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    found, shared = [0] * n, 0
    for start, at in enumerate(place.tolist()):
        if at == 0:
            shared = 0
            continue
        other = int(order[at - 1])
        most = n - max(start, other)
        while shared < most and listed[start + shared] == listed[other + shared]:
            shared += 1
        found[at] = shared
        shared = max(0, shared - 1)
    return found
