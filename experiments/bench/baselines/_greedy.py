"""Drop what frees most bytes per FLOP, one value at a time."""

from experiments.bench.baselines._comparison import Actions, Baseline, Comparison, Line
from revremat import SAVE
from revremat.policies import drops


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
        every = ((u, drop) for u in comparison.units for drop in drops(u))
        self.order = sorted(every, key=lambda one: -one[1].bytes_per_flop)
        self.moves = sum(u.num_layers for u, _ in self.order)
        self.line = Line(self.propose, self.compile, self.name)

    def ask(self, budget_bytes: int) -> None:
        self.line.ask(budget_bytes, self.most)

    def propose(self, position: float) -> Actions:
        left = round((1 - position) * self.moves)
        found = {u.name: (SAVE,) * u.num_layers for u in self.comparison.units}
        for unit, drop in self.order:
            n = min(left, unit.num_layers)
            found[unit.name] = (drop.action,) * n + found[unit.name][n:]
            left -= n
            if not left:
                break
        return found
