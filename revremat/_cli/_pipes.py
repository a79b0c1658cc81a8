"""Readers of what a command prints, which may go away before it ends."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def readers_may_leave() -> Iterator[None]:
    """Within it, what is written to a reader that has gone is lost, and is no error.

    So `revremat report ... | head` ends as it would have, with the same exit code.
    """
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(_Patient, streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


class _Patient:
    """A stream of text; from the first error on, it leads nowhere."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        with self._patiently():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._patiently():
            self._stream.flush()

    @contextlib.contextmanager
    def _patiently(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            # What is still in its buffer is written when the process ends, to nobody.
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
