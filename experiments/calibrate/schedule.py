"""Which jobs there are, in the order of what they tell, each with its time limit.

    python -m experiments.calibrate.schedule experiments/results/cards/h100

prints what the records of a run leave to be done, in the order in which the next run
does it. Of the standard library alone.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from experiments.calibrate.records import Record, error_of, latest, read, state_of


@dataclass(frozen=True)
class Job:
    """One job, which runs in a process of its own.

    Attributes:
      kind: What is done.
      subject: Of which program or group; "" where there is but one.
      limit_s: Seconds after which it is stopped. What it wrote by then counts.
      least_s: Seconds without which it is not begun.
      room: How much of the card's memory it gets: all that is usable, what its plan
        takes by its compile, or 5 % less than that.
      by_compiler: It needs the compiler alone and runs without the device.
      revision: Of what is asked: it grows where what is measured was changed, and
        results of an older one do not answer it.
    """

    kind: str
    subject: str = ""
    limit_s: float = 60.0
    least_s: float = 15.0
    room: Literal["all", "plan", "less"] = "all"
    by_compiler: bool = False
    revision: int = 1

    @property
    def name(self) -> str:
        """As records call it."""
        return f"{self.kind} {self.subject}".strip()


DOCTOR = Job("doctor", "", 45)
CARD = Job("card", "", 30, 5, by_compiler=True)

FITTED = ("gpt2_xl_24", "tiny_matmuls", "t5_large", "vit_l_384")
"""Programs whose plans get no more memory than they were compiled to."""

RUN = (
    *("mlp", "conv_net", "accumulated", "rematted", "offloaded", "moe", "recurrence"),
    *("unet", "revbifpn_s0", "revbifpn_s2"),
)
"""Programs whose baseline is compared with what was said ahead of time: all but those
that race."""

_COMPILED_SLOWLY = ("unet", "revbifpn_s0", "revbifpn_s2")
"""Programs of hundreds of different layers: an H100's 16 cores took more than two
minutes to compile one of them, so they come last and get four."""

_REVISIONS = {"exact": 2, "run rematted": 2}
"""Maps of the exact mode were not evaluated alike in both passes, and values of the
rematted program overflowed, when these were first measured."""


def _fit(program: str) -> list[Job]:
    return [
        Job("fit", program, 50, 25, "plan"),
        Job("over", program, 40, 25, "less"),
    ]


def jobs(platform: str) -> list[Job]:
    """All jobs of a platform but the first and the last, most telling ones first."""
    listed = [
        Job("race", "gpt2_xl_24", 230, 50),
        *_fit("gpt2_xl_24"),
        Job("exact", "", 90, 30),
        Job("race", "tiny_matmuls", 50, 20),
        Job("offload", "", 60, 20),
        Job("kernels", "", 75, 30),
        Job("alternatives", "gpt2_xl_24", 80, 40),
        Job("race", "t5_large", 150, 60),
        Job("gradients", "", 90, 30),
        Job("race", "vit_l_384", 230, 60),
        *(Job("run", n, 90, 30) for n in RUN if n not in _COMPILED_SLOWLY),
        Job("race", "efficientnet_b7", 230, 60),
        *(job for name in FITTED[1:] for job in _fit(name)),
        *(Job("run", n, 240, 60) for n in _COMPILED_SLOWLY),
        *(Job("again", name, 120, 60, by_compiler=True) for name in FITTED),
    ]
    if platform == "cpu":
        listed.insert(7, Job("curves", "", 120, 30))
    return [replace(j, revision=_REVISIONS.get(j.name, 1)) for j in listed]


@dataclass(frozen=True)
class Left:
    """A job that is to be done, and why.

    Attributes:
      job: The job.
      why: In one line.
      is_late: Whether it comes after all others: it failed by itself, or was stopped
        after all of its time.
    """

    job: Job
    why: str
    is_late: bool = False


def left(listed: list[Job], records: list[Record]) -> list[Left]:
    """What records leave to be done, in the order in which it is done."""
    found = latest(records)
    all_left = [_left(job, found.get(job.name, [])) for job in listed]
    return sorted((one for one in all_left if one), key=lambda one: one.is_late)


def _left(job: Job, attempt: list[Record]) -> Left | None:
    begun = next((r for r in attempt if r.kind == "begun"), None)
    if begun is None:
        return Left(job, "never begun")
    state = state_of(attempt)
    if begun.get("revision", 1) < job.revision:
        return Left(job, "what it measures was changed since")
    if state == "done":
        return None
    had_its_time = not begun.get("is_rest") and begun.get("limit_s", 0) >= job.limit_s
    is_late = state == "failed" or (state == "stopped" and had_its_time)
    return Left(job, error_of(attempt), is_late)


def next_jobs(listed: list[Job], records: list[Record]) -> list[Job]:
    """The jobs that are left, in the order in which they are done."""
    return [one.job for one in left(listed, records)]


def text(listed: list[Job], records: list[Record]) -> str:
    """What is left as a table; a line where nothing is."""
    rows = [
        (one.job.name, f"{one.job.limit_s:.0f} s", one.why)
        for one in left(listed, records)
    ]
    if not rows:
        return "Nothing is left."
    heads = ("job", "at most", "why")
    widths = [max(len(row[k]) for row in (heads, *rows)) for k in range(3)]
    lines = [
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
        for row in (heads, *rows)
    ]
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])


if __name__ == "__main__":
    print(text(jobs("gpu"), read(Path(sys.argv[1], "results.jsonl"))))
