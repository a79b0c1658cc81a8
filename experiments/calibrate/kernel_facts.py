"""What the kernels of a run say of the card's numbers, and how well that carries over.

    python -m experiments.calibrate.kernel_facts experiments/results/cards/h100

Each number of the time model is set so that the kernels which it decides take together
what they were measured to take: of each program alone, and of all. Then every program
is estimated with the numbers that the other programs give: variants of one program,
and programs that are made of one another, are left out together.
"""

import argparse
import dataclasses
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.calibrate.by_kernel import target_of
from experiments.calibrate.matching import ELEMENTWISE, LIBRARY, match
from experiments.calibrate.stored import Stored, stored
from revremat.xla import (
    Card,
    Module,
    Target,
    estimate,
    instruction_times,
    instruction_us,
)

SHORTEST_US = 20.0
"""Kernels that are over sooner tell more of their start than of their work."""

FACTS = {
    "memory_efficiency": ELEMENTWISE,  # of kernels of this kind
    "matmul_efficiency": LIBRARY,
    "blocks_per_clock": "",  # of all that it decides
    "block_fusion_share": "",
    "far_pieces": "",
    "computed_operand_share": "",
    "uneven_rows_share": "",
    "convolution_share": "",
    "atomics_per_clock": "",
}
SLOPE = "lower_clock"

_NEUTRAL = {
    "blocks_per_clock": 0.0,
    "block_fusion_share": 1.0,
    "far_pieces": 0.0,
    "computed_operand_share": 1.0,
    "uneven_rows_share": 1.0,
    "convolution_share": 1.0,
    "atomics_per_clock": 0.0,
}

# Programs that are made of one another.
_FAMILIES = {"accumulated": "mlp", "rematted": "mlp", "offloaded": "offload"}


@dataclass(frozen=True)
class Sample:
    """Kernels that were measured together.

    Attributes:
      family: The program.
      kind: Of kernel.
      module: Of the instructions.
      instructions: And how often each runs.
      measured_us: Of all of them.
    """

    family: str
    kind: str
    module: Module
    instructions: tuple[tuple[Any, int], ...]
    measured_us: float

    def estimated_us(self, card: Card) -> float:
        """The estimate of all of them."""
        target = Target("", card, 1, 1)
        return sum(
            runs * instruction_us(i, self.module, target)
            for i, runs in self.instructions
        )


def family_of(one: Stored) -> str:
    """The program whose kernels a stored one shares."""
    return _FAMILIES.get(one.program, one.program)


def samples(programs: Sequence[Stored], target: Target) -> list[Sample]:
    """All kernels of profiled steps that take long enough."""
    found = []
    for one in programs:
        times = instruction_times(one.module, target)
        for m in match(one.module, times, one.kernels):
            if m.runs and m.seen and m.measured_us / m.seen >= SHORTEST_US:
                found.append(
                    Sample(
                        family_of(one),
                        m.kind,
                        one.module,
                        m.instructions,
                        m.measured_us,
                    )
                )
    return found


def with_fact(card: Card, name: str, value: float) -> Card:
    """A card with another number."""
    if hasattr(card, name):
        return dataclasses.replace(card, **{name: value})
    return dataclasses.replace(card, description={**card.description, name: value})


def fact(card: Card, name: str) -> float:
    """A number of a card."""
    found = getattr(card, name) if hasattr(card, name) else card.description[name]
    return float(found)


def decided(found: Sequence[Sample], card: Card) -> dict[str, list[Sample]]:
    """By number those whose estimate it decides, as the card is."""
    us = [one.estimated_us(card) for one in found]
    of: dict[str, list[Sample]] = {}
    for name, kind in FACTS.items():
        other = with_fact(card, name, 0.9 * fact(card, name))
        of[name] = [
            one
            for one, here in zip(found, us, strict=True)
            if kind in ("", one.kind) and abs(one.estimated_us(other) / here - 1) > 0.02
        ]
    return of


def fitted(of: Sequence[Sample], card: Card, name: str) -> float | None:
    """The number with which what it decides takes as long as was measured.

    None where it decides nothing, or no number does.
    """
    if not of:
        return None
    measured = sum(one.measured_us for one in of)

    def off(value: float) -> float:
        changed = with_fact(card, name, value)
        return sum(one.estimated_us(changed) for one in of) - measured

    low, high = fact(card, name) / 4, fact(card, name) * 4
    if off(low) * off(high) > 0:
        return None
    for _ in range(12):  # a larger number makes all of them faster
        middle = math.sqrt(low * high)
        low, high = (middle, high) if off(middle) > 0 else (low, middle)
    return math.sqrt(low * high)


def slopes(programs: Sequence[Stored], target: Target) -> dict[str, list[float]]:
    """`lower_clock` by program, of each step that is mostly products."""
    flat, one_more = (
        dataclasses.replace(target, card=with_fact(target.card, SLOPE, value))
        for value in (0.0, 1.0)
    )
    found: dict[str, list[float]] = {}
    for one in programs:
        if one.is_finite:
            us, more = (estimate(one.module, t).step_us for t in (flat, one_more))
            # Where it decides less, the rest of the estimate's error decides it.
            if more > 1.1 * us:
                slope = (one.step_us - us) / (more - us)
                found.setdefault(family_of(one), []).append(slope)
    return found


def card_of(
    of: Mapping[str, Sequence[Sample]], slopes: Sequence[float], card: Card
) -> Card:
    """A card with the numbers that these kernels and steps give.

    What they do not show is not known then, and left out of the model.

    Args:
      of: By number the kernels that it decides.
      slopes: `lower_clock`, of steps.
      card: With numbers to begin with.
    """
    for name in FACTS:
        value = fitted(of[name], card, name)
        if value is None and not of[name]:
            value = _NEUTRAL.get(name)
        if value is not None:
            card = with_fact(card, name, value)
    return with_fact(card, SLOPE, statistics.median(slopes) if slopes else 0.0)


def text(programs: Sequence[Stored], target: Target) -> str:
    """Both tables."""
    of = decided(samples(programs, target), target.card)
    families = list(dict.fromkeys(family_of(one) for one in programs))
    lines = [f"{'number':24} {'card':>6} {'all':>6}  by program"]
    lines.append("-" * 76)
    for name in FACTS:
        alone = {
            family: fitted(
                [s for s in of[name] if s.family == family], target.card, name
            )
            for family in families
        }
        parts = ", ".join(f"{f} {v:.3g}" for f, v in alone.items() if v is not None)
        here, whole = fact(target.card, name), fitted(of[name], target.card, name)
        lines.append(f"{name:24} {here:6.3g} {whole or math.nan:6.3g}  {parts}")
    steps = slopes(programs, target)
    every = [value for values in steps.values() for value in values]
    parts = ", ".join(f"{f} {statistics.median(v):.3g}" for f, v in steps.items())
    here, whole = fact(target.card, SLOPE), statistics.median(every or [math.nan])
    lines.append(f"{SLOPE:24} {here:6.3g} {whole:6.3g}  {parts}")
    lines += ["", f"{'program':36} {'measured':>10} {'card':>8} {'others':>8}"]
    lines.append("-" * 66)
    errors: list[float] = []
    for family in families:
        rest = {
            name: [one for one in samples_of if one.family != family]
            for name, samples_of in of.items()
        }
        others = [v for f, values in steps.items() if f != family for v in values]
        card = card_of(rest, others, target.card)
        for one in programs:
            if family_of(one) == family:
                us, other = (
                    estimate(one.module, dataclasses.replace(target, card=c)).step_us
                    for c in (target.card, card)
                )
                if one.is_finite:
                    errors.append(abs(other / one.step_us - 1))
                lines.append(
                    f"{one.name:36} {one.step_us / 1e3:7.2f} ms "
                    f"x {us / one.step_us:6.2f} x {other / one.step_us:6.2f}"
                )
    if errors:
        within = sum(error <= 0.05 for error in errors)
        lines.append(
            f"{len(errors)} steps, each by the numbers of other programs: {within} "
            f"within 5 %, the median is off by {statistics.median(errors):.1%}, the "
            f"worst by {max(errors):.1%}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Prints the tables of a run."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.calibrate.kernel_facts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="with the files of a run")
    options = parser.parse_args(arguments)
    programs = list(stored(options.folder))
    print(text(programs, target_of(options.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
