"""Minimum cuts of directed networks: Dinic's algorithm, in whole numbers.

SciPy's maximum flow holds capacities in 32 bits, too few for bytes times costs.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool

from revremat._numba import njit

MOST_CAPACITY = 2**62
"""Every capacity of a network for `minimum_cut` is less than this."""


def minimum_cut(
    num_nodes: int,
    edges: Sequence[tuple[int, int, int]],
    source: int,
    sink: int,
) -> tuple[int, Bool[np.ndarray, " num_nodes"]]:
    """The cheapest set of edges whose removal parts the sink from the source.

    Of all such cuts it is the one nearest to the source, which is unique, so the answer
    does not depend on the order of the edges (Dinic 1970).

    Args:
      num_nodes: Nodes are `0 ... num_nodes - 1`.
      edges: `(tail, head, capacity)`; no capacity, nor all of the source's edges
        together, may reach 2^62.
      source: A node.
      sink: Another.

    Returns:
      The cut's capacity, and for each node whether it is on the source's side.

    Raises:
      ValueError: The capacities are negative, or too many.

    Example:
      >>> value, near = minimum_cut(3, [(0, 1, 5), (1, 2, 3)], 0, 2)
      >>> value, near.tolist()
      (3, [True, True, False])
    """
    from_source = sum(c for tail, _, c in edges if tail == source)
    largest = max((c for *_, c in edges), default=0)
    if max(from_source, largest) >= MOST_CAPACITY or any(c < 0 for *_, c in edges):
        raise ValueError("capacities are to be 0 or more, and below 2^62")
    table = np.array(edges, np.int64).reshape(-1, 3)
    count = len(table)
    # Edge k and its reverse are 2k and 2k + 1.
    tails, heads = np.empty(2 * count, np.int64), np.empty(2 * count, np.int64)
    tails[0::2], heads[0::2] = table[:, 0], table[:, 1]
    tails[1::2], heads[1::2] = table[:, 1], table[:, 0]
    left = np.zeros(2 * count, np.int64)
    left[0::2] = table[:, 2]
    order = np.argsort(tails, kind="stable")
    starts = np.searchsorted(tails[order], np.arange(num_nodes + 1))
    value = _saturate(starts, order, heads, left, source, sink)
    return int(value), _levels(starts, order, heads, left, source) >= 0


@njit
def _levels(starts, order, heads, left, source):
    """Distance of every node from the source along edges with something left."""
    level = np.full(len(starts) - 1, -1, np.int64)
    queue = np.empty(len(starts) - 1, np.int64)
    level[source] = 0
    queue[0], first, last = source, 0, 1
    while first < last:
        node = queue[first]
        first += 1
        for at in range(starts[node], starts[node + 1]):
            edge = order[at]
            if left[edge] > 0 and level[heads[edge]] < 0:
                level[heads[edge]] = level[node] + 1
                queue[last] = heads[edge]
                last += 1
    return level


@njit
def _saturate(starts, order, heads, left, source, sink):
    """The value of a maximum flow; `left` becomes what is left of capacities."""
    value = 0
    path = np.empty(len(starts) - 1, np.int64)
    while True:
        level = _levels(starts, order, heads, left, source)
        if level[sink] < 0:
            return value
        following = starts[:-1].copy()
        node, length = source, 0
        while True:
            if node == sink:
                least = left[path[0]]
                for k in range(1, length):
                    least = min(least, left[path[k]])
                value += least
                cut = length
                for k in range(length - 1, -1, -1):
                    left[path[k]] -= least
                    left[path[k] ^ 1] += least
                    if left[path[k]] == 0:
                        cut = k
                length = cut
                node = heads[path[cut] ^ 1]
            stuck = True
            while following[node] < starts[node + 1]:
                edge = order[following[node]]
                if left[edge] > 0 and level[heads[edge]] == level[node] + 1:
                    path[length] = edge
                    length += 1
                    node = heads[edge]
                    stuck = False
                    break
                following[node] += 1
            if stuck:
                if length == 0:
                    break
                level[node] = -2  # a dead end
                length -= 1
                node = heads[path[length] ^ 1]
                following[node] += 1
