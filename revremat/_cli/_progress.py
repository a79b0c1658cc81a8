"""What a command is doing, on standard error: a bar on a terminal, lines elsewhere."""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from revremat._printable import printable, say

FIRST_LINE_SECONDS = 10.0
MOST_SECONDS = 60.0

Report = Callable[[str, int, int], None]
"""Called with what begins, how many are done, and of how many (0: nobody knows)."""


@contextlib.contextmanager
def progress(title: str) -> Iterator[Report]:
    """Shows what is done while the body runs, its tracing included.

    On a terminal a bar with a clock, gone in the end. Elsewhere plain lines: the first
    after 10 seconds, then after twice as long each, at least one a minute; what is done
    sooner prints nothing. Standard output stays free for results.

    Args:
      title: What the command does, such as `search gpt.py:problem on h100:8`.

    Yields:
      What reports a step: `report(name, done, total)`.
    """
    title = printable(title)
    with _bar(title) if sys.stderr.isatty() else _lines(title) as report:
        yield lambda name, done, total: report(printable(name), done, total)


@contextlib.contextmanager
def _bar(title: str) -> Iterator[Report]:
    bar = Progress(
        TextColumn("{task.fields[count]}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )
    with bar:
        task = bar.add_task(title, total=None, count="")

        def report(name: str, done: int, total: int) -> None:
            count = f"{done}/{total}" if total else ""
            bar.update(
                task, description=name, completed=done, total=total or None, count=count
            )

        yield report


@contextlib.contextmanager
def _lines(title: str) -> Iterator[Report]:
    began, ended = time.monotonic(), threading.Event()
    now = ""

    def report(name: str, done: int, total: int) -> None:
        nonlocal now
        now = f"{done}/{total} {name}" if total else name

    def tell() -> None:
        wait = FIRST_LINE_SECONDS
        while not ended.wait(wait):
            seconds = time.monotonic() - began
            told = f"revremat: {title}: {now or 'tracing'}, {seconds:.0f} s"
            with contextlib.suppress(OSError, ValueError):  # nobody listens any more
                say(told, error=True)
            wait = min(2 * wait, MOST_SECONDS)

    teller = threading.Thread(target=tell, name="revremat-progress", daemon=True)
    teller.start()
    try:
        yield report
    finally:
        ended.set()
        teller.join()
