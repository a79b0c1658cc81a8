"""Buffers on several streams whose clocks meet only where one waits for another."""

import heapq
import itertools
import os
from collections.abc import Sequence
from dataclasses import dataclass

from revremat._errors import UserError
from revremat.allocation._csv import parse_integer, read_rows
from revremat.allocation._problem import AllocationProblem
from revremat.allocation._safety import Operator, Tensor, safe_problem

_NEEDED = ("stream", "step", "after_stream", "after_step")
_OPTIONAL = ("reads",)


@dataclass(frozen=True)
class Wait:
    """A step of one stream that begins only when a step of another has finished.

    Attributes:
      stream, step: What waits.
      after_stream, after_step: What it waits for.
      reads: Buffers that the waiting step reads although they live on other streams.

    Example:
      >>> from revremat.allocation import Wait
      >>> Wait("copies", 0, after_stream="main", after_step=3).after_step
      3
    """

    stream: str
    step: int
    after_stream: str
    after_step: int
    reads: tuple[str, ...] = ()


def read_waits(path: str | os.PathLike) -> tuple[Wait, ...]:
    """Reads waits from a CSV file.

    Its columns are `stream`, `step`, `after_stream`, `after_step` and optionally
    `reads`, ids separated by spaces.

    Args:
      path: The file.

    Raises:
      UserError: What cannot be read; the message names the line.

    Example:
      >>> import os, tempfile
      >>> from revremat.allocation import read_waits
      >>> path = os.path.join(tempfile.mkdtemp(), "waits.csv")
      >>> with open(path, "w") as file:
      ...     print("stream,step,after_stream,after_step", file=file)
      ...     print("copies,0,main,3", file=file)
      >>> read_waits(path)[0].after_stream
      'main'
    """
    waits = []
    for line, row in read_rows(path, "dependencies", _NEEDED, _OPTIONAL, {}):
        where = f"{path}, line {line}"
        waits.append(
            Wait(
                row["stream"],
                parse_integer(row["step"], "step", where),
                row["after_stream"],
                parse_integer(row["after_step"], "after_step", where),
                tuple(row.get("reads", "").split()),
            )
        )
    return tuple(waits)


def join_streams(
    problem: AllocationProblem, waits: Sequence[Wait]
) -> AllocationProblem:
    """The problem in one order, with the pairs that parallel streams keep apart.

    Each buffer's `lower` and `upper` count steps of its own stream: it is written in
    step `lower` and last used there in step `upper - 1`. Steps of different streams are
    in no order but for the waits. With one stream and no waits the problem is
    returned as it is.

    Args:
      problem: Its buffers name their streams.
      waits: Which steps wait for which.

    Raises:
      UserError: A wait for an unknown stream or buffer, or waits that go in a circle.

    Example:
      >>> from revremat.allocation import AllocationProblem, Buffer, Wait, join_streams
      >>> a = Buffer("a", 0, 1, 4, stream="main")
      >>> b = Buffer("b", 0, 1, 4, stream="copies")
      >>> problem = AllocationProblem((a, b))
      >>> join_streams(problem, []).relation.conflicts(0, 1)  # they run side by side
      True
    """
    streams = sorted({b.stream for b in problem.buffers})
    if len(streams) <= 1 and not waits:
        return problem
    reads: dict[tuple[str, int], list[str]] = {}
    writes: dict[tuple[str, int], list[str]] = {}
    after: dict[tuple[str, int], list[tuple[str, int]]] = {}
    points: set[tuple[str, int]] = set()
    for b in problem.buffers:
        writes.setdefault((b.stream, b.lower), []).append(b.id)
        reads.setdefault((b.stream, b.upper - 1), []).append(b.id)
        points |= {(b.stream, b.lower), (b.stream, b.upper - 1)}
    for wait in waits:
        for stream in (wait.stream, wait.after_stream):
            if stream not in streams:
                raise UserError(
                    f"the dependencies name a stream {stream!r} but the buffers are on "
                    f"{', '.join(map(repr, streams))}"
                )
        here, there = (wait.stream, wait.step), (wait.after_stream, wait.after_step)
        after.setdefault(here, []).append(there)
        points |= {here, there}
        for id in wait.reads:
            if id not in problem.index:
                raise UserError(
                    f"step {wait.step} of stream {wait.stream!r} reads {id!r} but "
                    "there is no buffer of that id"
                )
            reads.setdefault(here, []).append(id)
            b = problem.buffers[problem.index[id]]
            after[here].append((b.stream, b.lower))
    order = _sorted_points(points, after)
    operators = [
        Operator(
            f"{stream}@{step}",
            stream,
            # What a step both writes and last uses is no input of it.
            tuple(
                id
                for id in reads.get((stream, step), ())
                if id not in writes.get((stream, step), ())
            ),
            tuple(writes.get((stream, step), ())),
            tuple(f"{s}@{t}" for s, t in after.get((stream, step), ())),
        )
        for stream, step in order
    ]
    tensors = [
        Tensor(b.id, b.size_bytes, b.alignment_bytes, b.group) for b in problem.buffers
    ]
    return safe_problem(operators, tensors)


def _sorted_points(points, after):
    """Steps in an order in which they could run one by one; earliest steps first."""
    waiting = {point: 0 for point in points}
    followers: dict[tuple[str, int], list[tuple[str, int]]] = {}
    in_stream = sorted(points)
    edges = [(a, b) for a, b in itertools.pairwise(in_stream) if a[0] == b[0]]
    edges += [(there, here) for here, theres in after.items() for there in theres]
    for before, behind in edges:
        followers.setdefault(before, []).append(behind)
        waiting[behind] += 1
    ready = [(step, stream) for (stream, step), n in waiting.items() if n == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        step, stream = heapq.heappop(ready)
        order.append((stream, step))
        for point in followers.get((stream, step), ()):
            waiting[point] -= 1
            if waiting[point] == 0:
                heapq.heappush(ready, (point[1], point[0]))
    if len(order) < len(points):
        stream, step = min(set(points) - set(order))
        raise UserError(
            f"step {step} of stream {stream!r} waits, through others, for itself; "
            "take one of the dependencies out"
        )
    return order
