"""One action for all layers: what people write by hand."""

import math

from experiments.bench.baselines._comparison import Baseline, Comparison
from revremat import RECOMPUTE, SAVE, Action, Unit
from revremat.policies import PRESETS, preset


class NoPlan(Baseline):
    """No rematerialization."""

    name = "no remat"

    def ask(self, budget_bytes: int) -> None:
        del budget_bytes
        if not self.rows:
            self.compile("baseline", None)


class Uniform(Baseline):
    """Each of JAX's presets for all layers of all units."""

    name = "uniform preset"

    def ask(self, budget_bytes: int) -> None:
        del budget_bytes
        if self.rows:
            return
        for name in PRESETS:
            actions = {
                u.name: (preset(u, name).action,) * u.num_layers
                for u in self.comparison.units
            }
            self.compile(name, actions)


class Segments(Baseline):
    """Segments of sqrt(N) layers (Chen et al., 2016), half and twice as long, too.

    In a segment either everything is kept once it is run again, as Chen et al. do, or
    each layer is recomputed from its input. Units that are no loop, and loops that are
    too short for two segments, keep their layers' inputs, which are segments of one.
    """

    name = "sqrt(N)"

    def __init__(self, comparison: Comparison):
        super().__init__(comparison)
        self.asked = False

    def ask(self, budget_bytes: int) -> None:
        del budget_bytes
        if self.asked:
            return
        self.asked = True
        for factor in (1.0, 0.5, 2.0):
            for inside, base in (("none", SAVE), ("full", RECOMPUTE)):
                if inside == "full" and factor != 1.0:
                    continue
                actions = {
                    u.name: (_segment(u, factor, base),) * u.num_layers
                    for u in self.comparison.units
                }
                self.compile(f"sqrt(N) x {factor:g}, {inside} inside", actions)


def _segment(unit: Unit, factor: float, base: Action) -> Action:
    length = segment_length(unit.num_layers, factor)
    effectful = any(op.effectful for op in unit.operations)
    if unit.kind != "scan" or effectful or not 2 <= length <= unit.num_layers // 2:
        return RECOMPUTE
    return base(segment_length=length)


def segment_length(num_layers: int, factor: float = 1.0) -> int:
    """Of the segments: so many times the square root of the layers.

    >>> [segment_length(24), segment_length(24, 0.5), segment_length(96, 2.0)]
    [5, 2, 20]
    """
    return round(factor * math.sqrt(num_layers))
