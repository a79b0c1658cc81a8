"""WhatIf: what a step's memory would be with one thing changed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Residual:
    """Values of the forward pass that are alive at the peak, of all layers together.

    Attributes:
      scope: Module path, numbers of layers as `*`.
      op: The operation that makes them.
      count: How many there are at the peak.
      bytes: What they take at the peak.
      saves_bytes: By how much the highest moment falls without them. A compile of the
        program without them falls by no more than that and what becomes of
        fragmentation: it has to make the values again.
    """

    scope: str
    op: str
    count: int
    bytes: int
    saves_bytes: int


@dataclass(frozen=True)
class Donation:
    """An argument beside a result that could take over its memory.

    Attributes:
      argument: Its path in the step's arguments.
      result: What makes the result that is like it.
      saves_bytes: The result's memory, the most that can be saved.
      scratch: The result's memory also holds other values before the result is there;
        they need room elsewhere, so that less may be saved, or nothing.
    """

    argument: str
    result: str
    saves_bytes: int
    scratch: bool = False


@dataclass(frozen=True)
class Checkpoint:
    """A region that is computed a second time for the backward pass, in all layers.

    Attributes:
      scope: Module path, numbers of layers as `*`.
      again: Something of it is made a second time. Where nothing is, the compiler has
        merged it with the forward pass, or a policy keeps all of it.
      twice_bytes: Values alive at the peak for the backward pass although the same
        operation is run a second time: computed twice, kept all the same.
      kept_bytes: Other values of the same scope alive at the peak for the backward
        pass: kept by a policy, inputs of a later region, or merged by the compiler.
    """

    scope: str
    again: bool
    twice_bytes: int
    kept_bytes: int


@dataclass(frozen=True)
class WhatIf:
    """What could change about a step's memory, and by how much at most.

    Attributes:
      residuals: What would fall if one residual went, the largest fall first.
      donations: What donating more arguments would save, the largest first.
      checkpoints: Whether checkpointed regions free what they compute again; those
        that free the least come first.
    """

    residuals: tuple[Residual, ...] = ()
    donations: tuple[Donation, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
