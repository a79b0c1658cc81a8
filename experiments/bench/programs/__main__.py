"""A table of the programs: what the baseline of each takes on its target.

python -m experiments.bench.programs --names gpt2_xl resnet_152
"""

import sys
import time
from dataclasses import dataclass

import tyro

import revremat as rr
from experiments.bench.programs import PROGRAMS, Entry, refusal
from revremat import format_bytes, format_us


@dataclass(frozen=True)
class Options:
    """Which programs.

    Attributes:
      names: Some of the table's; all of them if none is named.
      compile: Whether the programs are compiled, or only traced.
    """

    names: tuple[str, ...] = ()
    compile: bool = True


def main(options: Options) -> int:
    """Prints a line as each program is done; 2 where one is not known."""
    unknown = refusal(options.names, PROGRAMS)
    if unknown:
        print(unknown)
        return 2
    columns = ("bytes", "of usable", "step", "trace", "compile")
    heads = "".join(f"{head:>11}" for head in columns)
    print(f"{'program':<20}{'target':<8}{heads}  units", flush=True)
    for name in options.names or PROGRAMS:
        print(row(PROGRAMS[name], options.compile), flush=True)
    return 0


def row(entry: Entry, compiles: bool) -> str:
    """One program's line."""
    target = rr.target(entry.target)
    start = time.perf_counter()
    problem = entry.make(target, "real")
    graph = rr.trace(problem.loss, *problem.specs)
    traced = time.perf_counter() - start
    cells = [""] * 3 + [f"{traced:.1f} s", ""]
    if compiles:
        start = time.perf_counter()
        step, specs = problem.make_step()
        found = rr.measure(step, *specs, target=target, donate=problem.donate)
        total = found.memory.total_bytes
        cells[0] = format_bytes(total)
        cells[1] = f"{100 * total / target.usable_bytes:.0f} %"
        cells[2] = format_us(found.time.step_us)
        cells[4] = f"{time.perf_counter() - start:.1f} s"
    units = ", ".join(f"{unit.num_layers} x {unit.name}" for unit in graph.units)
    cells_text = "".join(f"{cell:>11}" for cell in cells)
    return f"{entry.name:<20}{entry.target:<8}{cells_text}  {units or 'none'}"


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
