"""What is asked of an allocator: buffers, when they live, and what they insist on."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Int

from revremat._errors import UserError
from revremat.allocation._relation import Relation

LARGEST_BYTES = 2**62
"""Sums of sizes stay below this, so that every offset fits a signed 64-bit integer."""


@dataclass(frozen=True)
class Buffer:
    """A block of memory that is needed for a while.

    Attributes:
      id: Its name, unique within a problem.
      lower: The first time step at which it is live.
      upper: The first time step at which it no longer is: the interval is half-open.
      size_bytes: Its size.
      alignment_bytes: Its offset is a multiple of this.
      group: Buffers that name the same group lie back to back in the order in which
        they are listed, as the operands of one collective must. Only the padding that
        a member's alignment asks for may come between.
      stream: The stream whose clock `lower` and `upper` count, where there are several.

    Example:
      >>> from revremat.allocation import Buffer
      >>> buffer = Buffer("a", lower=0, upper=2, size_bytes=4)  # live in steps 0 and 1
      >>> buffer.upper - buffer.lower
      2
    """

    id: str
    lower: int
    upper: int
    size_bytes: int
    alignment_bytes: int = 1
    group: str = ""
    stream: str = ""

    def __post_init__(self):
        if self.upper <= self.lower:
            raise UserError(
                f"buffer {self.id!r} ends at {self.upper} but starts at {self.lower}; "
                f"`upper` is exclusive, so it must be at least {self.lower + 1}"
            )
        if self.size_bytes < 0:
            raise UserError(
                f"buffer {self.id!r} has a size of {self.size_bytes} bytes; "
                "a size is zero or more"
            )
        if self.alignment_bytes < 1:
            raise UserError(
                f"buffer {self.id!r} has an alignment of {self.alignment_bytes} bytes; "
                "an alignment is 1 or more"
            )
        for value in (self.lower, self.upper, self.size_bytes, self.alignment_bytes):
            if not -LARGEST_BYTES < value < LARGEST_BYTES:
                raise UserError(
                    f"buffer {self.id!r} holds the number {value}; "
                    "numbers must stay below 2**62 in magnitude"
                )


@dataclass(frozen=True)
class AllocationProblem:
    """Buffers to place in one region of memory.

    Two buffers may overlap in memory only if their lifetimes do not overlap in time
    and, where there is a relation, the relation does not forbid it either.

    Attributes:
      buffers: What is to be placed.
      relation: Pairs that must not share memory although their lifetimes would let
        them, as when streams run in parallel. None: lifetimes decide.
      in_place: Tuples of ids that must have the same offset, such as an operator's
        output that overwrites its input. Overlap among them is wanted.

    Raises:
      UserError: Ids that repeat or are not there, sizes that overflow, a relation of
        another size, or a buffer that is both in a group and in place.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, allocate
      >>> problem = AllocationProblem((Buffer("a", 0, 2, 4), Buffer("b", 1, 3, 8),
      ...                              Buffer("c", 2, 4, 4)))
      >>> allocate(problem).makespan_bytes
      12
    """

    buffers: tuple[Buffer, ...]
    relation: Relation | None = None
    in_place: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "buffers", tuple(self.buffers))
        seen: set[str] = set()
        for buffer in self.buffers:
            if buffer.id in seen:
                raise UserError(
                    f"the id {buffer.id!r} appears twice; give each buffer its own"
                )
            seen.add(buffer.id)
        total = sum(b.size_bytes + b.alignment_bytes - 1 for b in self.buffers)
        if total >= LARGEST_BYTES:
            raise UserError(
                f"the sizes add up to {total} bytes; their sum must stay below 2**62"
            )
        if self.relation is not None and self.relation.count != len(self.buffers):
            raise UserError(
                f"the relation is about {self.relation.count} buffers but "
                f"{len(self.buffers)} are given; they must be the same, in one order"
            )
        paired: set[str] = set()
        for ids in self.in_place:
            for id in ids:
                if id not in seen:
                    raise UserError(
                        f"{id!r} is to be placed over another buffer but there is no "
                        "buffer of that id"
                    )
                if id in paired:
                    raise UserError(
                        f"{id!r} is in two in-place tuples; write them as one"
                    )
                paired.add(id)
        for buffer in self.buffers:
            if buffer.group and buffer.id in paired:
                raise UserError(
                    f"buffer {buffer.id!r} is both in group {buffer.group!r} and "
                    "in place; it can be only one of the two"
                )

    @cached_property
    def lower(self) -> Int[np.ndarray, " n"]:
        """First live step of each buffer, `int64[n]`."""
        return np.array([b.lower for b in self.buffers], np.int64)

    @cached_property
    def upper(self) -> Int[np.ndarray, " n"]:
        """First step at which each buffer is dead again, `int64[n]`."""
        return np.array([b.upper for b in self.buffers], np.int64)

    @cached_property
    def sizes_bytes(self) -> Int[np.ndarray, " n"]:
        """Size of each buffer, `int64[n]`."""
        return np.array([b.size_bytes for b in self.buffers], np.int64)

    @cached_property
    def alignments_bytes(self) -> Int[np.ndarray, " n"]:
        """Alignment of each buffer, `int64[n]`."""
        return np.array([b.alignment_bytes for b in self.buffers], np.int64)

    @cached_property
    def index(self) -> dict[str, int]:
        """Where each id stands among the buffers."""
        return {b.id: i for i, b in enumerate(self.buffers)}

    @cached_property
    def groups(self) -> dict[str, tuple[int, ...]]:
        """Positions of the members of each group, in the order they were listed."""
        members: dict[str, list[int]] = {}
        for i, buffer in enumerate(self.buffers):
            if buffer.group:
                members.setdefault(buffer.group, []).append(i)
        return {name: tuple(of) for name, of in members.items()}
