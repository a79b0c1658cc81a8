"""Curve and Span: how a step's memory and time run over its schedule."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Curve:
    """Device memory over the schedule, by category, coarse enough to draw.

    Attributes:
      positions: Places in the schedule, ascending; loops and calls are walked once.
      bytes: For each category (a phase, or a rule of the user's), the bytes in use at
        each position. The highest sum of a stretch stands for the whole stretch, so
        the peak is never lost.
      fragmentation_bytes: The arena's fragmentation and its unused end, at each
        position.
      labels: What runs at each position: scope, or operation where it has none.

    Example:
      >>> import revremat as rr
      >>> curve = rr.Curve((0, 4), (("argument", (8, 8)), ("forward", (0, 16))))
      >>> dict(curve.bytes)["forward"]
      (0, 16)
    """

    positions: tuple[int, ...]
    bytes: tuple[tuple[str, tuple[int, ...]], ...]
    fragmentation_bytes: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def totals_bytes(self) -> tuple[int, ...]:
        """All categories added up, at each position.

        >>> Curve((0, 1), (("forward", (1, 2)), ("backward", (0, 3)))).totals_bytes
        (1, 5)
        """
        return tuple(
            sum(column) for column in zip(*(s for _, s in self.bytes), strict=True)
        )

    @property
    def peak(self) -> int:
        """The index at which most is in use.

        >>> Curve((0, 1), (("forward", (1, 2)), ("backward", (0, 3)))).peak
        1
        """
        totals = self.totals_bytes
        return max(range(len(totals)), key=totals.__getitem__) if totals else 0


@dataclass(frozen=True)
class Span:
    """A stretch of the estimated timeline in which one stream does one kind of work.

    Attributes:
      stream: `compute`, `collective` or `transfer`.
      phase: The part of the step the work belongs to; see `PHASES`.
      scope: Module path, as for buffers; "" where several were put together.
      op: The operation, or the commonest of several.
      start_us: From the start of the step.
      duration_us: How long the stream is busy with it.
      exposed_us: How long the compute stream waits for it; 0 for compute itself.
      times: Runs of a loop's body that were put together.

    Example:
      >>> import revremat as rr
      >>> span = rr.Span("compute", "forward", "layer", "dot", 0.0, 5.0, times=24)
      >>> span.start_us + span.duration_us
      5.0
    """

    stream: str
    phase: str
    scope: str
    op: str
    start_us: float
    duration_us: float
    exposed_us: float = 0.0
    times: int = 1
