"""Menu: what layers may cost; Choice: how many take which; what a choice takes."""

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
class Price:
    """What one layer costs under one action, from compiles on the target.

    Attributes:
      name: The candidate.
      kept_bytes: Alive from the layer's forward to its backward pass, per device.
      base_bytes: All else at the peak while such layers are differentiated: arguments,
        gradients, working space.
      host_bytes: Kept on the host, per device.
      time_us: Of one layer's forward and backward pass.
      shortest_run: How many layers it is given at least, if any; the price of a turn of
        a loop holds for loops of two and more.
    """

    name: str
    kept_bytes: float
    base_bytes: float
    host_bytes: float
    time_us: float
    shortest_run: int = 1


@dataclass(frozen=True)
class Menu:
    """A unit's layers and what each may cost.

    Attributes:
      unit: Its name.
      num_layers: Layers to be given an action.
      prices: One for each candidate.
    """

    unit: str
    num_layers: int
    prices: tuple[Price, ...]

    def only(self, names: Collection[str]) -> "Menu":
        """The same unit with these candidates alone."""
        prices = tuple(price for price in self.prices if price.name in names)
        return dataclasses.replace(self, prices=prices)

    def has(self, name: str) -> bool:
        """Whether a candidate is on it."""
        return any(price.name == name for price in self.prices)

    def distinct(self, first: Collection[str] = ()) -> "Menu":
        """One of each that cost exactly the same: their programs are the same.

        Args:
          first: Names of those that stay rather than others.
        """
        found: dict[Price, str] = {}
        for price in sorted(self.prices, key=lambda price: price.name not in first):
            found.setdefault(dataclasses.replace(price, name=""), price.name)
        return self.only(found.values())


@dataclass(frozen=True)
class Choice:
    """A mix for every unit.

    Attributes:
      counts: How many layers of each unit take which candidate.
      bytes: Predicted peak, per device.
      host_bytes: Predicted bytes on the host, per device.
      time_us: Predicted time of all layers, by prices that may be of differences.
      bound_us: No mix of these candidates is faster than this; -inf if not known.
    """

    counts: Counts
    bytes: float
    host_bytes: float
    time_us: float
    bound_us: float

    @classmethod
    def of(
        cls, menus: Sequence[Menu], counts: Counts, bound_us: float = -math.inf
    ) -> "Choice":
        """What a mix takes by the prices of these menus."""
        prices = {(menu.unit, p.name): p for menu in menus for p in menu.prices}
        taken = [
            (prices[unit, name], n) for unit, runs in counts.items() for name, n in runs
        ]
        return cls(
            counts,
            predict_bytes(menus, counts),
            sum(n * p.host_bytes for p, n in taken),
            sum(n * p.time_us for p, n in taken),
            bound_us,
        )

    @property
    def support(self) -> Support:
        """Which candidates of which units are used at all."""
        return support(self.counts)


def support(counts: Counts) -> Support:
    """Which candidates of which units runs are of."""
    return frozenset((unit, name) for unit, runs in counts.items() for name, _ in runs)


def place(price: Price) -> tuple[float, float, str]:
    """Where in the order of running: what keeps least first, the widest of equals."""
    return price.kept_bytes, -price.base_bytes, price.name


def predict_bytes(menus: Sequence[Menu], counts: Counts) -> float:
    """The peak of a mix, per device; runs are in the order they run."""
    kept, peak = 0.0, 0.0
    for menu in menus:
        prices = {p.name: p for p in menu.prices}
        for name, layers in counts[menu.unit]:
            if layers:
                kept += layers * prices[name].kept_bytes
                peak = max(peak, kept + prices[name].base_bytes)
    return peak
