"""Whose source files are whose."""

import contextlib
import os
import sysconfig
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from revremat import _compat
from revremat._errors import UserError

CALLED_AT = ", called at "
"""In a source line, between a library's and the user's."""


def source_line(op: Any) -> str:
    """`file:line (function)` of the code an operation came from, or ''.

    Where that is a library's, the line of the user's code that called it as well.

    Args:
      op: An operation of a program, with its `eqn` and `scope`.
    """
    found = _compat.source_frames(op.eqn, op.scope)
    frames = list(takewhile(lambda frame: not begins_program(frame[0]), found))
    if not frames:
        return ""
    file, line = frames[0]
    calls = (call for other, call in frames if is_users(other))
    caller = "" if is_users(file) else next(calls, "")
    return f"{line}{CALLED_AT}{caller}" if caller else line


@contextlib.contextmanager
def loops_told(label: str) -> Iterator[None]:
    """While a loss is differentiated: says which loop cannot be.

    Args:
      label: What messages name where JAX does not tell the line.

    Raises:
      UserError: There is a `jax.lax.while_loop` on the way to what is differentiated.
    """
    try:
        yield
    except ValueError as error:
        if "lax.while_loop" not in str(error):
            raise
        lines = (line for file, line in _compat.refused_frames(error) if is_users(file))
        raise UserError(
            f"{next(lines, label)}: a loop without a fixed number of iterations has no "
            "backward pass; write jax.lax.scan, a fori_loop with fixed bounds, or "
            "jax.lax.stop_gradient around what goes into it"
        ) from None


@cache
def is_users(file: str) -> bool:
    """Whether a source file is the user's: not installed, and not revremat's."""
    return not file.startswith(_installed())


_BEGINNINGS = ("xla/compile/_compile.py", "program/_loss.py")


@cache
def begins_program(file: str) -> bool:
    """Whether revremat traces programs there: whoever called it is no part of them."""
    own = Path(__file__).resolve().parent
    return file in [str(own / name) for name in _BEGINNINGS]


@cache
def _installed() -> tuple[str, ...]:
    """How files begin that are no user's."""
    paths = sysconfig.get_paths()
    own = str(Path(__file__).resolve().parent)
    places = {paths[k] for k in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders = (*(str(Path(p).resolve()) for p in places), *places, own)
    return (*(folder + os.sep for folder in folders), "<")
