"""The command line of the allocator, as one function."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from revremat._errors import UserError
from revremat._printable import say
from revremat.allocation._allocate import Progress, allocate
from revremat.allocation._csv import read_problem, write_offsets
from revremat.allocation._dependencies import join_streams, read_waits
from revremat.allocation._solution import Allocation, Infeasible, Undecided
from revremat.allocation._svg import format_bytes, write_drawing

FOUND, NOT_FOUND, MISTAKE = 0, 1, 2
"""Exit codes. A capacity that is proved too small is a mistake in the request."""


_File = Annotated[Path | None, tyro.conf.arg(metavar="FILE", help_behavior_hint="")]


@dataclass(frozen=True)
class AllocateOptions:
    """Gives buffers with known lifetimes offsets in as little memory as possible."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE")]
    """CSV file with columns id, lower, upper (exclusive), size, and more if needed."""

    capacity: Annotated[
        int | None, tyro.conf.arg(metavar="BYTES", help_behavior_hint="")
    ] = None
    """Fit into this many bytes. By default, take as little as possible."""

    out: _File = None
    """Write the rows here, with an offset column."""

    deps: _File = None
    """CSV file of what streams wait for: stream, step, after_stream, after_step."""

    svg: _File = None
    """Draw the assignment here."""

    seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 60.0
    """How long to search for a better assignment, or for a proof that there is none."""


def run(options: AllocateOptions) -> int:
    """Runs one allocation and prints what came of it.

    Returns:
      0 if the buffers are placed, 1 if time ran out before they fitted the capacity, 2
      for a mistake in the request, told in one sentence.
    """
    try:
        return _run(options)
    except UserError as error:
        say(str(error), error=True)
        return MISTAKE


def _run(options: AllocateOptions) -> int:
    if not options.seconds > 0:
        raise UserError(f"--seconds {options.seconds} is given; it must be above zero")
    began = time.monotonic()
    problem = read_problem(options.file)
    waits = read_waits(options.deps) if options.deps else ()
    joined = join_streams(problem, waits)
    answer = allocate(
        joined, options.capacity, seconds=options.seconds, progress=_Teller()
    )
    if isinstance(answer, Infeasible):
        raise UserError(str(answer))
    if isinstance(answer, Undecided):
        say(str(answer), error=True)
        return NOT_FOUND
    _print(answer, len(problem.buffers), time.monotonic() - began)
    if options.out:
        write_offsets(options.out, options.file, answer.offsets_bytes)
    if options.svg:
        write_drawing(options.svg, joined, answer, options.file.stem)
    return FOUND


def _print(answer: Allocation, count: int, seconds: float) -> None:
    bound = answer.bound
    proof = "optimal" if answer.optimal else "not proved optimal"
    print(f"buffers      {count}")
    print(
        f"makespan     {answer.makespan_bytes} bytes "
        f"({format_bytes(answer.makespan_bytes)}), {proof}"
    )
    print(
        f"lower bound  {bound.size_bytes} bytes ({len(bound.ids)} buffers"
        f"{'' if bound.time is None else f' at time {bound.time}'}); "
        f"the makespan is {100 * answer.excess:.3f} % above"
    )
    print(f"found by     {answer.solver} in {seconds:.2f} s")


class _Teller:
    """Prints progress to standard error, every other second at most."""

    def __init__(self):
        self.told = 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.seconds < self.told + 2:
            return
        self.told = progress.seconds
        print(
            f"{progress.seconds:6.0f} s: best {progress.best_bytes} bytes, at least "
            f"{progress.bound_bytes} needed, {progress.nodes} nodes",
            file=sys.stderr,
            flush=True,
        )
