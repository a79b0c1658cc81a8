"""Event loops that do not close on tasks which still wait.

Orbax closes its loops as soon as one read has failed. Reads under way then call
a closed loop, from threads where nobody can catch it, and what is printed there would
stand beside the one sentence a person is told.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from unittest import mock

try:
    import uvloop
except ImportError:  # Orbax does without where there is none.
    uvloop = None

_PATIENCE_S = 10.0


class _EndsItsTasks(asyncio.AbstractEventLoop):
    """Lets its tasks end before it closes, and cancels those that do not."""

    def close(self) -> None:
        if not self.is_closed() and (waiting := asyncio.all_tasks(self)):
            self.run_until_complete(_end(waiting))
        super().close()  # pyright: ignore[reportAbstractUsage]


class _Loop(_EndsItsTasks, asyncio.SelectorEventLoop):
    pass


if uvloop is not None:

    class _UvLoop(_EndsItsTasks, uvloop.Loop):
        pass


async def _end(tasks: set[asyncio.Task]) -> None:
    _, waiting = await asyncio.wait(tasks, timeout=_PATIENCE_S)
    for task in waiting:
        task.cancel()
    # Asked for, lest their errors be told when they are collected.
    await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.contextmanager
def loops_that_end_their_tasks() -> Iterator[None]:
    """All loops made meanwhile are such loops."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(asyncio, "new_event_loop", _Loop))
        if uvloop is not None:
            stack.enter_context(mock.patch.object(uvloop, "new_event_loop", _UvLoop))
        yield
