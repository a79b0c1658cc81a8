"""A solver's own lines kept out of standard output."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

_STDOUT = 1


@contextlib.contextmanager
def without_lines(beginning: bytes) -> Iterator[None]:
    """Take such lines out of what the process prints meanwhile.

    What C++ prints does not pass through `sys.stdout`, so the descriptor itself leads
    to a file for as long; all other lines are printed afterwards.

    Args:
      beginning: Of the lines that are left out.
    """
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
            rest = [line for line in held if not line.startswith(beginning)]
            with contextlib.suppress(OSError):
                os.write(_STDOUT, b"".join(rest))
