"""The search against other ways to choose a plan, program by program.

    python -m experiments.bench.versus --programs gpt2_xl vit_l_384
    python -m experiments.bench.versus --most 60
    python -m experiments.bench.versus --search-again --programs gpt2_xl --at 5 7
    python -m experiments.bench.versus --largest-batch gpt2_xl --factors 1.75
    python -m experiments.bench.versus --attention cudnn --programs gpt2_xl
    python -m experiments.bench.versus --markdown

Of every program at real size, at eight budgets from just under what its baseline takes
to the least there is: estimated throughput of the searched plan over that of uniform
presets, presets in plain JAX (scan, unrolled in part or whole, Python loop), XLA's
remat pass on those, splits of the layers between two presets, PyTorch's memory budget
and the order of MaxText's estimator (in loops and unrolled), sqrt(N) segments and a
greedy choice, all by the target's compiler. A program's figures are written to
`experiments/results/versus/` when the search is done, and after every baseline
(searched again, after each budget). Programs that are complete are not run again;
whatever was compiled is kept, so a run that was stopped goes on where it was. Prints
the table of all that is there.
"""

import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import tyro

import revremat as rr
from experiments.bench import batches
from experiments.bench.baselines import BASELINES
from experiments.bench.comparison import Searched, comparison, plain_json, search_again
from experiments.bench.programs import PROGRAMS, refusal
from experiments.bench.programs._entry import Size
from experiments.bench.versus_gains import RESULTS, read
from experiments.bench.versus_tables import (
    budgets_table,
    fair,
    markdown,
    rows_of,
    summary,
)
from experiments.files import write_whole


@dataclass(frozen=True)
class Options:
    """What is compiled.

    Attributes:
      programs: Which; by default all.
      budgets: Of each program.
      baselines: Which, by their names in the table; by default all.
      size: `real`, or `cpu` and `tiny` ones.
      attention: By which kernel everybody computes attention, `plain` or `cudnn`, in
        programs that have a choice; with cuDNN's the others are left out.
      target: Instead of the one that each program names.
      most: Minutes after which it stops, in the middle of a program if need be.
      again: Programs that are done are run again.
      search_again: They are searched again at the same budgets, and what baselines took
        stays as it is.
      at: Only at these budgets of it, the first is 1.
      largest_batch: A program: the largest batch that fits its target, of the baseline
        and with searched plans, at no more than 5 % of throughput.
      factors: How many times larger that batch may be.
      most_compiles: Of each search for it.
      unroll: Whether searches may unroll loops, which takes many times longer to
        compile where there are many layers.
      markdown: Nothing is compiled: the results there are, as the documents' tables.
      out: The folder of the results.
    """

    programs: tuple[str, ...] = ()
    budgets: int = 8
    baselines: tuple[str, ...] = ()
    size: Size = "real"
    attention: Literal["plain", "cudnn"] = "plain"
    target: str = ""
    most: float = math.inf
    again: bool = False
    search_again: bool = False
    at: tuple[int, ...] = ()
    largest_batch: str = ""
    factors: tuple[float, ...] = batches.FACTORS
    most_compiles: int | None = None
    unroll: bool = True
    markdown: bool = False
    out: Path = RESULTS


class Stopped(Exception):
    """The minutes are over."""


def main(options: Options) -> int:
    """Runs what is missing and prints the table; 1 if something is still missing."""
    deadline = time.monotonic() + 60 * options.most

    def stop() -> None:
        if time.monotonic() > deadline:
            raise Stopped

    names, refused = options.programs or tuple(PROGRAMS), False
    unknown = refusal([*names, *filter(None, [options.largest_batch])], PROGRAMS)
    unknown = unknown or refusal(
        options.baselines, [r.name for r in BASELINES], "baseline"
    )
    if unknown:
        print(unknown)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    if options.markdown:
        done = read(options.out)
        print(markdown(done), budgets_table(done), "\n".join(fair(done)), sep="\n\n")
        return 0
    # Compiles are found again from wherever they are asked for.
    frames = jax.config.jax_include_full_tracebacks_in_locations
    jax.config.update("jax_include_full_tracebacks_in_locations", False)
    try:
        if options.largest_batch:
            _largest_batch(options, options.largest_batch, stop)
            return 0
        for name in names:
            if options.attention != "plain" and not PROGRAMS[name].has_kernel:
                continue
            path = _path(name, options)
            if _is_done(path) and not (options.again or options.search_again):
                continue
            try:
                for found in run(name, options, stop):
                    write_whole(path, plain_json(found))
            except rr.UserError as error:
                print(f"{name}: {error}")
                refused = True
                continue
            print(rows_of(name, found), flush=True)
    except Stopped:
        print("stopped; the same command goes on from here")
        return 1
    finally:
        jax.config.update("jax_include_full_tracebacks_in_locations", frames)
        print(summary(read(options.out)))
    return int(refused)


def run(
    name: str, options: Options, stop: Any = lambda: None
) -> Iterator[dict[str, Any]]:
    """One program's figures, each time that they are whole."""
    entry = PROGRAMS[name]
    target = rr.target(options.target or entry.target)
    path = _path(name, options)
    how = {"attention": options.attention} if entry.has_kernel else {}
    searched = Searched(
        entry.make(target, options.size, **how),
        target,
        tell=lambda line: print(f"{name}: {line}", file=sys.stderr, flush=True),
        stop=stop,
        unroll=options.unroll,
    )
    if options.search_again and path.exists():
        yield from search_again(searched, json.loads(path.read_text()), options.at)
        return
    kinds = [
        r for r in BASELINES if not options.baselines or r.name in options.baselines
    ]
    for found in comparison(searched, options.budgets, kinds):
        yield {"program": name, "group": entry.group, "size": options.size, **found}


def _path(name: str, options: Options) -> Path:
    """Where a program's figures are."""
    kernel = "" if options.attention == "plain" else f"-{options.attention}"
    return options.out / f"{name}{kernel}.json"


def _is_done(path: Path) -> bool:
    """Whether a program's figures are all there; a run that was stopped left a part."""
    return path.exists() and json.loads(path.read_text()).get("complete", True)


def _largest_batch(options: Options, name: str, stop: Any) -> None:
    entry = PROGRAMS[name]
    target = rr.target(options.target or entry.target)
    found = batches.largest(
        entry.make(target, options.size),
        target,
        factors=options.factors,
        most_compiles=options.most_compiles,
        stop=stop,
        unroll=options.unroll,
    )
    write_whole(options.out / f"batch-{name}.json", plain_json(found))
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Options, description=__doc__)))
