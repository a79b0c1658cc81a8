"""What options of several commands take, under the names that `--help` shows."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from revremat._format import parse_bytes


def _read_by(read: Callable[[str], Any], wanted: str) -> PrimitiveConstructorSpec[Any]:
    """A constructor whose refusal says what was written and what is wanted."""

    def from_words(words: list[str]) -> Any:
        try:
            return read(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is no {wanted}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="",  # each option names its own
        instance_from_str=from_words,
        is_instance=lambda _: True,
        str_from_instance=lambda value: [str(value)],
    )


def _capacity(text: str) -> int:
    """Bytes with a unit or without."""
    return int(text) if text.lstrip("+-").isdecimal() else parse_bytes(text)


_COUNT = _read_by(int, "whole number")
_NUMBER = _read_by(float, "number")

Program = Annotated[str, Positional, arg(metavar="PROGRAM")]
TargetName = Annotated[str, arg(metavar="TARGET")]
TargetNames = Annotated[tuple[str, ...], arg(metavar="TARGET")]
Overrides = Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")]
Rules = Annotated[tuple[str, ...], arg(metavar="CATEGORY=REGEX")]
Budget = Annotated[str, arg(metavar="BYTES", help_behavior_hint="")]
Budgets = Annotated[tuple[str, ...], arg(metavar="BYTES")]
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalCount = Annotated[int | None, _COUNT, arg(metavar="N", help_behavior_hint="")]
OptionalCapacity = Annotated[
    int | None,
    _read_by(_capacity, "number of bytes such as 4096 or 60GiB"),
    arg(metavar="BYTES", help_behavior_hint=""),
]
Share = Annotated[float, _NUMBER, arg(metavar="SHARE")]
Seconds = Annotated[float, _NUMBER, arg(metavar="S")]
OptionalWord = Annotated[str, arg(metavar="NAME", help_behavior_hint="")]
