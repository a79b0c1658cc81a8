"""Allocate: the choice among solvers by size, and the answer with its proof."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from revremat._errors import UserError
from revremat.allocation import _core, _disjunctive, _greedy, _rectangles
from revremat.allocation._blocks import (
    Blocks,
    covering_rectangles,
    taken_apart,
    to_blocks,
)
from revremat.allocation._problem import AllocationProblem
from revremat.allocation._search import FAILED, LIMIT, SOLVED
from revremat.allocation._sections import Section, lower_bound
from revremat.allocation._solution import Allocation, Answer, Infeasible, Undecided
from revremat.allocation._validate import validate

_FILLINGS = 24
_LARGE_FILLINGS = 1 << 20
_NOTHING_BYTES = 1 << 62
_FIRST_NODES, _ALL_NODES = 20_000, 1 << 40
_COVER_SECONDS = 2.0
_SMALL_ROUNDS = 300
_CORE_BLOCKS = 500
"""Below this many, the exact search of everything is quick enough."""

_CORE_ROUNDS, _LARGE_CORE_ROUNDS = 2, 6


@dataclass(frozen=True)
class Progress:
    """How far a long allocation has come.

    Attributes:
      best_bytes: The smallest makespan found so far.
      bound_bytes: What has been proved to be needed.
      seconds: Since it began.
      nodes: How many nodes the search has opened.

    Example:
      >>> from revremat.allocation import Progress
      >>> Progress(best_bytes=12, bound_bytes=10, seconds=0.5, nodes=100).best_bytes
      12
    """

    best_bytes: int
    bound_bytes: int
    seconds: float
    nodes: int


def allocate(
    problem: AllocationProblem,
    capacity_bytes: int | None = None,
    *,
    seconds: float = 60.0,
    progress: Callable[[Progress], None] | None = None,
) -> Answer:
    """Places every buffer, in as little memory as can be found or within a capacity.

    Fast fillings and greedy orders come first. What they leave open goes to an exact
    search, which ends with a packing, with a proof, or when time is up. Every answer
    with offsets has been judged by `validate`. The answer does not depend on the order
    in which buffers are listed (members of a group excepted), nor on their ids where
    they differ in anything else.

    Args:
      problem: What to place.
      capacity_bytes: Fit into this. None: take as little as possible.
      seconds: How long to search. The fast part is always done.
      progress: Called now and then while the search runs.

    Returns:
      `Allocation`, `Infeasible` (a section or an exhausted search proves it), or, only
      for a capacity, `Undecided`. Without a capacity the allocation says whether it is
      proved `optimal`.

    Raises:
      UserError: A capacity below zero.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, allocate
      >>> problem = AllocationProblem((Buffer("a", 0, 2, 4), Buffer("b", 1, 3, 8)))
      >>> allocate(problem).offsets_bytes
      (8, 0)
      >>> print(allocate(problem, capacity_bytes=10))
      the buffers do not fit into 10 bytes: 2 buffers (a, b) are live at time 1 and \
take 12 bytes
    """
    if capacity_bytes is not None and capacity_bytes < 0:
        raise UserError(
            f"a capacity of {capacity_bytes} bytes is given; it must be zero or more"
        )
    run = _Run(problem, capacity_bytes, seconds, progress)
    return run.answer()


class _Run:
    """One call of `allocate`: the best so far, the bound so far, and the clock."""

    def __init__(self, problem, capacity_bytes, seconds, progress):
        self.started = time.monotonic()
        self.deadline = self.started + seconds
        self.problem: AllocationProblem = problem
        self.capacity_bytes: int | None = capacity_bytes
        self.progress = progress
        self.section: Section = lower_bound(problem)
        self.blocks: Blocks = to_blocks(problem)
        self.proved_bytes = self.section.size_bytes
        self.makespan_bytes = _NOTHING_BYTES
        self.placed, self.base = self.blocks, np.zeros(0, np.int64)
        self.solver = ""
        self.nodes = 0
        self.reported = self.started

    @property
    def target_bytes(self) -> int:
        """Nothing below this is of use."""
        if self.capacity_bytes is not None:
            return self.capacity_bytes
        return self.proved_bytes

    @property
    def done(self) -> bool:
        return self.makespan_bytes <= self.target_bytes

    @property
    def ruled_out(self) -> bool:
        """Whether the capacity is proved too small."""
        return self.capacity_bytes is not None and (
            self.proved_bytes > self.capacity_bytes
        )

    def offer(
        self,
        makespan_bytes: int,
        base: Int[np.ndarray, " blocks"],
        solver: str,
        placed: Blocks | None = None,
    ) -> None:
        """Keeps a placement of `placed`, else `self.blocks`, if it is the best."""
        if makespan_bytes < self.makespan_bytes:
            self.makespan_bytes, self.base, self.solver = makespan_bytes, base, solver
            self.placed = self.blocks if placed is None else placed

    def report(self) -> None:
        """Tells the caller, at most ten times a second."""
        now = time.monotonic()
        if self.progress is None or now < self.reported + 0.1:
            return
        self.reported = now
        best = self.makespan_bytes
        self.progress(Progress(best, self.proved_bytes, now - self.started, self.nodes))

    def answer(self) -> Answer:
        if self.ruled_out:
            return self.infeasible()
        if self.blocks.count == 0:
            self.offer(0, self.base, "nothing to place")
            return self.allocation()
        rectangles = _rectangles.Rectangles.of(self.blocks)
        if rectangles is not None:
            self.fill(rectangles, _FILLINGS)
        else:
            self.cover()
        if not self.done and (rectangles is None or rectangles.searchable):
            self.greedy()
        if (
            not self.done
            and rectangles is not None
            and self.blocks.count >= _CORE_BLOCKS
        ):
            self.concentrate(rectangles)
            if self.ruled_out:
                return self.infeasible()
            if not self.done and not rectangles.searchable:
                self.fill(rectangles, _LARGE_FILLINGS)
        if not self.done and rectangles is not None and rectangles.searchable:
            if self.search(rectangles) == FAILED:
                return self.infeasible()
        elif not self.done and rectangles is None and self.branch() == FAILED:
            return self.infeasible()
        if self.capacity_bytes is None or self.done:
            return self.allocation()
        return Undecided(self.capacity_bytes, self.allocation())

    def fill(self, rectangles: _rectangles.Rectangles, tries: int) -> None:
        makespan, offsets = rectangles.filled(
            self.target_bytes, tries, self.deadline, self.filled
        )
        self.offer(makespan, rectangles.base(offsets), "valley filling")

    def filled(self, makespan_bytes: int) -> None:
        """Tells of a better filling; the last of them is offered whole."""
        if self.progress is not None:
            seconds = time.monotonic() - self.started
            self.progress(Progress(makespan_bytes, self.proved_bytes, seconds, 0))

    def concentrate(self, rectangles: _rectangles.Rectangles) -> None:
        """Packs the fullest sections first; large problems have nothing else left."""

        def keep(offsets: Int[np.ndarray, " blocks"] | None, least_bytes: int) -> bool:
            self.nodes = rectangles.nodes
            self.proved_bytes = max(self.proved_bytes, least_bytes)
            if offsets is not None:
                makespan = rectangles.makespan_bytes(offsets)
                self.offer(makespan, rectangles.base(offsets), "core first")
            self.report()
            return self.ruled_out

        _core.concentrate(
            rectangles,
            self.target_bytes,
            self.makespan_bytes,
            self.deadline,
            _CORE_ROUNDS if rectangles.searchable else _LARGE_CORE_ROUNDS,
            keep,
        )

    def cover(self) -> None:
        """Packs rectangles around blocks of other shapes: quick, but never a proof."""
        covering = covering_rectangles(self.blocks)
        rectangles = _rectangles.Rectangles.of(covering) if covering else None
        if rectangles is None:
            return
        self.fill(rectangles, _FILLINGS)
        if not self.done and rectangles.searchable:
            share = min(_COVER_SECONDS, (self.deadline - time.monotonic()) / 4)
            _, offsets = _rectangles.pack(
                rectangles, self.target_bytes, time.monotonic() + share, self.report
            )
            self.keep(rectangles, offsets)

    def greedy(self) -> None:
        """Greedy orders; for blocks of other shapes than rectangles, better ones."""
        best, best_order = _NOTHING_BYTES, np.arange(self.blocks.count)
        for found in _greedy.portfolio(self.blocks, self.target_bytes):
            best, base, name, best_order = found
            self.offer(best, base, name)
            self.report()
            if self.done or time.monotonic() > self.deadline:
                return
        if _rectangles.Rectangles.of(self.blocks) is not None:
            return
        # What is small enough goes on to the exact search soon.
        small = _disjunctive.Pairs.of(self.blocks) is not None
        rounds = itertools.count() if not small else range(_SMALL_ROUNDS)
        gains = _greedy.reorder(self.blocks, best_order, best, self.target_bytes)
        for _, gain in zip(rounds, gains, strict=False):
            if gain is not None:
                self.offer(gain[0], gain[1], "greedy, reordered")
            self.report()
            if time.monotonic() > self.deadline:
                return

    def keep(
        self,
        rectangles: _rectangles.Rectangles,
        offsets: Int[np.ndarray, " blocks"] | None,
    ) -> None:
        """Takes what an attempt of the exact search came to."""
        self.nodes = rectangles.nodes
        if offsets is not None:
            makespan = rectangles.makespan_bytes(offsets)
            self.offer(makespan, rectangles.base(offsets), "valley search")
        self.report()

    def search(self, rectangles: _rectangles.Rectangles) -> int:
        """Exact search on rectangles."""

        def keep_best(
            offsets: Int[np.ndarray, " blocks"] | None, least_bytes: int
        ) -> None:
            self.proved_bytes = max(self.proved_bytes, least_bytes)
            self.keep(rectangles, offsets)

        if self.capacity_bytes is None:
            _rectangles.tighten(
                rectangles,
                self.proved_bytes,
                self.makespan_bytes,
                self.deadline,
                keep_best,
            )
            return SOLVED
        status, offsets = _rectangles.pack(
            rectangles,
            self.capacity_bytes,
            self.deadline,
            lambda: self.keep(rectangles, None),
        )
        self.keep(rectangles, offsets)
        return status

    def branch(self) -> int:
        """Exact search on blocks of any shape, from the best makespan downwards."""
        # What is exhausted here is a proof, so no legal packing may be missing.
        blocks = taken_apart(self.problem, self.blocks)
        pairs = _disjunctive.Pairs.of(blocks)
        if pairs is None:
            return LIMIT

        def out_of_time() -> bool:
            self.report()
            return time.monotonic() > self.deadline

        # The bound first: it is often enough, and then nothing else is needed.
        goals = [(self.target_bytes, _FIRST_NODES), (self.target_bytes, _ALL_NODES)]
        if self.capacity_bytes is None:
            goals = [goals[0]]
        while not self.done and not out_of_time():
            capacity, nodes = goals.pop(0) if goals else (None, _ALL_NODES)
            if capacity is None:
                if self.capacity_bytes is not None:
                    return LIMIT
                capacity = self.makespan_bytes - 1
            status, base, opened = _disjunctive.pack(
                pairs, blocks, capacity, nodes, out_of_time
            )
            self.nodes += opened
            if status == SOLVED:
                self.offer(blocks.makespan(base), base, "search over pairs", blocks)
            elif status == FAILED:
                if self.capacity_bytes is not None:
                    return FAILED
                self.proved_bytes = max(self.proved_bytes, capacity + 1)
            elif nodes == _ALL_NODES:
                return LIMIT
        return SOLVED

    def infeasible(self) -> Infeasible:
        seconds = time.monotonic() - self.started
        return Infeasible(self.target_bytes, self.section, self.nodes, seconds)

    def allocation(self) -> Allocation:
        offsets = self.placed.offsets(self.problem, self.base)
        makespan = validate(self.problem, offsets)
        optimal = makespan <= max(self.proved_bytes, self.section.size_bytes)
        seconds = time.monotonic() - self.started
        return Allocation(
            offsets, makespan, self.section, optimal, self.solver, seconds
        )
