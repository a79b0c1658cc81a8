"""What an allocator answers: offsets, a proof that there are none, or neither."""

from dataclasses import dataclass

from revremat.allocation._sections import Section


@dataclass(frozen=True)
class Allocation:
    """An offset for every buffer.

    Attributes:
      offsets_bytes: One offset for each buffer, in the order of the problem.
      makespan_bytes: The end of the buffer that reaches highest.
      bound: A section that proves how little memory could do.
      optimal: Whether it is proved that no allocation takes less.
      solver: What found it.
      seconds: How long that took.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, allocate
      >>> problem = AllocationProblem((Buffer("a", 0, 2, 4), Buffer("b", 2, 3, 8)))
      >>> answer = allocate(problem)
      >>> answer.makespan_bytes, answer.optimal
      (8, True)
    """

    offsets_bytes: tuple[int, ...]
    makespan_bytes: int
    bound: Section
    optimal: bool
    solver: str
    seconds: float

    @property
    def excess(self) -> float:
        """How far the makespan is above the lower bound, as a fraction of it."""
        if self.bound.size_bytes == 0:
            return 0.0
        return self.makespan_bytes / self.bound.size_bytes - 1.0


@dataclass(frozen=True)
class Infeasible:
    """A proof that the buffers do not fit.

    Attributes:
      capacity_bytes: What they do not fit into.
      bound: The section with the largest bound. It is the certificate where its bytes
        exceed the capacity; else the search was exhausted.
      nodes: How many nodes the exhausted search opened; 0 where the section is enough.
      seconds: How long that took.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, allocate
      >>> problem = AllocationProblem((Buffer("a", 0, 2, 4), Buffer("b", 1, 3, 8)))
      >>> answer = allocate(problem, capacity_bytes=10)
      >>> type(answer).__name__, answer.bound.size_bytes
      ('Infeasible', 12)
    """

    capacity_bytes: int
    bound: Section
    nodes: int
    seconds: float

    def __str__(self) -> str:
        if self.bound.size_bytes > self.capacity_bytes:
            return (
                f"the buffers do not fit into {self.capacity_bytes} bytes: {self.bound}"
            )
        return (
            f"the buffers do not fit into {self.capacity_bytes} bytes: an exhaustive "
            f"search of {self.nodes} nodes found no assignment of offsets (the "
            "largest section alone "
            f"takes {self.bound.size_bytes} bytes)"
        )


@dataclass(frozen=True)
class Undecided:
    """Time ran out before the buffers were packed or proved not to fit.

    Attributes:
      capacity_bytes: What they were to fit into.
      best: The smallest allocation found, which takes more than the capacity.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, Undecided, allocate
      >>> best = allocate(AllocationProblem((Buffer("a", 0, 2, 4),)))
      >>> Undecided(capacity_bytes=3, best=best).best.makespan_bytes
      4
    """

    capacity_bytes: int
    best: Allocation

    def __str__(self) -> str:
        return (
            f"no assignment of offsets within {self.capacity_bytes} bytes was found in "
            f"{self.best.seconds:.1f} s and none was ruled out; the smallest found "
            f"takes {self.best.makespan_bytes} bytes"
        )


Answer = Allocation | Infeasible | Undecided
