"""What a run leaves behind: `metrics.jsonl`, `run.json`, `loss.svg`."""

import contextlib
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

from experiments.files import write_whole
from revremat import UserError


class Metrics:
    """One JSON object a line, in the order of the steps, none of them twice.

    Args:
      file: Appended to; lines after `last_step` and half a line at the end, left by a
        run that was killed, are dropped. None: nothing is written.
      last_step: The step the run goes on from.
    """

    def __init__(self, file: Path | None, last_step: int):
        self._stream = None
        if file is None:
            self.rows = []
            return
        self.rows = [row for row in read_metrics(file) if row["step"] <= last_step]
        write_whole(file, "".join(json.dumps(row) + "\n" for row in self.rows))
        self._stream = file.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        """Append one line and hand it to the operating system."""
        self.rows.append(row)
        if self._stream is None:
            return
        try:
            self._stream.write(json.dumps(row) + "\n")
            self._stream.flush()
        except OSError as error:
            raise UserError(
                f"cannot write step {row['step']} to {self._stream.name}: "
                f"{error.strerror}; make room and run the same command"
            ) from error

    def close(self) -> None:
        """Close the file; what could not be written has been told."""
        with contextlib.suppress(OSError):
            if self._stream is not None:
                self._stream.close()


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file; none if there is no file.

    Raises:
      UserError: A line is damaged.
    """
    if not file.exists():
        return []
    lines = file.read_bytes().split(b"\n")
    # What follows the last newline is half a line, or nothing.
    return [_row(line, f"{file}, line {n}") for n, line in enumerate(lines[:-1], 1)]


def _row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if type(row["step"]) is not int:
            raise ValueError(row)
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{where} is damaged: remove that line, or choose another --train.dir"
        ) from None
    return row


def same_run(
    file: Path, identity: dict[str, Any], settings: dict[str, Any], *, begun: bool
) -> list[str]:
    """Write what a run is, or check that a run that goes on is still the same one.

    Args:
      file: `run.json`.
      identity: What may not change on the way, by name.
      settings: What may.
      begun: Whether anything of the run is kept; else it is this run's from here on.

    Returns:
      What did change among the settings, in words.

    Raises:
      UserError: If the folder holds another run; says what differs.
    """
    facts = json.loads(json.dumps({"identity": identity, "settings": settings}))
    text = json.dumps(facts, indent=2) + "\n"
    if not begun or not file.exists():
        write_whole(file, text)
        return []
    try:
        before = json.loads(file.read_text(encoding="utf-8"))
        other = _changes(before["identity"], facts["identity"])
        # Settings that there were none of when the run began have not changed.
        known = {k: v for k, v in facts["settings"].items() if k in before["settings"]}
        moved = _changes(before["settings"], known)
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} is not the record of a run ({error}); choose another --train.dir, "
            f"or remove {file.parent} to start again"
        ) from error
    if other:
        raise UserError(
            f"{file.parent} holds another run ({', '.join(other[:3])}); choose another "
            "--train.dir, or remove it to start again"
        )
    write_whole(file, text)
    return moved


def _changes(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    return [
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in {**before, **now}
        if before.get(key) != now.get(key)
    ]


INSTALL = "pip install -e '.[experiments]'"


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    try:
        return importlib.util.find_spec("matplotlib") is not None
    except ImportError:
        return False


def plot_loss(rows: list[dict[str, Any]], title: str, file: Path) -> None:
    """Draw the loss of every step and the held-out loss into an SVG."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, marker in (("loss", ""), ("valid_loss", "o")):
        having = [row for row in rows if name in row]
        steps, values = [[row[key] for row in having] for key in ("step", name)]
        axes.plot(steps, values, marker=marker, linewidth=1, label=name)
    axes.set(xlabel="step", ylabel="loss (nats)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    temporary = file.with_name("tmp-" + file.name)
    figure.savefig(temporary)
    plt.close(figure)
    os.replace(temporary, file)
