"""What a person sees while a run goes on."""

import resource
import sys
import time
from typing import Any

import jax
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

MIB = 2**20


def peak_bytes() -> int | None:
    """The most memory the first device's allocator has handed out, where it counts."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats.get("peak_bytes_in_use")


def memory_text() -> str:
    """Memory in use now: the device's own count, or this process's largest size."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_in_use" in stats:
        return f"{stats['bytes_in_use'] / MIB:,.0f} MiB on the device"
    # Linux counts in KiB, macOS in bytes.
    unit = 1 if sys.platform == "darwin" else 1024
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return f"{largest / MIB:,.0f} MiB of process"


class Display:
    """A progress bar on a terminal, a line now and then elsewhere.

    Args:
      start: Step the run begins at.
      num_steps: Step it ends at.
      items: Tokens or images a step.
      unit: `tokens` or `images`.
      is_shown: Else nothing is printed.
    """

    def __init__(
        self,
        start: int,
        num_steps: int,
        items: int,
        unit: str,
        *,
        is_shown: bool = True,
    ):
        self._console = Console(quiet=not is_shown)
        self._num_steps, self._items, self._unit = num_steps, items, unit
        self._since = self._line_at = time.perf_counter()
        self._start = start
        self._progress = Progress(
            TextColumn("step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (is_shown and self._console.is_terminal),
        )
        self._task = self._progress.add_task("", total=num_steps, text="")
        self._progress.update(self._task, completed=start)
        self._progress.start()

    def say(self, text: str) -> None:
        """Lines above the bar; what a terminal would obey is written as an escape."""
        seen = (c if c == "\n" or c.isprintable() else ascii(c)[1:-1] for c in text)
        self._progress.console.print(Text("".join(seen)), soft_wrap=True)

    def rate(self, step: int) -> float:
        """Items a second since this process began to train."""
        seconds = time.perf_counter() - self._since
        return (step - self._start) * self._items / max(seconds, 1e-9)

    def update(self, step: int, metrics: dict[str, Any]) -> None:
        """Show a step."""
        text = (
            f"loss {metrics['loss']:.4f}  {self.rate(step):,.0f} {self._unit}/s  "
            f"{memory_text()}"
        )
        self._progress.update(self._task, completed=step, text=text)
        now = time.perf_counter()
        due = now - self._line_at > 10 or step == self._num_steps
        if due and not self._console.is_terminal:
            self._line_at = now
            done = step - self._start
            left = (self._num_steps - step) * (now - self._since) / done
            self.say(f"step {step}/{self._num_steps}  {text}  {left:.0f} s left")

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._progress.stop()
