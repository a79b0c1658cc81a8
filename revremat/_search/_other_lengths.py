"""Segments of other lengths than those that were probed, and what they would cost.

Of layers in segments of k, one input in k is kept, and one segment's are there while it
is differentiated. So one length that was probed tells of all others, and a stack may be
cut into segments that grow shorter: the last one is differentiated beside all inputs
that are kept, the first one beside its own alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from revremat._graph import Unit
from revremat.policies import Candidate, LayerCost

_GROWTH = 1.25
"""Of one length over the one before: a few layers more or less are no gain."""


@dataclass(frozen=True)
class OtherLength(Candidate):
    """A candidate whose layers form segments of a length that was not probed.

    Attributes:
      probed: The same in segments that were.
      alone: The same without segments.
    """

    probed: Candidate
    alone: Candidate

    def cost(self, probed: LayerCost, alone: LayerCost) -> LayerCost:
        """What one layer costs.

        Args:
          probed: The cost of one in segments that were probed.
          alone: That of one without segments.
        """
        short, length = self.probed.action.segment_length, self.action.segment_length
        return replace(
            probed,
            name=self.name,
            kept_bytes=probed.kept_bytes * short / length,
            base_bytes=probed.base_bytes + (length - short) * alone.kept_bytes,
        )


def other_lengths(
    unit: Unit,
    probed: Mapping[str, Candidate],
    is_known: Callable[[Candidate], bool],
) -> Iterator[OtherLength]:
    """All lengths that are worth a cost, but those that were probed.

    Args:
      unit: Whose layers they are.
      probed: What was offered for it, by name.
      is_known: Whether a candidate has a cost, and segments an exact one.
    """
    of_action = {c.action: c for c in probed.values()}
    names = set(probed)
    for candidate in probed.values():
        alone = of_action.get(candidate.action(segment_length=1))
        if candidate.action.segment_length == 1 or alone is None:
            continue
        if not (is_known(candidate) and is_known(alone)):
            continue
        for length in _lengths(unit.num_layers):
            action = candidate.action(segment_length=length)
            name = f"{alone.name}, segments of {length}"
            if action not in of_action and name not in names:
                names.add(name)
                found = OtherLength(name, action, candidate, alone)
                of_action[action] = found
                yield found


def _lengths(num_layers: int) -> Iterable[int]:
    """From two on; of segments longer than half of all, half would do."""
    length = 2
    while 2 * length <= num_layers + 1:
        yield length
        length = max(length + 1, round(_GROWTH * length))
