"""The first layers under one preset and the others under another."""

import itertools

from experiments.bench.baselines._comparison import Actions, Baseline, Comparison
from revremat.policies import PRESETS, UnitOptions, predict_bytes, preset

_NEAR = 1.03
_MARGIN = 1e-4
_MOST_TRIES = 3


class Splits(Baseline):
    """Every split of the layers between two presets, in both orders.

    The layers of all units are one sequence, in the order they run. All splits are
    predicted from the measured costs; for each budget the ones that are best by those
    are compiled, each pair's prediction corrected by what its last compile took. The
    presets themselves count, too.

    Args:
      comparison: The program.
      most: Compiles for a budget.
    """

    name = "two-preset split"

    def __init__(self, comparison: Comparison, most: int = 3):
        super().__init__(comparison)
        self.most = most
        self.errors: dict[tuple[str, str], float] = {}
        self.compiled: set[tuple[str, str, int]] = set()
        self.fixed_us = 0.0
        self.total = sum(u.num_layers for u in comparison.units)

    def ask(self, budget_bytes: int) -> None:
        if self.is_idle:
            return
        if not self.rows:
            for name in PRESETS:
                row = self.compile(name, self.actions(name, name, self.total))
                if name == "recompute all" and row is not None:
                    self.fixed_us = row.time_us - self.layers_us("recompute all")
        tries: dict[tuple[str, str], int] = {}
        for _ in range(self.most):
            guesses = []
            for a, b in itertools.permutations(PRESETS, 2):
                limit = budget_bytes - self.errors.get((a, b), 0.0)
                found = self.guess(a, b, limit)
                if found is not None and tries.get((a, b), 0) < _MOST_TRIES:
                    guesses.append((*found, a, b))
            guesses = [g for g in guesses if (g[3], g[4], g[1]) not in self.compiled]
            if not guesses:
                return
            time_us, n, size, a, b = min(guesses)
            best = self.best(budget_bytes)
            if best is not None and time_us + self.fixed_us > _NEAR * best.time_us:
                return
            row = self.compile(
                f"{n} x {a}, {self.total - n} x {b}", self.actions(a, b, n)
            )
            tries[a, b] = tries.get((a, b), 0) + 1
            self.compiled.add((a, b, n))
            if row is not None:
                over = row.bytes > budget_bytes
                self.errors[a, b] = row.bytes - size + over * _MARGIN * budget_bytes

    def guess(
        self, a: str, b: str, limit_bytes: float
    ) -> tuple[float, int, float] | None:
        """The fastest split that fits by its costs: its time, the first part, bytes.

        Layers alone make up the time.
        """
        all_options, best = self.all_options, None
        for n in range(1, self.total):
            counts, time_us, start = {}, 0.0, 0
            for unit_options in all_options:
                costs = {p.name: p for p in unit_options.costs}
                first = min(max(n - start, 0), unit_options.num_layers)
                start += unit_options.num_layers
                counts[unit_options.unit] = (
                    (a, first),
                    (b, unit_options.num_layers - first),
                )
                time_us += first * costs[a].time_us
                time_us += (unit_options.num_layers - first) * costs[b].time_us
            size = predict_bytes(all_options, counts)
            if size <= limit_bytes and (best is None or time_us < best[0]):
                best = (time_us, n, size)
        return best

    def actions(self, a: str, b: str, n: int) -> Actions:
        """The first n layers under one preset, the others under another."""
        found, start = {}, 0
        for u in self.comparison.units:
            first = min(max(n - start, 0), u.num_layers)
            start += u.num_layers
            one, two = (preset(u, name).action for name in (a, b))
            found[u.name] = (one,) * first + (two,) * (u.num_layers - first)
        return found

    @property
    def all_options(self) -> tuple[UnitOptions, ...]:
        """Costs of the presets, unit by unit."""
        return self.comparison.presets(self.unroll)

    def layers_us(self, name: str) -> float:
        """Time of all layers under a preset."""
        costs = [(m.num_layers, p) for m in self.all_options for p in m.costs]
        return sum(n * p.time_us for n, p in costs if p.name == name)


class UnrolledSplits(Splits):
    """The same with the layers of loops unrolled."""

    name = "two-preset split, unrolled"
    unroll = True
