"""The command `revremat allocate`: offsets for the buffers of a CSV file."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from revremat._cli._exit import FAILED
from revremat._cli._options import OptionalCapacity, OptionalFile, Seconds
from revremat._errors import UserError
from revremat._format import format_bytes
from revremat._io._files import check_place
from revremat._printable import say

if TYPE_CHECKING:  # it takes as long to import as all else together
    from revremat.allocation import Allocation, Progress


@dataclass(frozen=True)
class Allocate:
    """Packs buffers with known lifetimes into as little memory as possible.

    FILE is a CSV file with a row for each buffer. It has the columns id, lower, upper
    and size. Lower is the first step at which a buffer is alive, upper the first at
    which it no longer is. Size is in bytes. The columns alignment, group and stream may
    stand beside them. The exit code is 1 when time ran out before the buffers fitted
    the capacity.
    """

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """CSV file of buffers."""
    capacity: OptionalCapacity = None
    """Fit into so many bytes: `80GiB`, `4096`; by default, into as few as possible."""
    out: OptionalFile = None
    """Write the rows to this CSV file, with an offset column (bytes)."""
    deps: OptionalFile = None
    """CSV file of what streams wait for: stream, step, after_stream, after_step."""
    svg: OptionalFile = None
    """Draw time and offsets of all buffers to this SVG file."""
    seconds: Seconds = 60.0
    """How long to search for better offsets, or for a proof that there are none."""

    def run(self) -> int:
        from revremat.allocation import (
            Infeasible,
            Undecided,
            allocate,
            join_streams,
            read_problem,
            read_waits,
            write_drawing,
            write_offsets,
        )

        if not self.seconds > 0:
            raise UserError(f"--seconds {self.seconds} is given; it must be above zero")
        for path in filter(None, (self.out, self.svg)):
            check_place(path)
        began = time.monotonic()
        problem = read_problem(self.file)
        waits = read_waits(self.deps) if self.deps else ()
        joined = join_streams(problem, waits)
        answer = allocate(
            joined, self.capacity, seconds=self.seconds, progress=_Progress()
        )
        if isinstance(answer, Infeasible):
            raise UserError(str(answer))
        if isinstance(answer, Undecided):
            say(f"revremat: {answer}", error=True)
            return FAILED
        _print(answer, len(problem.buffers), time.monotonic() - began)
        if self.out:
            write_offsets(self.out, self.file, answer.offsets_bytes)
        if self.svg:
            write_drawing(self.svg, joined, answer, self.file.stem)
        return 0


def _print(answer: "Allocation", count: int, seconds: float) -> None:
    bound = answer.bound
    proof = "optimal" if answer.optimal else "not proved optimal"
    print(f"buffers       {count}")
    print(f"memory        {_exact(answer.makespan_bytes)}, {proof}")
    print(
        f"at least      {_exact(bound.size_bytes)} are needed by {len(bound.ids)} "
        f"buffers{'' if bound.time is None else f' at step {bound.time}'}; "
        f"the memory is {100 * answer.excess:.3f} % above"
    )
    print(f"search        {seconds:.2f} s, found by its solver '{answer.solver}'")


def _exact(size: int) -> str:
    about = "" if size < 1000 else f" ({format_bytes(size)})"
    return f"{size} bytes{about}"


class _Progress:
    """Prints progress to standard error, every other second at most."""

    def __init__(self):
        self.printed = 0.0

    def __call__(self, progress: "Progress") -> None:
        if progress.seconds < self.printed + 2:
            return
        self.printed = progress.seconds
        print(
            f"revremat: allocate: best {progress.best_bytes} bytes, at least "
            f"{progress.bound_bytes} needed, {progress.nodes} nodes searched, "
            f"{progress.seconds:.0f} s",
            file=sys.stderr,
            flush=True,
        )
