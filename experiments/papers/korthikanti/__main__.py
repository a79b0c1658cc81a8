"""Activations of a transformer layer under tensor and sequence parallelism.

    python -m experiments.papers.korthikanti

Compiles stacks of two depths for eight cards that need not be there, for each row of
the paper's table 2, and takes what a layer adds: from 12 to 24 layers for 22B, from 24
to 36 for the others, whose shallowest stacks have their peak elsewhere. The most
telling rows come first, each in a process of its own; started again, it goes on where
it stopped.

The layer is written by hand, and as Linen and NNX modules whose dimensions have names.

Expected: 22B on eight H100 within 2 % of all rows of table 2; 175B, 530B and 1T on
eight A100 within 0.5 % of 34 sbh/t with tensor and sequence parallelism and selective
recompute.

Writes results/korthikanti.json and .txt, and claims.toml beside this file.

    python -m experiments.papers.korthikanti --sizes 4096x32x2 --tensor 2 4 --out FOLDER

Compiles the rows of table 2 for other widths, heads and sequences at a time, and for
other degrees of tensor parallelism, beside the paper's formulas.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments.files import write_whole
from experiments.papers.korthikanti.claims import (
    BEST,
    BY_KERNEL,
    ROWS,
    WITH_SUMS,
    as_toml,
    card_of,
    claims,
    devices_of,
    table,
)
from experiments.papers.korthikanti.flax_models import MODELS
from experiments.papers.korthikanti.published import (
    OVERHEADS,
    SIZES,
    TENSOR,
    size_of,
)
from experiments.papers.rows import Row, ask, complete

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "results"
KEY = ("size", "scheme", "layers", "batch", "target")
Wanted = tuple[str, str, int, int, str]
OTHER_TENSOR = 2, 4
"""Degrees of tensor parallelism beside the paper's eight."""


@dataclass(frozen=True)
class Paper:
    """What to compile.

    Attributes:
      all_sizes: Also all rows of table 2 for 175B, 530B and 1T.
      sizes: Only these, of the paper or as WIDTHxHEADSxBATCH.
      tensor: Only these degrees of tensor parallelism.
      most: Stop after so many compiles.
      seconds: The most one may take.
      out: Folder for the results.
      claims: Where the claims are written; by default beside this file, or in another
        folder for the results.
    """

    all_sizes: bool = True
    sizes: tuple[str, ...] = ()
    tensor: tuple[int, ...] = ()
    most: int | None = None
    seconds: float = 900.0
    out: Path = RESULTS
    claims: Path | None = None


def rows(paper: Paper) -> Iterator[Wanted]:
    """Size, scheme, layers, batch and target, the most telling first."""
    if paper.sizes or paper.tensor:
        yield from _other_rows(paper.sizes or ("22B",), paper.tensor or (TENSOR,))
        return
    order = [("22B", scheme, "h100") for scheme in (BEST, *ROWS)]
    order += [(size, BEST, "a100") for size in SIZES if size != "22B"]
    beside = "full, sharded", "fewer", WITH_SUMS, BY_KERNEL
    order += [("22B", scheme, "h100") for scheme in beside]
    order += [("22B", model, "h100") for model in MODELS]
    timed = ("tp", *OVERHEADS, "full, sharded")
    order += [("22B", scheme, "a100") for scheme in timed]
    for size, scheme, card in dict.fromkeys(order):
        yield from _two_depths(size, scheme, f"{card}:{devices_of(scheme)}")
    yield from _other_rows(("22B",), OTHER_TENSOR)
    if paper.all_sizes:
        others = [size for size in SIZES if size != "22B"]
        yield from _other_rows(others, (TENSOR,))


def _other_rows(sizes: Sequence[str], tensor: Sequence[int]) -> Iterator[Wanted]:
    """Rows of table 2 for other sizes and degrees of tensor parallelism."""
    order = [
        (size, scheme, f"{card_of(size)}:{devices_of(scheme, degree)}")
        for size in sizes
        for degree in tensor
        for scheme in (BEST, *ROWS)
    ]
    for one in dict.fromkeys(order):
        yield from _two_depths(*one)


def _two_depths(size: str, scheme: str, target: str) -> Iterator[Wanted]:
    for layers in (12, 24) if size == "22B" else (24, 36):
        yield size, scheme, layers, size_of(size).micro_batch, target


def main() -> int:
    """Compile what is missing, write after each, compare with the paper."""
    paper = tyro.cli(Paper, description=__doc__)
    try:
        wanted = [*rows(paper)]
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    paper.out.mkdir(parents=True, exist_ok=True)
    path = paper.out / "korthikanti.json"
    folder = HERE if paper.out.resolve() == RESULTS.resolve() else paper.out
    claims_path = paper.claims or folder / "claims.toml"

    def report(found: Sequence[Row]) -> None:
        write_whole(path.with_suffix(".txt"), table(found))
        write_whole(claims_path, as_toml([*claims(found)]))

    found, failed = complete(
        path,
        wanted,
        KEY,
        lambda row: ask("experiments.papers.korthikanti.row", row, paper.seconds),
        report,
        paper.most,
    )
    print(table(found), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
