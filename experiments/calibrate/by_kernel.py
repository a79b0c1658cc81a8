"""Holds the time model to the kernels that a card ran, instruction by instruction.

    python -m experiments.calibrate.by_kernel experiments/results/cards/h100

Nothing is compiled and no card is needed: a run's `hlo.tgz` holds the modules as they
were compiled on the card, and the kernels of a profiled step of each. An estimate is
of such a module, by the data sheet or by the run's `card.json`. Kernels that ran beside
one another count in full, so their sum may be more than the step.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from experiments.calibrate.matching import Match, match
from experiments.calibrate.runner import CARD
from experiments.calibrate.stored import Stored, stored
from revremat.xla import Target, estimate, instruction_times, load_card, with_changes

WORST = 12


@dataclass(frozen=True)
class Held:
    """One program, held to what was measured.

    Attributes:
      name: Program and variant.
      step_us: Measured.
      busy_us: Of all kernels of the profiled step.
      estimate_us: Of a step.
      matches: Of its kernels.
      is_finite: Whether the steps computed numbers; others do not count.
    """

    name: str
    step_us: float
    busy_us: float
    estimate_us: float
    matches: tuple[Match, ...]
    is_finite: bool = True

    @property
    def ratio(self) -> float:
        """The estimate of a step over the measured one."""
        return self.estimate_us / self.step_us


def held(one: Stored, target: Target) -> Held:
    """The estimates of one program beside its measurements."""
    times = instruction_times(one.module, target)
    return Held(
        one.name,
        one.step_us,
        one.busy_us,
        estimate(one.module, target).step_us,
        tuple(match(one.module, times, one.kernels)) if one.kernels else (),
        one.is_finite,
    )


def by_kind(matches: Iterable[Match]) -> list[Match]:
    """Sums by kind of kernel, the longest measured first."""
    kinds: dict[str, Match] = {}
    for one in matches:
        kinds.setdefault(one.kind, Match(one.kind, one.kind)).add(one)
    return sorted(kinds.values(), key=lambda kind: -kind.measured_us)


def text(programs: Sequence[Held], worst: int = WORST) -> str:
    """All tables: steps, kinds of kernels of all programs, and the worst kernels."""
    lines = [
        f"{'program':36} {'measured':>10} {'kernels':>10} {'estimate':>10}  ratio",
        "-" * 76,
    ]
    for one in programs:
        lines.append(
            f"{one.name:36} {_ms(one.step_us)} "
            f"{_ms(one.busy_us) if one.busy_us else '-':>10} "
            f"{_ms(one.estimate_us)}  x {one.ratio:.2f}"
            f"{'' if one.is_finite else ', not finite: it does not count'}"
        )
    errors = [abs(one.ratio - 1) for one in programs if one.is_finite]
    if errors:
        within = sum(error <= 0.05 for error in errors)
        lines.append(
            f"{len(errors)} steps: {within} within 5 %, the median is off by "
            f"{statistics.median(errors):.1%}, the worst by {max(errors):.1%}"
        )
    whole = sum(one.busy_us for one in programs)
    lines += ["", f"{'kind of kernel':28} {'share':>6} {'measured':>10}  ratio   runs"]
    lines.append("-" * 62)
    for kind in by_kind(m for one in programs for m in one.matches):
        lines.append(
            f"{kind.kind:28} {kind.measured_us / whole:6.1%} {_ms(kind.measured_us)}"
            f"  {_ratio(kind)}  {kind.seen:.0f}"
        )
    found = [(m, one.name) for one in programs for m in one.matches]
    found.sort(key=lambda pair: -abs(pair[0].off_us))
    if worst:
        lines += ["", "The kernels that are off by most in one step:", ""]
    for one, name in found[:worst]:
        lines.append(
            f"{name:36} {one.name[:34]:34} {one.kind:24} {one.seen:6.0f} times "
            f"{_ms(one.measured_us)}  {_ratio(one)}"
        )
    return "\n".join(lines)


def _ms(us: float) -> str:
    return f"{us / 1e3:7.2f} ms"


def _ratio(one: Match) -> str:
    if not one.measured_us:
        return f"{one.estimated_us / 1e3:.2f} ms for none"
    return f"x {one.estimated_us / one.measured_us:.2f}"


def target_of(folder: Path, *, measured: bool = False) -> Target:
    """The card of a run, by its data sheet or with the factors measured there."""
    found = json.loads((folder / CARD).read_text(encoding="utf-8"))
    key = found["machine"]["card"]
    card = replace(load_card(key), measured=False)
    if measured:
        card = with_changes(card, found["card"])
    return Target(f"{key}:1", card, 1, 1)


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables of a run."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.calibrate.by_kernel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="with the files of a run")
    parser.add_argument("--only", default="", help="programs by a part of their name")
    parser.add_argument("--worst", type=int, default=WORST, help="kernels to list")
    parser.add_argument(
        "--measured", action="store_true", help="by the factors measured in the run"
    )
    options = parser.parse_args(arguments)
    target = target_of(options.folder, measured=options.measured)
    programs = [held(one, target) for one in stored(options.folder, options.only)]
    if not programs:
        print(f"{options.folder} has no profile of such a program")
        return 2
    print(text(programs, options.worst))
    return 0


if __name__ == "__main__":
    sys.exit(main())
