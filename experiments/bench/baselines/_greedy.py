"""Drop what frees most bytes per FLOP, one value at a time."""

from dataclasses import dataclass

from experiments.bench.baselines._comparison import Actions, Baseline, Comparison, Line
from revremat import RECOMPUTE, SAVE, Action, Unit

_MOST_SINGLE = 48


@dataclass(frozen=True)
class Drop:
    """One value more that is recomputed.

    Attributes:
      unit: Of which layers.
      action: What they do from then on.
      bytes_per_flop: Freed for each FLOP that recomputing takes.
    """

    unit: Unit
    action: Action
    bytes_per_flop: float


class Greedy(Baseline):
    """Greedy by bytes per FLOP.

    From what plain autodiff keeps, the value goes whose going frees most bytes per FLOP
    of recomputing, given what is gone already; of equal layers the first one first.

    Args:
      comparison: The program.
      most: Compiles for a budget.
    """

    name = "greedy"

    def __init__(self, comparison: Comparison, most: int = 3):
        super().__init__(comparison)
        self.most = most
        self.order = sorted(
            (drop for u in comparison.units for drop in drops(u)),
            key=lambda d: -d.bytes_per_flop,
        )
        self.moves = sum(d.unit.num_layers for d in self.order)
        self.line = Line(self.propose, self.compile, self.name)

    def ask(self, budget_bytes: int) -> None:
        self.line.ask(budget_bytes, self.most)

    def propose(self, position: float) -> Actions:
        left = round((1 - position) * self.moves)
        found = {u.name: (SAVE,) * u.num_layers for u in self.comparison.units}
        for drop in self.order:
            n = min(left, drop.unit.num_layers)
            before = found[drop.unit.name]
            found[drop.unit.name] = (drop.action,) * n + before[n:]
            left -= n
            if not left:
                break
        return found


def drops(unit: Unit) -> list[Drop]:
    """What goes of one layer, the first first; each no better than the one before."""
    kept = unit.kept(SAVE)
    inputs = {v.name for v in unit.values if v.role == "input"}
    size = lambda name: unit.values[unit.position[name]].num_bytes
    saved = sorted((n for n in kept.saved if n not in inputs), key=size)
    found: list[Drop] = []
    while saved:
        best = None
        for name in saved[-_MOST_SINGLE:]:
            action = RECOMPUTE(save=[n for n in saved if n != name])
            after = unit.kept(action)
            freed = kept.device_bytes - after.device_bytes
            flops = after.recompute_flops - kept.recompute_flops
            ratio = freed / max(1, flops)
            if best is None or ratio > best[0]:
                best = (ratio, name, action, after)
        assert best is not None
        ratio, name, action, kept = best
        saved.remove(name)
        least = found[-1].bytes_per_flop if found else float("inf")
        found.append(Drop(unit, action, min(ratio, least)))
    return found
