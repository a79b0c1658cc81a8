"""Plans for the paper's 22B stack, searched and by hand.

    python -m experiments.papers.korthikanti.fits

24 layers with tensor and sequence parallelism on eight H100: `rr.fit` at 7 GiB and at
10 GiB, loops staying loops, and the plans that people would write. Each row is made in
a process of its own; started again, the command goes on where it stopped.

Expected: what is searched fits, and is no slower than what is written by hand and fits.

Writes results/korthikanti-fits.json and .txt.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments.files import write_whole
from experiments.papers.rows import Row, ask, complete
from revremat import format_bytes, format_us

RESULTS = Path(__file__).parents[2] / "results"
KEY = ("plan", "budget", "dropout", "layers", "target")
BY_HAND = ("", "x2", "x2+ctx", "x2+q+k+v+ctx", "x2+q+k+v+ctx+up")
"""Names that every layer keeps; none of them: all is recomputed."""
BUDGETS = ("7GiB", "10GiB")
FIT = "fit"


@dataclass(frozen=True)
class Fits:
    """What to compile.

    Attributes:
      layers: Of the stack.
      target: Eight devices.
      most: Stop after so many rows.
      seconds: The most one may take.
      out: Folder for the results.
    """

    layers: int = 24
    target: str = "h100:8"
    most: int | None = None
    seconds: float = 5400.0
    out: Path = RESULTS


def rows(fits: Fits) -> Iterator[tuple[str, str, int, int, str]]:
    """Plan, budget, whether there is dropout, layers and target."""
    rest = fits.layers, fits.target
    for dropout in (0, 1):
        for names in BY_HAND:
            yield names or "nothing", "-", dropout, *rest
        for budget in BUDGETS:
            yield FIT, budget, dropout, *rest


def table(found: Sequence[Row]) -> str:
    """The rows, as they are read."""
    lines = [f"{'':36}{'on each device':>15}{'a step':>10}{'compiles':>10}"]
    for row in sorted(found, key=lambda row: (row["dropout"], row["total_bytes"])):
        label = f"{row['plan']} {row['budget']}".removesuffix(" -")
        label += "" if row["dropout"] else ", no dropout"
        size, time = format_bytes(row["total_bytes"]), format_us(row["step_us"])
        lines.append(f"{label:36}{size:>15}{time:>10}{row['compiles']:>10}")
        lines += [f"    {line}" for line in row["actions"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Make what is missing, write after each."""
    fits = tyro.cli(Fits, description=__doc__)
    path = fits.out / "korthikanti-fits.json"
    found, failed = complete(
        path,
        rows(fits),
        KEY,
        lambda row: ask("experiments.papers.korthikanti.fit_row", row, fits.seconds),
        lambda found: write_whole(path.with_suffix(".txt"), table(found)),
        fits.most,
    )
    print(table(found), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
