"""How long the choice itself takes: mixed-integer programs of a searched size.

    python -m experiments.bench.milp_speed

96 layers, 12 candidates each, 40 random all_options, of which some have bases that
differ as working spaces do. Every choice is made three times, and the fastest counts.
Prints the median and the worst; 1 if the worst is 0.2 s or more.
"""

import random
import statistics
import sys
import time
from dataclasses import dataclass

import tyro

from revremat.policies import LayerCost, UnitOptions, choose


@dataclass(frozen=True)
class Options:
    """How many, and how large."""

    all_options: int = 40
    layers: int = 96
    candidates: int = 12
    limit_s: float = 0.2


def main(options: Options) -> int:
    """Times every choice; 1 if one takes too long."""
    seconds = []
    for seed in range(options.all_options):
        rng = random.Random(seed)
        unit_options = UnitOptions(
            "layer", options.layers, _costs(rng, options.candidates)
        )
        kept = sorted(p.kept_bytes for p in unit_options.costs)
        budget = 2e9 + options.layers * rng.uniform(kept[1], kept[-1])
        took = []
        for _ in range(3):
            began = time.process_time()
            found = choose([unit_options], budget)
            took.append(time.process_time() - began)
        assert found is not None
        seconds.append(min(took))
    worst = max(seconds)
    print(
        f"{options.layers} layers, {options.candidates} candidates, "
        f"{options.all_options} all_options: median {statistics.median(seconds):.3f} "
        "s, "
        f"worst {worst:.3f} s of processor time"
    )
    return 0 if worst < options.limit_s else 1


def _costs(rng: random.Random, number: int) -> tuple[LayerCost, ...]:
    """Candidates that trade bytes for time, none of them useless."""
    found = []
    for k in range(number):
        kept = 1e8 * (k + rng.random()) / number
        time_us = 1000 / (1 + kept / 3e7) * rng.uniform(1, 1.1)
        base = 1e9 + rng.choice([0.0, 0.0, 2e8]) * rng.random()
        found.append(LayerCost(f"c{k}", kept, base, 0.0, time_us, shortest_run=2))
    return tuple(found)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
