"""A solver's own lines kept out of standard output."""

import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Iterator

_STDOUT = 1
_TURN = threading.RLock()
"""There is one standard output: of two threads, the second waits for the first."""


@contextlib.contextmanager
def without_lines(beginning: bytes) -> Iterator[None]:
    """Take such lines out of what the process prints meanwhile.

    What C++ prints does not pass through `sys.stdout`, so the descriptor itself leads
    to a file for as long; all other lines are printed afterwards.

    Args:
      beginning: Of the lines that are left out.
    """
    with _TURN:
        yield from _without_lines(beginning)


def _without_lines(beginning: bytes) -> Iterator[None]:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
    try:
        before = os.dup(_STDOUT)
    except OSError:  # standard output is closed
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), _STDOUT)
        try:
            yield
        finally:
            with contextlib.suppress(OSError, ValueError, AttributeError):
                sys.stdout.flush()
            os.dup2(before, _STDOUT)
            os.close(before)
            held.seek(0)
            rest = b"".join(line for line in held if not line.startswith(beginning))
            with contextlib.suppress(OSError):
                while rest:  # a pipe takes what it has room for
                    rest = rest[os.write(_STDOUT, rest) :]
