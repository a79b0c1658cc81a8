"""Lock: a small committed file that says how many bytes a step may take."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from revremat._errors import UserError
from revremat._format import format_bytes
from revremat._io._files import read_text
from revremat._io._json import parse_json
from revremat._measurement import Measurement

_SCHEMA = 1


def lock_text(measurements: Sequence[Measurement], tolerance: float = 0.01) -> str:
    """The lock of some measurements, as JSON text.

    Args:
      measurements: Of one program or several, each on its target.
      tolerance: Growth that a check lets pass, as a share.
    """
    entries = [
        {
            "program": m.program,
            "target": m.target,
            "total_bytes": m.memory.total_bytes,
            "versions": m.versions,
            "parts": _parts(m),
        }
        for m in measurements
    ]
    data = {"schema": _SCHEMA, "tolerance": tolerance, "entries": entries}
    return json.dumps(data, indent=1) + "\n"


@dataclass(frozen=True)
class Entry:
    """What one program may take on one target."""

    total_bytes: int
    versions: str
    parts: dict[str, int]


@dataclass(frozen=True)
class Lock:
    """What a lock says: its entries by program and target."""

    tolerance: float
    entries: dict[tuple[str, str], Entry]


def read_lock(path: Path) -> Lock:
    """Reads what `lock_text` wrote.

    Raises:
      UserError: There is no lock, or another schema.
    """
    try:
        data = parse_json(read_text(path))
        schema, tolerance = data["schema"], float(data["tolerance"])
        if schema != _SCHEMA:
            raise UserError(
                f"{str(path)!r} has schema {schema!r}, this revremat reads {_SCHEMA}"
            )
        if tolerance < 0:
            raise ValueError("a tolerance is no share")
        entries = {(e["program"], e["target"]): _entry(e) for e in data["entries"]}
    except OSError as error:
        raise UserError(
            f"cannot read the lock {str(path)!r} ({error.strerror}): make it with "
            f"--lock {path}"
        ) from None
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{str(path)!r} is no lock: make one with --lock") from None
    return Lock(tolerance, entries)


def check_lock(measurements: Sequence[Measurement], path: Path) -> list[str]:
    """What grew past the lock's tolerance: a sentence each, none if nothing did.

    Raises:
      UserError: The lock cannot be read, or lacks one of the measurements.
    """
    lock, found = read_lock(path), []
    for m in measurements:
        entry = lock.entries.get((m.program, m.target))
        if entry is None:
            raise UserError(
                f"{str(path)!r} has no entry for {m.program} on {m.target}: "
                f"make it again with --lock {path}"
            )
        found += _growth(m, entry, lock.tolerance)
    return found


def _entry(data: dict[str, Any]) -> Entry:
    parts = {str(name): int(size) for name, size in data["parts"].items()}
    if (total := int(data["total_bytes"])) <= 0:
        raise ValueError("a program takes bytes")
    return Entry(total, str(data["versions"]), parts)


def _growth(m: Measurement, entry: Entry, tolerance: float) -> list[str]:
    before, after = entry.total_bytes, m.memory.total_bytes
    if after <= before * (1 + tolerance):
        return []
    parts, now = entry.parts, _parts(m)
    grown = sorted(
        ((now.get(k, 0) - parts.get(k, 0), k) for k in now | parts), reverse=True
    )
    blame = ", ".join(
        f"{name} +{format_bytes(more)}" for more, name in grown[:3] if more > 0
    )
    sentence = (
        f"{m.program} on {m.target} takes {format_bytes(after)}, "
        f"{format_bytes(after - before)} ({100 * (after / before - 1):.1f} %) more "
        f"than the lock's {format_bytes(before)}: "
        f"{blame or 'fragmentation between buffers'}"
    )
    if entry.versions != m.versions:
        sentence += f" (locked with {entry.versions}; this is {m.versions})"
    return [sentence]


def _parts(m: Measurement) -> dict[str, int]:
    return {
        "/".join(filter(None, (phase, scope))): size
        for (phase, scope), size in m.memory.by("phase", "scope").items()
        if size >= 0.002 * m.memory.total_bytes
    }
