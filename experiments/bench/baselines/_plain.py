"""What anybody may do without a plan: unroll, JAX's presets, XLA's own remat pass."""

from math import floor, inf

from experiments.bench.baselines._comparison import Baseline, Comparison
from experiments.bench.plain_jax import Loops
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
            for loops in self.comparison.ways:
                self.keep(self.comparison.write(loops, None))


class PlainSplits(Baseline):
    """The first layers under one of JAX's presets and the others under another.

    In plain JAX, on the loop as it is, unrolled, and as a Python loop. What is fast and
    too large is mixed with what fits, in both orders; on a straight line between the
    two, those that promise most are compiled, each until it fits.

    Args:
      comparison: The program.
      most: Pairs for a budget, each in both orders.
      most_numbers: Compiles of each.
    """

    name = "two-preset split in plain JAX"

    def __init__(self, comparison: Comparison, most: int = 3, most_numbers: int = 2):
        super().__init__(comparison)
        self.most, self.most_numbers = most, most_numbers

    def ask(self, budget_bytes: int) -> None:
        ways = self.comparison.ways
        if any(way.form != "Python loop" for way in ways):
            ways = (Loops(), *ways)
        else:
            ways = (Loops("Python loop"), *ways)
        rows = {way: self.comparison.write(way, None) for way in ways}
        known = {way: row for way, row in rows.items() if row is not None}
        fits = {way: r for way, r in known.items() if r.bytes <= budget_bytes}
        least_us = min((row.time_us for row in fits.values()), default=inf)
        pairs = []
        for large in known.keys() - fits.keys():
            for small in fits:
                if large.form == small.form in _WHOLE_FORMS:
                    share = _share(known[large], known[small], budget_bytes)
                    gained = known[small].time_us - known[large].time_us
                    expected_us = known[small].time_us - share * gained
                    if expected_us < least_us:
                        pairs.append((expected_us, str((large, small)), large, small))
        for *_, large, small in sorted(pairs, key=lambda pair: pair[:2])[: self.most]:
            for is_first in (True, False):
                self._fitting(large, small, is_first, known, budget_bytes)

    def _fitting(
        self,
        large: Loops,
        small: Loops,
        is_first: bool,
        known: dict[Loops, Row],
        budget_bytes: int,
    ) -> None:
        """As many layers under what is large as fit."""
        total = self.comparison.num_layers
        each = max(1.0, (known[large].bytes - known[small].bytes) / total)
        number = int(total * _share(known[large], known[small], budget_bytes))
        for _ in range(self.most_numbers):
            if not 0 < number < total:
                return
            way = Loops(large.form, large.policy, number, small.policy)
            if not is_first:
                way = Loops(large.form, small.policy, total - number, large.policy)
            row = self.keep(self.comparison.write(way, None))
            if row is None:
                return
            left = (budget_bytes - row.bytes) / each
            if 0 <= left < 1:
                return
            number += floor(left)


_WHOLE_FORMS = ("scan", "unrolled", "Python loop")


def _share(large: Row, small: Row, budget_bytes: int) -> float:
    """Of the layers that can be as in the larger program."""
    return (budget_bytes - small.bytes) / max(1, large.bytes - small.bytes)


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
            for way in (None, *self.comparison.ways):
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
