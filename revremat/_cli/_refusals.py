"""What the parser of the command line refuses, as one sentence."""

import contextlib
import io
import os
import re
from collections.abc import Iterator, Sequence

from revremat._errors import UserError

_BORDERS = re.compile(r"\x1b\[[0-9;]*m|[│╭╮╰╯]")
_RULE = re.compile(r"\s*[-─]{3,}\s*")
_UNBROKEN = "10000"
"""Of a terminal so wide that the parser breaks no line of its message."""


@contextlib.contextmanager
def refusals_are_sentences(words: Sequence[str]) -> Iterator[None]:
    """While the parser reads the words of a command line.

    Raises:
      UserError: The parser refused them; its message in a box becomes a sentence.
    """
    told = io.StringIO()
    asks_for_help = {"-h", "--help"} & set(words)
    columns = contextlib.nullcontext() if asks_for_help else _columns(_UNBROKEN)
    try:
        with columns, contextlib.redirect_stderr(told):
            yield
    except SystemExit as ending:
        if not ending.code:
            raise
        raise UserError(refusal(told.getvalue(), words)) from None


def refusal(text: str, words: Sequence[str]) -> str:
    """A sentence from the parser's message and the words that it could not read.

    >>> refusal(
    ...     "Unrecognized options\\n---\\nUnrecognized options: --budjet, 3\\n---\\n"
    ...     "Perhaps you meant:\\n    --budget BYTES\\n        What it stays within.",
    ...     ["search", "--budjet", "3"],
    ... )
    "unrecognized options: --budjet, 3; perhaps --budget: see 'revremat search --help'"
    """
    parts = _parts(text)
    message = parts[1] if len(parts) > 1 else parts[0]
    hint = ""
    for title, *lines in parts[2:]:
        if title.startswith("Available subcommands: "):
            hint = f"; the commands are {title.partition(': ')[2]}"
        elif title == "Perhaps you meant:":
            hint = f"; perhaps {lines[0].split()[0]}"
    command = "" if words[0].startswith("-") else f"{words[0]} "
    asked = f"revremat {command}--help"
    return f"{_told(message)}{hint}: see '{asked}'"


def _told(message: list[str]) -> str:
    """The lines of a message as one; of what is missing, only the names."""
    first, *others = message
    if match := re.fullmatch(r"Missing from revremat (\w+):", first):
        names = [line for line in others if re.fullmatch(r"--[\w-]+|[A-Z]+", line)]
        return f"{match[1]} needs {' and '.join(names)}"
    joined = " ".join(message).rstrip(".").removesuffix(". Expected 1 values")
    joined = joined.removeprefix("Error parsing ")
    joined = re.sub(r"(?<=argument )'[a-z]+'", lambda name: name[0].upper(), joined)
    return joined[:1].lower() + joined[1:]


def _parts(text: str) -> list[list[str]]:
    """The lines between the rules of a box; the title is the first part."""
    lines = [_BORDERS.sub("", line).strip() for line in text.splitlines()]
    if lines and (title := re.fullmatch(r"─+ (.*?) ─+", lines[0])):
        lines[:1] = [title[1], "---"]
    parts: list[list[str]] = [[]]
    for line in filter(None, lines):
        if not _RULE.fullmatch(line):
            parts[-1].append(line)
        elif parts[-1]:
            parts.append([])
    return [part for part in parts if part] or [["this cannot be read"]]


@contextlib.contextmanager
def _columns(number: str) -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = number
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
