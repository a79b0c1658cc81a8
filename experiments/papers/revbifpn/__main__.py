"""RevBiFPN's memory against EfficientNet's and HRNet's, by the compilers of the GPUs.

    python -m experiments.papers.revbifpn

Compiles the training step of every network at its native resolution, the most telling
rows first, each in a process of its own, and writes after each; started again, it goes
on where it stopped. Bytes of a sample are the step's, less those of parameters, state
and their gradients, divided by the batch; the slope is what another sample adds, from
batch 16 to 64. Convolution workspaces are not in any figure: they are in the target's
reserve.

Expected: S4, S5 and S6 with the head computed again take at least 19.8 times less than
B5, B6 and B7 (the paper measured 13, 11 and 19.8 times on a GPU), S6 without that as
well, and Faster R-CNN on S3 2.4 times less than on HRNetV2p-W18.

Writes results/revbifpn-memory.json and results/revbifpn-memory.txt.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from experiments.files import write_whole
from experiments.models.efficientnet import EFFICIENTNET
from experiments.papers.revbifpn.detectors import DETECTORS
from experiments.papers.revbifpn.networks import HEAD_TOO, INVERTED, STORED
from experiments.papers.revbifpn.table import KEY, table
from experiments.papers.rows import Row, ask, complete
from revremat.reversible import REVBIFPN

RESULTS = Path(__file__).parents[2] / "results"
PAIRS = (("S6", "B7"), ("S5", "B6"), ("S4", "B5"))


@dataclass(frozen=True)
class Paper:
    """What to compile.

    Attributes:
      targets: Whose compilers are asked.
      batches: Images a step; with two of them there are slopes.
      networks: Only these; all by default.
      most: Stop after so many compiles.
      seconds: The most one may take.
      out: Folder for the results.
    """

    targets: tuple[str, ...] = ("h100:1", "a100:1")
    batches: tuple[int, ...] = (16, 64)
    networks: tuple[str, ...] = ()
    most: int | None = None
    seconds: float = 3600.0
    out: Path = RESULTS


def rows(paper: Paper) -> Iterator[tuple[str, str, int, str]]:
    """Network, way, batch and target of each row, the most telling first."""
    pairs = [name for pair in PAIRS for name in pair]
    others = [name for name in (*EFFICIENTNET, *REVBIFPN) if name not in pairs]
    order: list[tuple[str, str]] = []
    for name in (*pairs, *others):
        order.append((name, INVERTED if name in REVBIFPN else STORED))
    order += [(name, HEAD_TOO) for name in (*pairs, *others) if name in REVBIFPN]
    order += [(name, STORED) for name in REVBIFPN]
    order += [(name, way) for name, (_, ways) in DETECTORS.items() for way in ways]
    for target in paper.targets:
        for batch in paper.batches:
            for name, way in order:
                if not paper.networks or name in paper.networks:
                    yield name, way, batch, target


def main() -> int:
    """Compile what is missing, write after each."""
    paper = tyro.cli(Paper, description=__doc__)
    names = (*REVBIFPN, *EFFICIENTNET, *DETECTORS)
    if unknown := sorted({*paper.networks} - {*names}):
        known = ", ".join(names)
        print(f"no network {unknown[0]!r}; choose from {known}", file=sys.stderr)
        return 2
    path = paper.out / "revbifpn-memory.json"

    def report(found: Sequence[Row]) -> None:
        write_whole(path.with_suffix(".txt"), table(found))

    found, failed = complete(
        path,
        rows(paper),
        KEY,
        lambda row: ask("experiments.papers.revbifpn.row", row, paper.seconds),
        report,
        paper.most,
    )
    print(table(found), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
