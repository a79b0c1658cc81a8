"""Groups of segments, of which each is computed again as one.

While a group is differentiated, there is what the groups before it output for
later ones, and all that it keeps itself. Groups are chosen so that the largest of these
sums is least (Chen et al., 2016, have layers of one size, and so the root of their
number). Of choices that are about as good the one with the least output is taken.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from revremat.program.ir._costs import num_bytes
from revremat.program.units._stretch import Stretch

_HALVINGS = 24
"""Of the range in which the least peak is: to a millionth of what a program keeps."""
_ABOUT_AS_GOOD = 1.05
"""Of the least peak: closer than that compilers do not keep to what is counted."""

Part = tuple[int, int]
"""From which operation of a stretch on, up to which."""


def in_groups(
    stretch: Stretch, parts: Sequence[Part], kept: Callable[[int, int], float]
) -> list[list[Part]]:
    """The parts in groups that follow one another.

    Args:
      stretch: Where.
      parts: Parts that follow one another.
      kept: Bytes that a backward pass needs of what is made between two places.
    """
    places = [parts[0][0], *(end for _, end in parts)]
    sizes = np.array([[kept(a, b) for b in places] for a in places])
    ends = _Chain(sizes, _given(stretch, places)).best_ends()
    return [[*parts[a:b]] for a, b in pairwise((0, *ends))]


def _given(stretch: Stretch, places: Sequence[int]) -> Float[np.ndarray, "from to"]:
    """Bytes made between two places and used after the second one."""
    given = np.zeros((len(places), len(places)))
    for value, (made_at, _) in stretch.maker.items():
        last = stretch.last_use.get(value, -1)
        before = sum(place <= made_at for place in places)
        until = sum(place <= last for place in places)
        given[:before, before:until] += num_bytes(value.aval)
    return given


@dataclass(frozen=True)
class _Chain:
    """What groups keep and output.

    Attributes:
      kept: Between two places.
      given: Made between two places and used later.
    """

    kept: Float[np.ndarray, "from to"]
    given: Float[np.ndarray, "from to"]

    def best_ends(self) -> tuple[int, ...]:
        """Where groups end that need about as little as can be."""
        low, high = 0.0, float(self.kept[0, -1])
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if self._ends(middle) else (middle, high)
        ends = self._ends(_ABOUT_AS_GOOD * high)
        assert ends is not None  # all of them as one
        return ends

    def _ends(self, most: float) -> tuple[int, ...] | None:
        """Where groups end of which none needs more, and that output least."""
        best: list[tuple[float, tuple[int, ...]] | None] = [(0.0, ())]
        for b in range(1, len(self.kept)):
            options = [
                (known[0] + self.given[a, b], (*known[1], b))
                for a, known in enumerate(best)
                if known is not None and known[0] + self.kept[a, b] <= most
            ]
            best.append(min(options, default=None))
        return None if best[-1] is None else best[-1][1]
