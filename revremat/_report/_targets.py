"""The devices to compile for, as text."""

from collections.abc import Sequence
from typing import Any

from revremat._format import format_bytes
from revremat._report._text import WIDTH, filled, new_table, render


def render_targets(rows: Sequence[tuple[Any, str]], *, color: bool = False) -> str:
    """Targets and what is missing to use each, as text.

    Args:
      rows: Each a `Target` and what it lacks, `""` for nothing.
      color: With terminal colours.
    """
    columns = ("target", "device", "memory", "reserve", "set for a run", "ready")
    table = new_table(*columns, no_wrap=True)
    lacking: dict[str, list[str]] = {}
    for target, missing in rows:
        if missing:
            lacking.setdefault(missing, []).append(target.spec)
        table.add_row(
            target.spec,
            target.card.name,
            format_bytes(target.memory_bytes),
            format_bytes(target.reserve_bytes) + "*" * target.card.measured,
            " ".join(f"{k}={v}" for k, v in target.environment.items()),
            "no" if missing else "yes",
        )
    lines = [render(table, color=color)]
    for missing, specs in lacking.items():
        sentence = f"- to use {', '.join(specs)}: {missing}"
        lines.append(filled(sentence, WIDTH))
    measured = any(target.card.measured for target, _ in rows)
    told = "* measured on such a device, the others are defaults"
    told = told if measured else "defaults, none measured on such a device"
    for remark in (
        "bytes are per device",
        "reserve: what the driver, the runtime and the workspaces of kernels take "
        f"beside a program; {told}",
        "set for a run: environment variables, so that a process gets what is usable",
        "ready: whether programs can be compiled for it here; no such device is needed",
    ):
        lines.append(filled(f"- {remark}", WIDTH))
    return "\n".join(lines) + "\n"
