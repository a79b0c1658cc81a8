"""What anybody may do without a plan: unroll, JAX's presets, XLA's own remat pass."""

from math import inf

from experiments.bench.baselines._comparison import Baseline, Comparison
from experiments.bench.plain_jax import FORMS, POLICIES, Loops
from experiments.bench.searching import Row


class PlainJax(Baseline):
    """Each of JAX's presets on the loop as it is, unrolled, and as a Python loop.

    Written in plain JAX, with nothing of revremat in it.
    """

    name = "plain JAX"

    def ask(self, budget_bytes: int) -> None:
        del budget_bytes
        if not self.rows:
            self.compile("baseline", None)
            for loops in _ways(self.comparison):
                self.keep(self.comparison.write(loops, None))


class RematPass(Baseline):
    """XLA's own remat pass, told the budget as the device's memory.

    It is on for the loop as it is and unrolled, and for the fastest of the presets that
    are too large without it. Its limit is moved until the program fits. It only adds
    to a step, so what is slower than a preset that fits is left out.

    Args:
      comparison: The program.
      most: Presets that get the pass, for a budget.
      most_limits: Compiles of each program, for a budget.
    """

    name = "XLA's remat pass"

    def __init__(self, comparison: Comparison, most: int = 2, most_limits: int = 3):
        super().__init__(comparison)
        self.most, self.most_limits = most, most_limits
        self.off: dict[Loops | None, Row] = {}

    def ask(self, budget_bytes: int) -> None:
        if not self.off:
            for way in (None, *_ways(self.comparison)):
                if (row := self.comparison.write(way, None)) is not None:
                    self.off[way] = row
        least_us = self._least_us(budget_bytes)
        large = {
            way: row
            for way, row in self.off.items()
            if row.bytes > budget_bytes and row.time_us < least_us
        }
        by_time = sorted(large, key=lambda way: (large[way].time_us, str(way)))
        always = [way for way in (None, Loops("unrolled")) if way in large]
        for way in dict.fromkeys([*always, *by_time[: self.most]]):
            self._within(way, budget_bytes)

    def _within(self, way: Loops | None, budget_bytes: int) -> None:
        """The program with the pass, its limit moved until it fits."""
        wanted, last = float(budget_bytes), None
        for _ in range(self.most_limits):
            limit = self.comparison.limit(wanted)
            if limit is not None and last is not None:
                limit = min(limit, last - 1)
            last = limit
            row = None if limit is None else self.comparison.write(way, limit)
            self.keep(row)
            if row is None or row.bytes <= budget_bytes:
                return
            if row.time_us >= self._least_us(budget_bytes):
                return
            wanted -= row.bytes - budget_bytes

    def _least_us(self, budget_bytes: int) -> float:
        """Of all that fits, with the pass and without it."""
        rows = [*self.off.values(), *self.rows]
        return min((r.time_us for r in rows if r.bytes <= budget_bytes), default=inf)


def _ways(comparison: Comparison) -> list[Loops]:
    """All but the program as it is; none where it has no loop to write otherwise."""
    if not comparison.has_loops:
        return []
    ways = [Loops(form, policy) for form in FORMS for policy in POLICIES]
    return [way for way in ways if way != Loops()]
