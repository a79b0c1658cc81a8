"""The knapsack problem with several equal items, exactly."""

from collections.abc import Sequence

import numpy as np


def knapsack(
    weights: Sequence[int],
    values: Sequence[float],
    counts: Sequence[int],
    capacity: int,
) -> list[int]:
    """How many of each item to take for most value.

    Dynamic programming over the capacity, with each item's count split into powers of
    two; of equal answers the one with fewer of the later items.

    Args:
      weights: Of one item, 0 or more.
      values: Of one item, 0 or more.
      counts: How many there are of each.
      capacity: That all weights together stay within.

    >>> knapsack([3, 2], [5.0, 3.0], [2, 3], 8)
    [2, 1]
    """
    capacity = max(0, capacity)
    pieces = []
    for item, count in enumerate(counts):
        power = 1
        while count > 0:
            number = min(power, count)
            pieces.append((item, number))
            count -= number
            power *= 2
    best = np.zeros(capacity + 1)
    taken = np.zeros((len(pieces), capacity + 1), bool)
    for row, (item, number) in enumerate(pieces):
        weight, value = number * weights[item], number * values[item]
        if weight > capacity:
            continue
        with_it = best[: capacity + 1 - weight] + value
        better = with_it > best[weight:]
        taken[row, weight:] = better
        best[weight:] = np.where(better, with_it, best[weight:])
    found, room = [0] * len(weights), capacity
    for row in reversed(range(len(pieces))):
        item, number = pieces[row]
        if taken[row, room]:
            found[item] += number
            room -= number * weights[item]
    return found
