"""What options of several commands take, under the names that `--help` shows."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

Program = Annotated[str, Positional, arg(metavar="PROGRAM")]
TargetName = Annotated[str, arg(metavar="TARGET")]
TargetNames = Annotated[tuple[str, ...], arg(metavar="TARGET")]
Overrides = Annotated[tuple[str, ...], arg(metavar="NAME=VALUE")]
Rules = Annotated[tuple[str, ...], arg(metavar="CATEGORY=REGEX")]
Budget = Annotated[str, arg(metavar="BYTES", help_behavior_hint="")]
Budgets = Annotated[tuple[str, ...], arg(metavar="BYTES")]
OptionalFile = Annotated[Path | None, arg(metavar="FILE", help_behavior_hint="")]
OptionalCount = Annotated[int | None, arg(metavar="N", help_behavior_hint="")]
OptionalWord = Annotated[str, arg(metavar="NAME", help_behavior_hint="")]
