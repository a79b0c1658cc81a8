"""What each pass of the search gains: the same search without it.

    python -m experiments.bench.passes

Each program is searched by all passes, then without each one that a search can do
without. All searches share what was compiled. A search without a pass begins where
that pass first changed what was known, so it takes the time of what comes after; a
pass that changed nothing is not left out, as the search would be the same.

Prints the passes without which a plan is slower or does not fit, with the figures; the
last lines name the others. Writes `experiments/results/passes.json`, a program as it is
done; done ones are not run again.
"""

import dataclasses
import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tyro

import revremat as rr
from experiments.bench.columns import columns
from experiments.bench.programs import PROGRAMS, Size, refusal
from experiments.files import write_whole

# Private: a user's search has all of its passes; this leaves out one at a time.
from revremat import _search, format_bytes, format_us

RESULT = Path(__file__).parents[1] / "results" / "passes.json"
SIZES: dict[str, Size] = {
    "elementwise_chain": "cpu",
    "tiny_matmuls": "cpu",
    "gpt2_xl": "tiny",
}
"""Programs that are searched by default, so small that all takes a few minutes."""
LEAST_GAIN = 1e-3
"""Share of a step below which two plans take the same."""


@dataclass(frozen=True)
class Options:
    """What is searched, and where.

    Attributes:
      names: Programs of `experiments.bench.programs`; those that are searched already
        are not searched again.
      size: Of the programs, tiny, cpu or real; by default each has its own.
      target: Where they would run.
      budgets: How many, evenly spaced by ratio below the baseline.
      out: What is written.
    """

    names: tuple[str, ...] = tuple(SIZES)
    size: Size | None = None
    target: str = "h100:1"
    budgets: int = 2
    out: Path = RESULT

    def program(self, name: str) -> dict[str, Any]:
        """What a program's rows say of it."""
        size = self.size or SIZES.get(name, "cpu")
        return {"program": name, "size": size, "target": self.target}


def _program(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["program"], row["size"], row["target"]


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

    @classmethod
    def of(cls, state: _search.State) -> "Found":
        """What a search found that knows this in the end."""
        return cls(state.best.bytes, state.best.time_us, state.fits)

    def __str__(self) -> str:
        note = "" if self.fits else ", does not fit"
        return f"{format_bytes(self.bytes)}, {format_us(self.step_us)}{note}"

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


def _note_profiled(state: _search.State, ask: _search.Ask) -> _search.State:
    del ask
    return state.but(is_profiled=True)


PASSES: tuple[_search.Pass, ...] = (*_search.PROFILE, _note_profiled, *_search.DECIDE)
"""All passes of a search, in order."""


def states(start: _search.State, ask: _search.Ask) -> list[_search.State]:
    """What a search by all passes knows before each of them, and after the last."""
    known = [start]
    for one in PASSES:
        known.append(_search.run_all(known[-1], ask, [one]))
    return known


def without(
    name: str, known: Sequence[_search.State], ask: _search.Ask
) -> _search.State | None:
    """What a search knows in the end that leaves out a pass.

    Args:
      name: Of the pass.
      known: Of the search by all passes, from `states`.
      ask: How the search asks.

    Returns:
      None where the pass changed nothing, so that both searches are the same.
    """
    for place, one in enumerate(PASSES):
        if _search.name_of(one) == name and known[place + 1] != known[place]:
            rest = [p for p in PASSES[place:] if _search.name_of(p) != name]
            return _search.run_all(known[place], ask, rest)
    return None


def rows(options: Options, name: str) -> Iterator[dict[str, Any]]:
    """What a program's search loses without each pass, at each budget."""
    about = options.program(name)
    target = rr.target(options.target)
    problem = PROGRAMS[name].make(target, about["size"])
    start, ask = _search.begin(problem, target)
    ask = dataclasses.replace(ask, oracle=Remembering(ask.oracle))
    profiled = _search.profile(start, ask)
    most = profiled.baseline.bytes
    least = min(row.bytes for row in profiled.rows.values())
    for budget in np.geomspace(0.95 * most, 1.05 * least, options.budgets):
        known = states(start.within(int(budget)), ask)
        about |= {"budget_bytes": int(budget)}
        yield {**about, "without": "", **dataclasses.asdict(Found.of(known[-1]))}
        for one in optional_passes():
            print(f"{name}, {format_bytes(int(budget))}: leaving out {one}", flush=True)
            less = without(one, known, ask)
            told = None if less is None else dataclasses.asdict(Found.of(less))
            yield {**about, "without": one, **(told or {"same": True})}


def read(file: Path = RESULT) -> list[dict[str, Any]]:
    """What was found so far; nothing if there is no such file."""
    return json.loads(file.read_text()) if file.exists() else []


def table(results: Sequence[Mapping[str, Any]]) -> str:
    """Where a pass gained something, and in the last lines the passes that did not."""
    found = lambda row: Found(row["bytes"], row["step_us"], row["fits"])
    place = lambda row: (*_program(row), row["budget_bytes"])
    whole = {place(row): found(row) for row in results if not row["without"]}
    names = list(dict.fromkeys(row["without"] for row in results if row["without"]))
    lines = [("without", "program", "budget", "all passes", "without it")]
    changed, gained = set(), set()
    for name in names:
        for row in (row for row in results if row["without"] == name):
            if row.get("same"):
                continue
            changed.add(name)
            ours, less = whole[place(row)], found(row)
            if less.is_worse_than(ours):
                gained.add(name)
                budget = format_bytes(row["budget_bytes"])
                lines.append((name, row["program"], budget, str(ours), str(less)))
    text = [columns(lines)]
    groups = {
        "an equally good plan is found without": changed - gained,
        "changed nothing": set(names) - changed,
    }
    for what, group in groups.items():
        listed = ", ".join(name for name in names if name in group) or "none"
        said = textwrap.fill(f"{what}: {listed}", 88, subsequent_indent="  ")
        text += ["", said]
    return "\n".join(text)


def main(options: Options) -> int:
    """Runs what is missing, and prints the table; 2 where a program is not known."""
    unknown = refusal(options.names, PROGRAMS)
    if unknown:
        print(unknown)
        return 2
    done = read(options.out)
    for name in options.names:
        if _program(options.program(name)) in map(_program, done):
            continue
        done += list(rows(options, name))
        write_whole(options.out, json.dumps(done, indent=1) + "\n")
    print(table(done))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(tyro.cli(Options, description=__doc__)))
