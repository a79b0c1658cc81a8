"""The command line: which command was written, and its exit code."""

import contextlib
import functools
import operator
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from revremat._cli._allocate import Allocate
from revremat._cli._diff import Diff
from revremat._cli._exit import FAILED, MISTAKE
from revremat._cli._export import Export
from revremat._cli._pipes import readers_may_leave
from revremat._cli._program import ProgramError
from revremat._cli._refusals import refusals_are_sentences
from revremat._cli._report import Report
from revremat._cli._search import Compare, Search
from revremat._cli._targets import Targets
from revremat._errors import UserError
from revremat._printable import say
from revremat._version import installed_version

_ABOUT = """Reversible networks and rematerialization for JAX.

PROGRAM, in every command: `package.module:problem` or `file.py:problem`, a function
`problem(target)` that returns `revremat.Problem(loss=..., specs=(...))`. Begin with
`revremat report PROGRAM --target h100:8`. `revremat --version` prints the version."""


_XLA_LOG_LEVEL = "2"
"""Errors only: XLA warns, line by line, of programs that a search only tries."""

_KINDS: dict[str, Any] = {
    "report": Report,
    "diff": Diff,
    "search": Search,
    "compare": Compare,
    "export": Export,
    "targets": Targets,
    "allocate": Allocate,
}
_COMMANDS: Any = functools.reduce(
    operator.or_,
    [Annotated[kind, tyro.conf.subcommand(name)] for name, kind in _KINDS.items()],
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
      The exit code: 0, 1 when a check failed or the user's program raised, 2 for a
      mistake in what was written.
    """
    with readers_may_leave():
        return _main(list(sys.argv[1:] if arguments is None else arguments))


def _main(words: list[str]) -> int:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", _XLA_LOG_LEVEL)
    if words == ["--version"]:
        print(f"revremat {installed_version()}")
        return 0
    if not words:  # how to begin says more than that a command is missing
        with contextlib.suppress(SystemExit):
            _main(["--help"])
        return MISTAKE
    try:
        if words[0] not in _KINDS and not words[0].startswith("-"):
            raise UserError(
                f"there is no command {words[0]!r}: write one of {', '.join(_KINDS)}"
            )
        with refusals_are_sentences(words):
            command: Any = tyro.cli(
                _COMMANDS, prog="revremat", description=_ABOUT, args=words
            )
        code = command.run()
        sys.stdout.flush()
        return code
    except UserError as error:
        say(f"revremat: {error}", error=True)
        return FAILED if isinstance(error, ProgramError) else MISTAKE
    except KeyboardInterrupt:
        print("revremat: interrupted", file=sys.stderr)
        return 130
