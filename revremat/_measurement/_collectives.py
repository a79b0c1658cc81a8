"""Collective: what devices exchange in a step, by the line that makes it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Collective:
    """Collectives of one kind, size and origin.

    Attributes:
      kind: As XLA calls it: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`,
        `collective-permute`.
      phase: The part of the step that makes them, as for buffers.
      scope: Module path, numbers of layers as `*`.
      bytes: What one of them gathers, scatters or reduces: the larger of what a device
        gives and gets.
      count: How many there are in one iteration of the loops around them; without a
        loop, in the step.
      iterations: How often those loops run in a step; 1 without one. Of branches that
        data decide the longest counts, as in the step's time: in the others it is 0.
      us: How long one is estimated to take.
      group: The devices of the first group that exchange data, by their place in the
        mesh.
      argument: Where nothing but an argument's slices or copies are exchanged, its path
        in the step's arguments: weights that are gathered. "" for all else.
      source: `file:line` in the user's code, or "".

    Example:
      >>> import revremat as rr
      >>> one = rr.Collective("all-gather", "forward", "layer/attn", 2**20, 2, 24)
      >>> one.times
      48
    """

    kind: str
    phase: str
    scope: str
    bytes: int
    count: int = 1
    iterations: int = 1
    us: float = 0.0
    group: tuple[int, ...] = ()
    argument: str = ""
    source: str = ""

    @property
    def times(self) -> int:
        """How many there are in a step."""
        return self.count * self.iterations
