"""UnitOptions: what layers may cost; Assignment: how many take which, at what cost."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

Support = frozenset[tuple[str, str]]
Runs = Sequence[tuple[str, int]]
"""Candidates' names, each with how many layers in turn take it, in running order."""
Counts = Mapping[str, Runs]
"""Those of every unit."""


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs under one action, from compiles on the target.

    Attributes:
      name: The candidate.
      kept_bytes: Alive from the layer's forward to its backward pass, per device.
      base_bytes: All else at the peak while such layers are differentiated: arguments,
        gradients, working space.
      host_bytes: Kept on the host, per device.
      time_us: Of one layer's forward and backward pass.
      shortest_run: How many layers it is given at least, if any; the cost of an
        iteration of a loop holds for loops of two and more.
      segment_length: Of how many layers the bytes kept are one's alone. A smaller
        segment keeps as many.

    Example:
      >>> from revremat.policies import LayerCost
      >>> LayerCost("save all", 5.0, 100.0, host_bytes=0.0, time_us=3.0).kept_bytes
      5.0
    """

    name: str
    kept_bytes: float
    base_bytes: float
    host_bytes: float
    time_us: float
    shortest_run: int = 1
    segment_length: int = 1

    def kept_by(self, layers: int) -> float:
        """Bytes that so many layers in turn keep."""
        return -(-layers // self.segment_length) * self.segment_length * self.kept_bytes

    def beats(self, other: "LayerCost") -> bool:
        """Whether it is no worse in anything, for any number of layers."""
        pairs = zip(self._amounts, other._amounts, strict=True)
        no_worse = all(mine <= its for mine, its in pairs)
        return no_worse and self.segment_length in (1, other.segment_length)

    @property
    def _amounts(self) -> tuple[float, ...]:
        """All that is better the less it is."""
        return (
            self.kept_bytes,
            self.base_bytes,
            self.time_us,
            self.host_bytes,
            self.shortest_run,
        )


@dataclass(frozen=True)
class UnitOptions:
    """A unit's layers and what each may cost.

    Attributes:
      unit: Its name.
      num_layers: Layers to be given an action.
      costs: One for each candidate.

    Example:
      >>> from revremat.policies import LayerCost, UnitOptions
      >>> slow = LayerCost("recompute all", 1.0, 100.0, 0.0, time_us=4.0)
      >>> UnitOptions("layer", 4, (slow,)).num_layers
      4
    """

    unit: str
    num_layers: int
    costs: tuple[LayerCost, ...]

    def only(self, names: Collection[str]) -> "UnitOptions":
        """The same unit with these candidates alone."""
        costs = tuple(cost for cost in self.costs if cost.name in names)
        return dataclasses.replace(self, costs=costs)

    def has(self, name: str) -> bool:
        """Whether a candidate is on it."""
        return any(cost.name == name for cost in self.costs)

    def distinct(self, first: Collection[str] = ()) -> "UnitOptions":
        """One of each that cost exactly the same: their programs are the same.

        Args:
          first: Names of those that stay rather than others.
        """
        found: dict[LayerCost, str] = {}
        for cost in sorted(self.costs, key=lambda cost: cost.name not in first):
            found.setdefault(dataclasses.replace(cost, name=""), cost.name)
        return self.only(found.values())

    def undominated(self) -> "UnitOptions":
        """Without those that another beats: no assignment is faster with them.

        What keeps less runs earlier. So one that keeps less takes another's place only
        if nothing between the two has a larger peak.
        """
        found: list[LayerCost] = []
        order = lambda cost: (*cost._amounts, cost.segment_length, cost.name)
        for cost in sorted(self.costs, key=order):
            wider = (
                one.kept_bytes
                for one in self.costs
                if one.base_bytes > cost.base_bytes
                and one.kept_bytes <= cost.kept_bytes
            )
            least = max(wider, default=-math.inf)
            before = (one for one in found if one.kept_bytes >= least)
            if not any(one.beats(cost) for one in before):
                found.append(cost)
        return self.only({cost.name for cost in found})


@dataclass(frozen=True)
class Assignment:
    """An assignment for every unit.

    Attributes:
      counts: How many layers of each unit take which candidate.
      bytes: Predicted peak, per device.
      host_bytes: Predicted bytes on the host, per device.
      time_us: Predicted time of all layers, by costs that may be differences.
      bound_us: No assignment of these candidates is faster; -inf if not known.

    Example:
      >>> from revremat.policies import Assignment
      >>> counts = {"layer": [("save all", 4)]}
      >>> found = Assignment(counts, 120.0, 0.0, 12.0, bound_us=12.0)
      >>> found.counts["layer"]
      [('save all', 4)]
    """

    counts: Counts
    bytes: float
    host_bytes: float
    time_us: float
    bound_us: float

    @classmethod
    def of(
        cls,
        all_options: Sequence[UnitOptions],
        counts: Counts,
        bound_us: float = -math.inf,
    ) -> "Assignment":
        """What an assignment takes by these costs."""
        costs = {
            (unit_options.unit, p.name): p
            for unit_options in all_options
            for p in unit_options.costs
        }
        taken = [
            (costs[unit, name], n) for unit, runs in counts.items() for name, n in runs
        ]
        return cls(
            counts,
            predict_bytes(all_options, counts),
            sum(n * p.host_bytes for p, n in taken),
            sum(n * p.time_us for p, n in taken),
            bound_us,
        )

    @property
    def support(self) -> Support:
        """Which candidates of which units are used at all."""
        return support(self.counts)


def support(counts: Counts) -> Support:
    """Which candidates of which units runs are of.

    Args:
      counts: Runs of candidates, by unit.

    Example:
      >>> from revremat.policies import support
      >>> sorted(support({"layer": [("save all", 2), ("recompute all", 2)]}))
      [('layer', 'recompute all'), ('layer', 'save all')]
    """
    return frozenset((unit, name) for unit, runs in counts.items() for name, _ in runs)


def place(cost: LayerCost) -> tuple[float, float, str]:
    """Where in the order of running: what keeps least first, the widest of equals."""
    return cost.kept_bytes, -cost.base_bytes, cost.name


def predict_bytes(all_options: Sequence[UnitOptions], counts: Counts) -> float:
    """The peak of an assignment, per device; runs are in the order they run.

    Args:
      all_options: The units in the order they run.
      counts: Runs of candidates, by unit.

    Returns:
      Bytes.

    Example:
      >>> from revremat.policies import LayerCost, UnitOptions, predict_bytes
      >>> slow = LayerCost("recompute all", 1.0, 100.0, 0.0, time_us=4.0)
      >>> layers = UnitOptions("layer", 4, (slow,))
      >>> predict_bytes([layers], {"layer": [("recompute all", 4)]})
      104.0
    """
    kept, peak = 0.0, 0.0
    for unit_options in all_options:
        costs = {p.name: p for p in unit_options.costs}
        for name, layers in counts[unit_options.unit]:
            if layers:
                kept += costs[name].kept_by(layers)
                peak = max(peak, kept + costs[name].base_bytes)
    return peak
