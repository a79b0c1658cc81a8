"""Runs the commands that the README shows, and compares what they print.

    python tools/readme.py          # exit code 1 where the README shows something else
    python tools/readme.py --write  # puts in what they print now

A command stands after `$` in a block of its own. The line above the block names the JAX
that printed it. With that version every character must be equal. Another version's
compiler may choose otherwise: there the command must run, and the lines before its
first table must have the same words; figures are not compared.
"""

import contextlib
import io
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import jax

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
_BLOCK = re.compile(
    r"Printed with jax (?P<version>\S+), checked by `python tools/readme.py`:\n\n"
    r"```\n\$ (?P<command>[^\n]+)\n(?P<output>.*?)```",
    re.DOTALL,
)
_FIGURE = re.compile(r"\d[\d.,]*( (B|KiB|MiB|GiB|us|ms|s|%))?")


@dataclass(frozen=True)
class Shown:
    """A command in the README.

    Attributes:
      command: As it is typed.
      output: What the README says it prints.
      version: Of the JAX that printed it.
    """

    command: str
    output: str
    version: str


def shown(text: str) -> list[Shown]:
    """Every command whose output a document shows."""
    return [Shown(**found.groupdict()) for found in _BLOCK.finditer(text)]


def unchecked(text: str) -> list[str]:
    """Commands in blocks that nothing checks, and figures outside of blocks."""
    rest = _BLOCK.sub("", text)
    commands = re.findall(r"^\$ .*", rest, re.MULTILINE)
    prose = re.sub(r"```.*?```", "", rest, flags=re.DOTALL)
    return commands + re.findall(r"\d[\d.,]* (?:KiB|MiB|GiB|us|ms|%)(?!\w)", prose)


def printed(command: str) -> str:
    """What a command of revremat prints, run here in the root of the repository.

    Raises:
      RuntimeError: It fails.
    """
    from revremat._cli import main

    program, *words = shlex.split(command)
    if program != "revremat":
        raise RuntimeError(f"{command!r} is no command of revremat")
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(words)
    if code:
        raise RuntimeError(f"{command!r} ended with exit code {code}")
    return out.getvalue()


def difference(one: Shown, output: str, version: str = jax.__version__) -> str:
    """What the README shows otherwise than a command prints it; "" for nothing."""
    expected, found = (text.splitlines() for text in (one.output, output))
    if version != one.version:
        expected, found = _form(expected), _form(found)
    for number in range(max(len(expected), len(found))):
        pair = [
            rows[number] if number < len(rows) else "" for rows in (expected, found)
        ]
        if pair[0] != pair[1]:
            return f"line {number + 1}: README {pair[0]!r}, printed {pair[1]!r}"
    return ""


def _form(lines: list[str]) -> list[str]:
    """Lines before the first empty one, without figures."""
    head = lines[: lines.index("")] if "" in lines else lines
    return [_FIGURE.sub("#", line) for line in head]


def rewritten(text: str) -> str:
    """A document with what its commands print now."""

    def block(found: re.Match[str]) -> str:
        command = found["command"]
        return (
            f"Printed with jax {jax.__version__}, "
            "checked by `python tools/readme.py`:\n\n"
            f"```\n$ {command}\n{printed(command)}```"
        )

    return _BLOCK.sub(block, text)


def main(words: list[str]) -> int:
    """Checks the README, or writes it."""
    text = README.read_text(encoding="utf-8")
    if words == ["--write"]:
        README.write_text(rewritten(text), encoding="utf-8")
        return 0
    if words:
        print(f"unknown argument {words[0]!r}: write --write or nothing")
        return 2
    wrong = [f"nothing checks {one!r}" for one in unchecked(text)]
    for one in shown(text):
        if told := difference(one, printed(one.command)):
            wrong.append(f"{one.command}: {told}")
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
