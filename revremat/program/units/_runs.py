"""Where a row of numbers repeats itself with a period.

A *run* is a stretch whose numbers equal those one period later, as long as it can be. A
run of so many numbers holds one of every so many places, its anchor, so for all periods
together n log n places are looked at; how far two places agree is found by doubling.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int


@dataclass(frozen=True, eq=False)
class Runs:
    """All runs of a row of numbers, by period and start.

    Attributes:
      starts: Where each begins, `[num_runs]`.
      periods: After how many numbers it repeats, `[num_runs]`.
      matched: How many numbers equal those one period later, `[num_runs]`.
    """

    starts: Int[np.ndarray, " num_runs"]
    periods: Int[np.ndarray, " num_runs"]
    matched: Int[np.ndarray, " num_runs"]

    def within(self, begin: int, end: int) -> "Runs":
        """What is left between two places of the runs that make two iterations."""
        starts = np.maximum(self.starts, begin)
        stops = np.minimum(self.starts + self.matched, end - self.periods)
        kept = stops - starts >= self.periods
        return Runs(starts[kept], self.periods[kept], (stops - starts)[kept])


def find_runs(
    tokens: Int[np.ndarray, " n"], most_period: int, lacking: float = 0.0
) -> Runs:
    """The runs that make two iterations, or nearly.

    Args:
      tokens: Integers `[n]`.
      most_period: The longest period.
      lacking: The part of a period that the second iteration may be short of.

    >>> runs = find_runs(np.array([5, 1, 2, 1, 2, 1, 7]), most_period=3)
    >>> list(zip(runs.starts.tolist(), runs.periods.tolist(), runs.matched.tolist()))
    [(1, 2, 3)]
    """
    n = len(tokens)
    longest = min(int(n / (2 - lacking)), most_period)
    periods = np.arange(1, longest + 1)
    least = np.ceil((1 - lacking) * periods).astype(np.int64)
    counts = -(-(n - periods) // least)
    first = np.cumsum(counts) - counts
    period = np.repeat(periods, counts)
    anchor = (np.arange(counts.sum()) - np.repeat(first, counts)) * np.repeat(
        least, counts
    )
    same = tokens[anchor] == tokens[anchor + period]
    anchor, period = anchor[same], period[same]
    names = _names(tokens)
    ahead = _agree(names, anchor, anchor + period)
    back = _agree(names, anchor, anchor + period, backwards=True)
    found = np.stack([period, anchor - back + 1, ahead + back - 1])
    found = found[:, found[2] >= (1 - lacking) * found[0]]
    found = np.unique(found, axis=1)
    return Runs(found[1], found[0], found[2])


def _names(tokens: Int[np.ndarray, " n"]) -> list[Int[np.ndarray, " _"]]:
    """Numbers for the stretches of 1, 2, 4, ... tokens, equal ones for equal."""
    names = [np.unique(tokens, return_inverse=True)[1].astype(np.int64)]
    size, n = 1, len(tokens)
    while 2 * size <= n:
        pairs = names[-1][:-size] * n + names[-1][size:]
        names.append(np.unique(pairs, return_inverse=True)[1].astype(np.int64))
        size *= 2
    return names


def _agree(
    names: list[Int[np.ndarray, " _"]],
    one: Int[np.ndarray, " pairs"],
    other: Int[np.ndarray, " pairs"],
    backwards: bool = False,
) -> Int[np.ndarray, " pairs"]:
    """How many tokens agree from two places on (each included), or up to them."""
    found = np.zeros(len(one), np.int64)
    for k in reversed(range(len(names))):
        size = 1 << k
        if backwards:
            left, right = one - found - size + 1, other - found - size + 1
        else:
            left, right = one + found, other + found
        inside = (left >= 0) & (right < len(names[k]))  # `one` comes first
        agree = np.zeros(len(one), bool)
        agree[inside] = names[k][left[inside]] == names[k][right[inside]]
        found += size * agree
    return found
