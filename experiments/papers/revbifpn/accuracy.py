"""RevBiFPN's accuracy on real images, inverted and stored, over seeds.

    python -m experiments.papers.revbifpn.accuracy

Trains `configs/revbifpn_fashion.py` (S0's width, on Fashion-MNIST) with its stack
inverted and as the plain counterpart, whose activations are stored: the same functions,
the same initial parameters, the same images in the same order. What differs is
rounding. Each training is a run of `experiments/train.py`, one after the other; started
again, the command goes on where it stopped.

Said beforehand: the variants are equal if their mean accuracies differ by less than two
standard errors of that difference, or by less than one point.

Writes results/revbifpn-accuracy.json and results/revbifpn-accuracy.txt.
"""

import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import tyro

from experiments.configs.revbifpn_fashion import config
from experiments.files import write_whole
from experiments.papers.revbifpn.networks import INVERTED, STORED
from experiments.records import read_metrics
from revremat import UserError

EXPERIMENTS = Path(__file__).parents[2]
POINT = 0.01
WAYS = (INVERTED, STORED)


@dataclass(frozen=True)
class Accuracy:
    """What to train.

    Attributes:
      seeds: Of parameters, dropout and the order of images.
      num_steps: Of each training.
      most: Stop after so many trainings.
      runs: Folder for the runs.
      out: Folder for the results.
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    num_steps: int = config.train.num_steps
    most: int | None = None
    runs: Path = Path("runs/revbifpn-accuracy")
    out: Path = EXPERIMENTS / "results"


def train(way: str, seed: int, paper: Accuracy) -> dict[str, Any]:
    """One training to its end: its last losses and held-out accuracy.

    Raises:
      UserError: If it fails, with its last words.
    """
    folder = paper.runs / f"{way}-{seed}-{paper.num_steps}"
    args = {
        "model.reversible": way == INVERTED,
        "train.seed": seed,
        "train.num-steps": paper.num_steps,
        "train.valid-every": paper.num_steps,
        "train.dir": folder,
    }
    flags = [word for key, value in args.items() for word in (f"--{key}", str(value))]
    # Seeds are numbers to one program: it is compiled once for each way.
    compiled = {"JAX_COMPILATION_CACHE_DIR": str((paper.runs / "compiled").absolute())}
    done = subprocess.run(
        [sys.executable, str(EXPERIMENTS / "train.py"), "revbifpn_fashion", *flags],
        env=os.environ | compiled,
        capture_output=True,
        text=True,
        check=False,
    )
    rows = read_metrics(folder / "metrics.jsonl")
    if done.returncode or not rows or "valid_accuracy" not in rows[-1]:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no word"]
        raise UserError(f"{way}, seed {seed}: {words[-1]}")
    last = rows[-1]
    return {
        "way": way,
        "seed": seed,
        "num_steps": paper.num_steps,
        "accuracy": round(last["valid_accuracy"], 5),
        "valid_loss": round(last["valid_loss"], 5),
        "images": config.data.batch_size * config.train.valid_batches,
    }


def compare(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means, spreads and whether the variants are equal, of at least two seeds each."""
    by_way = {
        way: [row["accuracy"] for row in rows if row["way"] == way] for way in WAYS
    }
    if min(map(len, by_way.values())) < 2:
        return {}
    mean = {way: fmean(values) for way, values in by_way.items()}
    spread = {way: stdev(values) for way, values in by_way.items()}
    difference = mean[INVERTED] - mean[STORED]
    error = math.sqrt(sum(spread[way] ** 2 / len(by_way[way]) for way in WAYS))
    return {
        "mean": {way: round(value, 5) for way, value in mean.items()},
        "stdev": {way: round(value, 5) for way, value in spread.items()},
        "difference": round(difference, 5),
        "standard_error": round(error, 5),
        "equal": abs(difference) < max(2 * error, POINT),
    }


def table(rows: list[dict[str, Any]]) -> str:
    """Accuracy by seed and way, then means, spreads and the verdict."""
    seeds = sorted({row["seed"] for row in rows})
    known = {(row["way"], row["seed"]): row["accuracy"] for row in rows}
    lines = [f"{'seed':<10}" + "".join(f"{way:>12}" for way in WAYS)]
    for seed in seeds:
        cells = [known.get((way, seed)) for way in WAYS]
        texts = ["" if cell is None else f"{cell:.4f}" for cell in cells]
        lines.append(f"{seed:<10}" + "".join(f"{text:>12}" for text in texts))
    found = compare(rows)
    if found:
        for name in ("mean", "stdev"):
            values = "".join(f"{found[name][way]:>12.4f}" for way in WAYS)
            lines.append(f"{name:<10}{values}")
        verdict = "equal" if found["equal"] else "not equal"
        lines.append(
            f"difference {found['difference']:+.4f}, standard error "
            f"{found['standard_error']:.4f}: {verdict}"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Train what is missing, write after each."""
    paper = tyro.cli(Accuracy, description=__doc__)
    path = paper.out / "revbifpn-accuracy.json"
    rows: list[dict[str, Any]] = []
    if path.exists():
        rows = json.loads(path.read_text(encoding="utf-8"))["runs"]
        rows = [row for row in rows if row["num_steps"] == paper.num_steps]
    paper.runs.mkdir(parents=True, exist_ok=True)
    done = {(row["way"], row["seed"]) for row in rows}
    missing = [(w, s) for s in paper.seeds for w in WAYS if (w, s) not in done]
    try:
        for way, seed in missing[: paper.most]:
            rows.append(train(way, seed, paper))
            print(f"{way}, seed {seed}: {rows[-1]['accuracy']:.4f}", flush=True)
            found = {"runs": rows, "comparison": compare(rows)}
            write_whole(path, json.dumps(found, indent=1) + "\n")
            write_whole(path.with_suffix(".txt"), table(rows))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(rows), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
