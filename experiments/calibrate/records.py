"""Results as they come: one JSON object a line, written at once, never rewritten.

A record is named by the number of its line, so that every figure of a summary can be
looked up: `sed -n 12p results.jsonl`. A process that is killed leaves at most half a
line, which is no record. Of the standard library alone.
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Json = dict[str, Any]

Kind = Literal[
    "begun",  # a job starts
    "ended",  # and ends, with `error` where it failed
    "skipped",  # it was not begun, with `why`
    "measured",  # timed or counted on the device
    "compiled",  # what the compiler says of a program that it made for the device here
    "predicted",  # ahead of time, by a compile for an absent device or an estimate
    "checked",  # a prediction beside what is here: `agrees`, and a sentence
    "derived",  # computed from other records, whose lines it names
    "note",  # about the machine
    "failed",  # a part of a job: `error` in one line, `tail` of what it said
]


@dataclass(frozen=True)
class Record:
    """One line.

    Attributes:
      line: Its number in the file, from 1.
      job: Which job wrote it.
      attempt: The job's how manieth, from 1.
      kind: What it is.
      data: Everything else; names end in their unit.
    """

    line: int
    job: str
    attempt: int
    kind: str
    data: Json

    def __getitem__(self, name: str) -> Any:
        return self.data[name]

    def get(self, name: str, default: Any = None) -> Any:
        """A value by its name, if it is there."""
        return self.data.get(name, default)


_FOLDERS = {
    str(Path(__file__).parents[2]): ".",
    tempfile.gettempdir(): "$TMPDIR",
    str(Path.home()): "~",
}


def anywhere(text: str) -> str:
    """Without the names of this machine's folders: results are kept and shown.

    >>> anywhere(f"{tempfile.gettempdir()}/tuning")
    '$TMPDIR/tuning'
    """
    for folder, name in _FOLDERS.items():
        if folder.strip("/"):
            text = text.replace(f"{folder}/", f"{name}/")
    return text


class Writer:
    """Appends records of one job to a file.

    Args:
      path: The file.
      job: The job's name.
      attempt: Its how manieth.
    """

    def __init__(self, path: Path, job: str, attempt: int):
        self.path, self.job, self.attempt = path, job, attempt

    def __call__(self, kind: Kind, **data: Any) -> None:
        """Writes one record, and has it on the disk when it returns."""
        head = {"job": self.job, "attempt": self.attempt, "kind": kind}
        text = anywhere(json.dumps(head | data, default=str)) + "\n"
        if self._ends_in_half_a_line():
            text = "\n" + text
        with self.path.open("ab", buffering=0) as file:
            file.write(text.encode())
            os.fsync(file.fileno())

    def _ends_in_half_a_line(self) -> bool:
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) == 0:
                    return False
                file.seek(-1, os.SEEK_END)
                return file.read() != b"\n"
        except FileNotFoundError:
            return False


def read(path: Path) -> list[Record]:
    """All whole records of a file; none if there is no file."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            data = json.loads(line)
            head = data.pop("job"), data.pop("attempt"), data.pop("kind")
        except (ValueError, KeyError, AttributeError, TypeError):
            continue  # half a line, or the empty one at the end
        found.append(Record(number, *head, data))
    return found


def latest(records: list[Record]) -> dict[str, list[Record]]:
    """Of each job the records of the attempt that counts, in the order of jobs.

    That is the last attempt that ended well, or else the last that measured anything,
    or else the last of all.
    """
    attempts: dict[str, dict[int, list[Record]]] = {}
    for record in records:
        attempts.setdefault(record.job, {}).setdefault(record.attempt, []).append(
            record
        )
    return {
        job: max(tries.items(), key=lambda item: (_worth(item[1]), item[0]))[1]
        for job, tries in attempts.items()
    }


def _worth(attempt: list[Record]) -> int:
    ended = [r for r in attempt if r.kind == "ended"]
    if ended and not ended[-1].get("error"):
        return 2
    return int(any(r.kind in ("measured", "compiled") for r in attempt))


def state_of(attempt: list[Record]) -> str:
    """Of a job: `done`, `failed`, `stopped` (its time or the run ended), `skipped`."""
    kinds = [record.kind for record in attempt]
    if "ended" in kinds:
        last = next(r for r in reversed(attempt) if r.kind == "ended")
        if not last.get("error"):
            return "done"
        return "stopped" if last.get("is_cut") else "failed"
    return "stopped" if "begun" in kinds else "skipped"


def error_of(attempt: list[Record]) -> str:
    """In one line why a job is not done; "" if it is."""
    state = state_of(attempt)
    if state == "done":
        return ""
    for record in reversed(attempt):
        for name in ("error", "why"):
            if record.get(name):
                return " ".join(str(record[name]).split())[:300]
    return "the run was stopped while it ran"


def in_one_line(error: BaseException) -> str:
    r"""An error's kind and the first line of what it says, in at most 300 characters.

    >>> in_one_line(ValueError("too large\nallocator: ..."))
    'ValueError: too large'
    """
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
    return " ".join(text.split())[:300]
