"""What several quantities are, told by sums of some of them: linear regression."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Prior:
    """What quantities are taken for before anything is measured (Gaussian).

    Attributes:
      mean: The likeliest value of each.
      off: By how much each may be off by itself.
      scale: By which share several may be off together, as where a model counts what a
        compiler never stores.
      alike: Groups of those that may be: 1 for what is in a group, and else 0.
      noise: By how much a measured sum may differ from the sum.
    """

    mean: Float[np.ndarray, " quantities"]
    off: Float[np.ndarray, " quantities"]
    scale: float
    alike: Float[np.ndarray, "groups quantities"]
    noise: float

    def given(
        self,
        taken: Float[np.ndarray, "sums quantities"],
        measured: Float[np.ndarray, " sums"],
    ) -> "Known":
        """The likeliest values once sums are known.

        Args:
          taken: How often each quantity is in each sum.
          measured: The sums.
        """
        each = self.scale * self.alike * self.mean
        moves = self.off[:, None] ** 2 * taken.T + each.T @ (each @ taken.T)
        shared = taken @ moves + self.noise**2 * np.eye(len(measured))
        known = np.linalg.solve(
            shared, np.column_stack([measured - taken @ self.mean, moves.T])
        )
        weights = known[:, 0]
        left = self.off**2 + (each**2).sum(0) - (moves * known[:, 1:].T).sum(1)
        values = self.mean + moves @ weights
        return Known(values, np.sqrt(np.maximum(0.0, left)), weights)


@dataclass(frozen=True)
class Known:
    """What quantities are taken for once sums of them were measured.

    Attributes:
      values: The likeliest value of each.
      off: By how much each may be off.
      weights: Which way each sum moved them, and how hard.
    """

    values: Float[np.ndarray, " quantities"]
    off: Float[np.ndarray, " quantities"]
    weights: Float[np.ndarray, " sums"]


def below_and_at(
    prior: Prior,
    moments: Sequence[Float[np.ndarray, "moments quantities"]],
    fixed: Sequence[Float[np.ndarray, " moments"]],
    peaks: Sequence[float],
    rounds: int,
) -> Known:
    """The likeliest values where of several sums only the largest is known.

    Which of them is the largest is what the values of the round before say. Of the
    others, those count that would be larger, until they push no more.

    Args:
      prior: What values are taken for.
      moments: Of each known peak, how often a quantity is in the sum of each moment.
      fixed: What is in those sums beside.
      peaks: The largest sums.
      rounds: How often to start anew, at least once.
    """
    values, known = prior.mean, None
    for _ in range(rounds):
        sums = [a @ values + b for a, b in zip(moments, fixed, strict=True)]
        at = [int(np.argmax(one)) for one in sums]
        over = [
            (n, k)
            for n, (one, peak) in enumerate(zip(sums, peaks, strict=True))
            for k in np.flatnonzero(one > peak + prior.noise)
            if k != at[n]
        ]
        while True:
            chosen = [*enumerate(at), *over]
            taken = np.array([moments[n][k] for n, k in chosen])
            measured = np.array([peaks[n] - fixed[n][k] for n, k in chosen])
            known = prior.given(taken, measured)
            pushing = known.weights[len(at) :] <= 0
            if pushing.all():
                break
            over = [one for one, on in zip(over, pushing, strict=True) if on]
        values = known.values
    assert known is not None
    return known
