"""Sequential schedules with asynchronous parts, as operators on streams."""

from collections.abc import Iterable
from dataclasses import dataclass

from revremat._errors import UserError
from revremat.allocation._safety import Operator

MAIN = "main"


@dataclass(frozen=True)
class Scheduled:
    """One instruction of a sequential schedule, as a compiler emits it.

    Attributes:
      id: Its name.
      reads: Buffers it reads.
      writes: Buffers it writes.
      starts: The stream on which its work goes on after it was issued; empty for an
        instruction that is done when the next one begins. An `all-gather-start` has one
        here, or a copy to the host.
      finishes: Ids of started instructions that it waits for, as an `all-gather-done`
        does.
      in_place: Pairs `(read, written)` that share one place.

    Example:
      >>> from revremat.allocation import Scheduled
      >>> Scheduled("gather", reads=("w",), starts="collectives").starts
      'collectives'
    """

    id: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    starts: str = ""
    finishes: tuple[str, ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()


def split_streams(schedule: Iterable[Scheduled]) -> tuple[Operator, ...]:
    """Moves asynchronous work from a sequential schedule to streams of its own.

    What is started may run from when it was issued until it is waited for, so its
    buffers are in use for as long; work on one stream runs in the order of issue.

    Args:
      schedule: Instructions in the order in which they are issued.

    Returns:
      Operators in an order in which they could run one by one.

    Raises:
      UserError: An instruction that waits for one that was not started before it.

    Example:
      >>> from revremat.allocation import Scheduled, split_streams
      >>> for op in split_streams([
      ...     Scheduled("gather-start", ("shard",), ("whole",), starts="collectives"),
      ...     Scheduled("matmul", ("a",), ("b",)),
      ...     Scheduled("gather-done", finishes=("gather-start",)),
      ... ]):
      ...     print(op.stream, op.id, op.after)
      main gather-start ()
      collectives gather-start/run ('gather-start',)
      main matmul ()
      main gather-done ('gather-start/run',)
    """
    operators: list[Operator] = []
    running: set[str] = set()
    for step in schedule:
        after = []
        for name in step.finishes:
            if name not in running:
                raise UserError(
                    f"{step.id!r} waits for {name!r}, which was not started before it"
                )
            after.append(f"{name}/run")
        if not step.starts:
            operators.append(
                Operator(
                    step.id, MAIN, step.reads, step.writes, tuple(after), step.in_place
                )
            )
            continue
        if step.starts == MAIN:
            raise UserError(
                f"{step.id!r} starts work on the stream {MAIN!r}, which issues it; "
                "name another stream"
            )
        operators.append(Operator(step.id, MAIN, after=tuple(after)))
        operators.append(
            Operator(
                f"{step.id}/run",
                step.starts,
                step.reads,
                step.writes,
                (step.id,),
                step.in_place,
            )
        )
        running.add(step.id)
    return tuple(operators)
