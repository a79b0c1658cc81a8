"""Tables whose rows are made one by one, each in a process of its own.

What was made is written at once, so that a command goes on where it was stopped.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments.files import write_whole

Row = dict[str, Any]


def ask(module: str, row: Sequence[Any], seconds: float) -> Row | str:
    """The row that `python -m MODULE ROW...` prints as JSON, or what went wrong."""
    command = [sys.executable, "-m", module, *map(str, row)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return f"took more than {seconds:.0f} s"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["no word"])[-1]
    return json.loads(done.stdout.splitlines()[-1])


def stored(path: Path) -> list[Row]:
    """What was made so far."""
    return json.loads(path.read_text()) if path.exists() else []


def complete(
    path: Path,
    rows: Iterable[Sequence[Any]],
    key: Sequence[str],
    make: Callable[[Sequence[Any]], Row | str],
    report: Callable[[Sequence[Row]], object],
    most: int | None = None,
) -> tuple[list[Row], int]:
    """Makes the rows that a file lacks, and writes it after each.

    Args:
      path: A JSON file.
      rows: All that are wanted, in order; one that comes twice is made once.
      key: The fields by which a made row is known.
      make: Makes one, or says what went wrong.
      report: Writes what follows from all rows; after each, and at the end.
      most: Stop after so many.

    Returns:
      All rows, and how many failed.
    """
    found = stored(path)
    known = {tuple(row[name] for name in key) for row in found}
    wanted = dict.fromkeys(map(tuple, rows))
    missing = [row for row in wanted if row not in known][:most]
    failed = 0
    for number, row in enumerate(missing, 1):
        answer = make(row)
        label = f"{number}/{len(missing)} {' '.join(map(str, row))}:"
        if isinstance(answer, str):
            print(label, answer, file=sys.stderr, flush=True)
            failed += 1
            continue
        print(label, f"{answer['seconds']} s", flush=True)
        found.append(answer)
        write_whole(path, json.dumps(found, indent=1) + "\n")
        report(found)
    report(found)
    return found, failed
