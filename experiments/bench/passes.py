"""What each pass of the search gains: the same search without it.

    python -m experiments.bench.passes

Each program is searched at three budgets by all passes, then without each one that a
search can do without. All of them share what was compiled, so the order does not
matter. Prints the passes without which a plan is slower or does not fit, with the
figures; a pass that changes nothing here is named in the last line. Writes
`experiments/results/passes.json`, a program as it is done; done ones are not run again.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import revremat as rr
from experiments.bench.programs import PROGRAMS, refusal
from experiments.records import write_whole

# Private: a user's search has all of its passes; this leaves out one at a time.
from revremat import _search, format_bytes, format_us

RESULT = Path(__file__).parents[1] / "results" / "passes.json"
NAMES = (
    "elementwise_chain",
    "softmax_chain",
    "tiny_matmuls",
    "recurrence",
    "kinetics",
    "gpt2_xl",
)
LEAST_GAIN = 1e-3
"""Share of a step below which two plans take the same."""


@dataclass(frozen=True)
class Options:
    """What is searched, and where.

    Attributes:
      names: Programs of `experiments.bench.programs`.
      size: Of the programs: tiny, cpu or real.
      target: Where they would run.
      budgets: How many, evenly spaced by ratio below the baseline.
      out: What is written.
    """

    names: tuple[str, ...] = NAMES
    size: str = "cpu"
    target: str = "h100:1"
    budgets: int = 3
    out: Path = RESULT


@dataclass
class Remembering:
    """Asks an oracle once about each program, whichever search wants to know."""

    oracle: _search.RequestOracle
    known: dict[Any, Any] = field(default_factory=dict)

    def measure(self, requests: Iterable[_search.Request]) -> list[Any]:
        """What becomes of each, in order."""
        asked = list(requests)
        new = [r for r in asked if r.key not in self.known]
        for request, found in zip(new, self.oracle.measure(new), strict=True):
            self.known[request.key] = found
        return [self.known[request.key] for request in asked]


@dataclass(frozen=True)
class Found:
    """A search's answer.

    Attributes:
      bytes: What the plan takes.
      step_us: Its time.
      fits: Whether it is within the budget.
    """

    bytes: int
    step_us: float
    fits: bool

    def is_worse_than(self, other: "Found") -> bool:
        """Whether it does not fit where the other does, or is slower."""
        if self.fits != other.fits:
            return other.fits
        if not self.fits:
            return self.bytes > other.bytes
        return self.step_us > other.step_us * (1 + LEAST_GAIN)


def optional_passes() -> list[str]:
    """Names of the passes a search can do without, in order."""
    required = {_search.name_of(one) for one in _search.REQUIRED}
    passes = (*_search.PROFILE, *_search.DECIDE)
    return [n for n in dict.fromkeys(map(_search.name_of, passes)) if n not in required]


def search(start: tuple[Any, Any], budget: int, without: str = "") -> Found:
    """The best plan that a search finds without a pass.

    Args:
      start: A search that knows nothing, and how it asks.
      budget: Bytes.
      without: The pass; none if empty.
    """
    state, ask = start
    left = lambda passes: [p for p in passes if _search.name_of(p) != without]
    state = _search.run_all(state.within(budget), ask, left(_search.PROFILE))
    state = state.but(is_profiled=True)
    best = _search.run_all(state, ask, left(_search.DECIDE)).best
    return Found(best.bytes, best.time_us, best.bytes <= budget)


def rows(options: Options, name: str) -> Iterator[dict[str, Any]]:
    """What a program's search loses without each pass, at each budget."""
    target = rr.target(options.target)
    problem = PROGRAMS[name].make(target, options.size)
    state, ask = _search.begin(problem, target)
    start = state, dataclasses.replace(ask, oracle=Remembering(ask.oracle))
    all_known = _search.profile_all(*start)
    most = all_known.baseline.bytes
    least = min(row.bytes for row in all_known.rows.values())
    for budget in np.geomspace(0.95 * most, 1.05 * least, options.budgets):
        budget = int(budget)
        whole = search(start, budget)
        row = {"program": name, "budget_bytes": budget, **dataclasses.asdict(whole)}
        yield {**row, "without": ""}
        for one in optional_passes():
            less = search(start, budget, one)
            yield {**row, **dataclasses.asdict(less), "without": one}


def table(results: Sequence[dict[str, Any]]) -> str:
    """Where a pass gained something, as a table of Markdown."""
    lines = [
        "| without | program | budget | all passes | without it |",
        "|---|---|---|---|---|",
    ]
    read = lambda row: Found(row["bytes"], row["step_us"], row["fits"])
    whole = {
        (r["program"], r["budget_bytes"]): read(r) for r in results if not r["without"]
    }
    gained = set()
    for one in dict.fromkeys(r["without"] for r in results if r["without"]):
        for row in (r for r in results if r["without"] == one):
            budget = row["budget_bytes"]
            ours, less = whole[row["program"], budget], read(row)
            if less.is_worse_than(ours):
                gained.add(one)
                lines.append(
                    f"| {one} | {row['program']} | {format_bytes(budget)} | "
                    f"{_cell(ours)} | {_cell(less)} |"
                )
    same = [n for n in dict.fromkeys(r["without"] for r in results) if n]
    same = [name for name in same if name not in gained]
    if same:
        lines += ["", f"No plan here is worse without {', '.join(same)}."]
    return "\n".join(lines)


def _cell(found: Found) -> str:
    note = "" if found.fits else ", does not fit"
    return f"{format_bytes(found.bytes)}, {format_us(found.step_us)}{note}"


def main(options: Options) -> int:
    """Runs what is missing, and prints the table; 2 where a program is not known."""
    unknown = refusal(options.names, PROGRAMS)
    if unknown:
        print(unknown)
        return 2
    about = {"target": options.target, "size": options.size}
    done = {**about, "results": []}
    if options.out.exists():
        done = json.loads(options.out.read_text())
        if {k: done[k] for k in about} != about:
            print(f"{options.out} holds other sizes: name another file by --out")
            return 2
    for name in options.names:
        if any(row["program"] == name for row in done["results"]):
            continue
        done["results"] += list(rows(options, name))
        write_whole(options.out, json.dumps(done, indent=1) + "\n")
        print(f"{name}: done", flush=True)
    print(table(done["results"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Options, description=__doc__)))
