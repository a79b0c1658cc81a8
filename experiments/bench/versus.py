"""The search against other ways to choose a plan, program by program.

    python -m experiments.bench.versus --programs gpt2_xl vit_l_384
    python -m experiments.bench.versus --most 60
    python -m experiments.bench.versus --search-again --programs gpt2_xl --at 5 7
    python -m experiments.bench.versus --largest-batch gpt2_xl --factors 1.75
    python -m experiments.bench.versus --attention cudnn --programs gpt2_xl
    python -m experiments.bench.versus --markdown

Of every program at real size, at eight budgets from just under what it takes as it is
written to the least there is: estimated throughput of the searched plan over that of
uniform presets, presets in plain JAX (scan, unrolled, Python loop), XLA's remat pass
on those, splits of the layers between two presets, PyTorch's memory budget and the
order of MaxText's estimator (in loops and unrolled), sqrt(N) segments and a greedy
choice, all by the target's compiler. A program's figures are written to
`experiments/results/versus/` when the search is done, and after every baseline
(searched again, after each budget). Programs that are complete are not run again;
whatever was compiled is kept, so a run that was stopped goes on where it was. Prints
the table of all that is there.
"""

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
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
from experiments.files import write_whole
from revremat import format_bytes, format_us

RESULTS = Path(__file__).parents[1] / "results" / "versus"
PROMISED = {0.8: 1.05, 0.6: 1.10}
"""Over the best baseline, at budgets below a share of what plain unrolled loops take:
geometric means over all programs that are to be reached."""
MOST_BEHIND = 0.003
"""Of a step, by which a plan may be slower than the best baseline at any budget."""

_LEVEL = 0.9995
_LEAST_LEFT = 0.003
"""Of a budget: with less than that left it is closely met."""
_LEAST_GAIN = 0.002
"""Of a step: what is no less than that faster is a finer choice."""


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
      largest_batch: A program: the largest batch that fits its target as it is written
        and with searched plans, at no more than 5 % of throughput.
      factors: How many times larger that batch may be.
      most_compiles: Of each search for it.
      unroll: Whether searches may write a loop's layers out, which takes many times
        longer to compile where there are many.
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
        print(markdown(done), shares_table(done), sep="\n\n")
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


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """All programs that are done, in the order of the table of programs."""
    done = {
        path.stem: json.loads(path.read_text())
        for path in sorted(folder.glob("*.json"))
        if not path.stem.startswith("batch-")
    }
    return dict(sorted(done.items(), key=lambda one: _place(one[0])))


def _place(name: str) -> tuple[int, str]:
    names, plain = list(PROGRAMS), name.removesuffix("-cudnn")
    return (names.index(plain) if plain in names else len(names), name)


def gains(found: Mapping[str, Any], baseline: str) -> list[float | None]:
    """At each budget the search's throughput over a baseline's; nothing if not run.

    None where the baseline has no plan that fits; not a number where the search has
    none, which no promise allows.
    """
    listed: list[float | None] = []
    for at in found["budgets"]:
        if baseline not in at["baselines"]:
            continue
        mine, theirs = at["search"], at["baselines"][baseline]
        if mine is None and theirs is not None:
            listed.append(math.nan)
        elif mine is None or theirs is None:
            listed.append(None)
        else:
            listed.append(theirs["step_us"] / mine["step_us"])
    return listed


def best_baseline(at: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The fastest of all baselines at a budget; None where none fits."""
    fitting = [one for one in at["baselines"].values() if one is not None]
    return min(fitting, key=lambda one: (one["step_us"], one["bytes"]), default=None)


def gains_over_best(found: Mapping[str, Any], below: float = math.inf) -> list[float]:
    """At each budget where any baseline fits, the search's throughput over the best.

    Args:
      found: A program's figures.
      below: Only at budgets below this share of what plain unrolled loops take, or the
        program itself where it has none.
    """
    plain = found.get("unrolled") or found["baseline"]
    listed = []
    for at in found["budgets"]:
        theirs, mine = best_baseline(at), at["search"]
        if theirs is None or at["budget_bytes"] > below * plain["bytes"]:
            continue
        listed.append(theirs["step_us"] / mine["step_us"] if mine else math.nan)
    return listed


def shares(at: Mapping[str, Any]) -> dict[str, float] | None:
    """What of a gain over presets in a scan is unrolling, which sets, and mixing.

    Step by step, as logarithms: from the best preset on the loop as it is, to the best
    on any form of it, to the best set that all layers share, to the plan. None where
    one of those does not fit, or nothing was gained.
    """
    of = at["baselines"]
    forms = [of.get(name) for name in ("uniform preset", "plain JAX", "no remat")]
    fitting = [one for one in forms if one is not None]
    scan, alike, mine = of.get("uniform preset"), at.get("alike"), at["search"]
    if scan is None or alike is None or mine is None:
        return None
    unrolled_us = min(one["step_us"] for one in fitting)
    alike_us = min(alike["step_us"], unrolled_us)
    whole = math.log(scan["step_us"] / mine["step_us"])
    if whole <= 0:
        return None
    return {
        "unrolling": math.log(scan["step_us"] / unrolled_us) / whole,
        "sets": math.log(unrolled_us / alike_us) / whole,
        "mixing": math.log(alike_us / mine["step_us"]) / whole,
    }


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Of those that are numbers at all; None if there are none.

    >>> geometric_mean([2.0, None, 8.0])
    4.0
    """
    known = [value for value in values if value is not None]
    if not known:
        return None
    return math.exp(sum(map(math.log, known)) / len(known))


def rows_of(name: str, found: Mapping[str, Any]) -> str:
    """One program, budget by budget: the search's time, and gains.

    Beside the time: how much of the budget is left, and by how much any assignment of
    the same candidates could be faster at most.
    """
    written = found["baseline"]
    lines = [
        f"{name} on {found['target']}, baseline {format_bytes(written['bytes'])} "
        f"and {format_us(written['step_us'])}"
    ]
    names = [r.name for r in BASELINES[1:] if gains(found, r.name)]
    lines.append(
        f"{'budget':>11} {'search':>10} {'left':>6} {'bound':>6} "
        + " ".join(f"{n:>16}" for n in names)
    )
    columns = [gains(found, n) for n in names]
    for k, at in enumerate(found["budgets"]):
        mine = at["search"]
        took = format_us(mine["step_us"]) if mine else "none fits"
        cells = " ".join(f"{_cell(column[k]):>16}" for column in columns)
        beside = f"{_left(at):>6} {_bound(mine):>6}"
        budget = format_bytes(at["budget_bytes"])
        lines.append(f"{budget:>11} {took:>10} {beside} {cells}")
    total = sum(found["compiles"].values())
    lines.append(f"{total} compiles, {sum(found['seconds'].values()):.0f} s")
    return "\n".join(lines)


def means(
    done: Mapping[str, Mapping[str, Any]], baseline: str
) -> dict[str, float | None]:
    """The search's throughput over a baseline's, over all that is done.

    A program that was run at more budgets weighs no more than another; or else every
    budget weighs the same.
    """
    listed = [gains(found, baseline) for found in done.values()]
    return {
        "mean of programs": geometric_mean(map(geometric_mean, listed)),
        "mean of budgets": geometric_mean(gain for row in listed for gain in row),
    }


def _left(at: Mapping[str, Any]) -> str:
    mine = at["search"]
    return f"{1 - mine['bytes'] / at['budget_bytes']:.1%}" if mine else "-"


def _bound(mine: Mapping[str, Any] | None) -> str:
    if mine is None or not mine.get("bound_us"):
        return "-"  # Where nothing is known it is 0.
    return f"{max(0.0, mine['step_us'] / mine['bound_us'] - 1):.1%}"


def _cell(gain: float | None) -> str:
    return "none fits" if gain is None else f"{gain:.3f}"


def summary(done: Mapping[str, Mapping[str, Any]]) -> str:
    """Geometric means, program by program and over all of them."""
    if not done:
        return "no program is done"
    names = [r.name for r in BASELINES[1:]]
    lines = [f"{'throughput over':20} " + " ".join(f"{n:>18}" for n in names)]
    for program, found in done.items():
        cells = [_mean_cell(gains(found, n)) for n in names]
        lines.append(f"{program:20} " + " ".join(f"{c:>18}" for c in cells))
    overall = {n: means(done, n) for n in names}
    for kind in overall[names[0]]:
        cells = [_mean_cell([overall[n][kind]]) for n in names]
        lines.append(f"{kind:20} " + " ".join(f"{c:>18}" for c in cells))
    lines.append("(in brackets: budgets at which a baseline has no plan that fits)")
    lines += fair(done)
    lines += [*_against_the_baseline(done), *closely_met(done)]
    for program, found in done.items():
        below = [n for n in names if (geometric_mean(gains(found, n)) or 1) < _LEVEL]
        if below:
            lines.append(f"{program} is below {', '.join(below)}")
    return "\n".join(lines)


def fair(done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The plans against the best of all baselines, budget by budget."""
    lines = []
    for below, promised in PROMISED.items():
        listed = [gains_over_best(found, below) for found in done.values()]
        mean = geometric_mean(gain for row in listed for gain in row)
        if mean is not None:
            held = "held" if mean >= promised else "NOT held"
            lines.append(
                f"{mean:.3f} x the best baseline at budgets below {below:.0%} of plain "
                f"unrolled loops, {promised:.2f} promised: {held}"
            )
    behind = [
        f"  {program}, {format_bytes(at['budget_bytes'])}: {gain:.4f}"
        for program, found in done.items()
        for at, gain in zip(_with_baseline(found), gains_over_best(found), strict=True)
        if not gain >= 1 - MOST_BEHIND
    ]
    lines.append(f"budgets at which a baseline is {MOST_BEHIND:.1%} faster or more: ")
    lines[-1] += str(len(behind))
    return [*lines, *behind]


def _with_baseline(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [at for at in found["budgets"] if best_baseline(at) is not None]


def shares_table(done: Mapping[str, Mapping[str, Any]]) -> str:
    """For the documents: what of the gain over presets in a scan is what."""
    names = ("unrolling", "sets", "mixing")
    lines = [
        f"| program | budget | gain | {' | '.join(names)} | over the best baseline |",
        f"|{'---|' * (len(names) + 4)}",
    ]
    for program, found in done.items():
        for at in found["budgets"]:
            parts, theirs, mine = shares(at), best_baseline(at), at["search"]
            if parts is None or theirs is None:
                continue
            scan = at["baselines"]["uniform preset"]
            cells = [f"{scan['step_us'] / mine['step_us']:.3f}"]
            cells += [f"{parts[name]:.0%}" for name in names]
            cells.append(f"{theirs['step_us'] / mine['step_us']:.3f}")
            budget = format_bytes(at["budget_bytes"])
            lines.append(f"| {program} | {budget} | {' | '.join(cells)} |")
    return "\n".join(lines)


def closely_met(done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """How budgets are met: closely, or nothing known says that more would help.

    What is left helps nobody where no plan at any budget, a baseline's or a searched
    one, is faster, where the plan's kinds of layers and one more, held to what it
    really took, make nothing faster that fits, or where no assignment of all that has a
    cost can be.
    """
    kinds = {
        f"within {_LEAST_LEFT:.1%}": 0,
        "the fastest plan there is takes no more": 0,
        "nothing near that fits is faster": 0,
        f"no assignment of the candidates is {_LEAST_GAIN:.1%} faster": 0,
    }
    near, fastest, filled, bounded = kinds
    exceeded, rest = 0, []
    for program, found in done.items():
        plans = [p for at in found["budgets"] for p in [at["search"], *_baselines(at)]]
        first_us = min((p["step_us"] for p in plans if p), default=math.inf)
        for place, at in enumerate(found["budgets"], 1):
            if (mine := at["search"]) is None:
                continue
            left = 1 - mine["bytes"] / at["budget_bytes"]
            least_us = mine["step_us"] / (1 + _LEAST_GAIN)
            bound_us = mine.get("bound_us") or 0.0
            beaten = any(p and p["step_us"] < least_us for p in _baselines(at))
            exceeded += left < 0
            if left <= _LEAST_LEFT:
                kinds[near] += 1
            elif first_us >= least_us:
                kinds[fastest] += 1
            elif mine.get("filled") and not beaten:
                kinds[filled] += 1
            elif bound_us >= least_us and not beaten:
                kinds[bounded] += 1
            else:
                rest.append(f"{program} {place}: {left:.1%} left, {_bound(mine)} bound")
    listed = ", ".join(f"{what} {number}" for what, number in kinds.items())
    lines = [f"budgets exceeded {exceeded}; {listed}; other ones {len(rest)}"]
    return [*lines, *(f"  {line}" for line in rest)]


def _baselines(at: Mapping[str, Any]) -> Iterable[Mapping[str, Any] | None]:
    return at["baselines"].values()


def markdown(done: Mapping[str, Mapping[str, Any]]) -> str:
    """The README's table: a program, the searched plans, and gains over the rest."""
    names = [r.name for r in BASELINES[1:]]
    head = ["program", "baseline", "searched", "with least memory", *names]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for program, found in done.items():
        plans = [at["search"] for at in found["budgets"] if at["search"] is not None]
        fastest = min(plans, key=lambda p: (p["step_us"], p["bytes"]), default=None)
        least = min(plans, key=lambda p: p["bytes"], default=None)
        cells = [_plan_cell(p) for p in (found["baseline"], fastest, least)]
        cells += [_mean_cell(gains(found, n)) for n in names]
        loops = "" if all(p.get("unroll", True) for p in plans) else ", loops"
        label = f"{program} ({found['target']}, {len(found['budgets'])}{loops})"
        lines.append(f"| {label} | {' | '.join(cells)} |")
    overall = {n: means(done, n) for n in names}
    for kind in overall[names[0]]:
        cells = [_mean_cell([overall[n][kind]]) for n in names]
        lines.append(f"| {kind} | | | | {' | '.join(cells)} |")
    return "\n".join(lines)


def _plan_cell(plan: Mapping[str, Any] | None) -> str:
    if plan is None:
        return "none fits"
    return f"{format_bytes(plan['bytes'])}, {format_us(plan['step_us'])}"


def _mean_cell(listed: list[float | None]) -> str:
    mean, none = geometric_mean(listed), sum(gain is None for gain in listed)
    text = "-" if mean is None else f"{mean:.3f}"
    return f"{text} ({none})" if none else text


def _against_the_baseline(done: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The fastest plans that take no more memory than the program as it is written."""
    lines = []
    for group in ("standard", "novel"):
        chosen = [found for found in done.values() if found["group"] == group]
        for kind in ("fusion-aware", "search"):
            values = [
                found["baseline"]["step_us"] / best["step_us"]
                for found in chosen
                if (best := found["no_more_memory"][kind]) is not None
            ]
            mean = geometric_mean(values)
            if mean is not None:
                lines.append(
                    f"{group} programs, {kind} against the baseline, at no more "
                    "memory: "
                    f"{mean:.3f} ({min(values):.3f} to {max(values):.3f})"
                )
    return lines


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Options, description=__doc__)))
