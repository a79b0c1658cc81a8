"""How many layers of which kind: the cheapest mix that stays within the memory.

Layers of one unit are equal, so a mix is a count per action. Their order is free, and
one order is best: what keeps least runs first, so that in the backward pass, which
starts at the other end, most has been given back when the layers that rebuild most need
their working space. The peak is then the largest over these moments,

    what is still kept + the working space of the layers being differentiated,

one linear constraint each, and the choice is a small integer program.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported when they are first used

from revremat.policies._silence import without_lines


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


@dataclass(frozen=True)
class Choice:
    """A mix for every unit.

    Attributes:
      counts: For each unit, `(candidate, layers)` in the order they run.
      bytes: Predicted peak, per device.
      host_bytes: Predicted bytes on the host, per device.
      time_us: Predicted time of all layers.
      bound_us: No mix of these candidates is faster than this.
    """

    counts: Mapping[str, tuple[tuple[str, int], ...]]
    bytes: float
    host_bytes: float
    time_us: float
    bound_us: float

    @property
    def support(self) -> frozenset[tuple[str, str]]:
        """Which candidates of which units are used at all."""
        return frozenset(
            (unit, name) for unit, runs in self.counts.items() for name, _ in runs
        )


def choose(
    menus: Sequence[Menu],
    budget_bytes: float,
    *,
    host_budget_bytes: float = float("inf"),
    excluding: Sequence[frozenset[tuple[str, str]]] = (),
    pure: bool = False,
) -> Choice | None:
    """The fastest mix within the budget, by mixed-integer programming (HiGHS).

    Args:
      menus: The units in the order they run.
      budget_bytes: Per device.
      host_budget_bytes: Per device.
      excluding: Supports of mixes that shall not come again.
      pure: Every unit uses one candidate for all of its layers.

    Returns:
      A `Choice`, or None if no mix is within the budget.
    """
    rows = _Rows(menus)
    size = rows.size
    cost = np.zeros(2 * size)
    cost[:size] = [p.time_us for p in rows.prices]
    # Of equally fast mixes the smaller one, and of those the simpler one.
    scale = max(1e-9, float(np.abs(cost[:size]).max()))
    largest = max(1.0, max(p.kept_bytes for p in rows.prices))
    cost[:size] += (
        1e-7 * scale * np.array([p.kept_bytes for p in rows.prices]) / largest
    )
    cost[size:] += 1e-4 * scale
    constraints = [
        *rows.layers(),
        *rows.link(pure),
        rows.peaks(budget_bytes),
        scipy.optimize.LinearConstraint(
            np.append([p.host_bytes for p in rows.prices], np.zeros(size)),
            ub=min(host_budget_bytes, 1e18),
        ),
        *(rows.without(support) for support in excluding),
    ]
    limits = np.append([float(n) for n in rows.most], np.ones(size))
    with without_lines(b"HighsMipSolverData::"):
        found = scipy.optimize.milp(
            cost,
            integrality=np.ones(2 * size),
            bounds=scipy.optimize.Bounds(np.zeros(2 * size), limits),  # pyright: ignore[reportArgumentType]
            constraints=constraints,
            options={"mip_rel_gap": 1e-6, "time_limit": 10.0},
        )
    if found.x is None:
        return None
    counts = np.rint(found.x[:size]).astype(int)
    bound = float(found.mip_dual_bound if found.mip_dual_bound is not None else 0.0)
    return rows.read(counts, bound)


def place(price: Price) -> tuple[float, float, str]:
    """Where in the order of running: what keeps least first, the widest of equals."""
    return price.kept_bytes, -price.base_bytes, price.name


def predict_bytes(
    menus: Sequence[Menu], counts: Mapping[str, Sequence[tuple[str, int]]]
) -> float:
    """The peak of a mix, per device; runs are in the order they run."""
    kept, peak = 0.0, 0.0
    for menu in menus:
        prices = {p.name: p for p in menu.prices}
        for name, layers in counts[menu.unit]:
            if layers:
                kept += layers * prices[name].kept_bytes
                peak = max(peak, kept + prices[name].base_bytes)
    return peak


class _Rows:
    """Variables: layers by unit and candidate, then whether there are any."""

    def __init__(self, menus: Sequence[Menu]):
        self.menus = menus
        self.entries = [
            (menu.unit, price)
            for menu in menus
            for price in sorted(menu.prices, key=place)
        ]
        self.prices = [price for _, price in self.entries]
        by_unit = {menu.unit: menu for menu in menus}
        self.most = [by_unit[unit].num_layers for unit, _ in self.entries]
        self.least = [price.shortest_run for price in self.prices]
        self.size = len(self.entries)

    def layers(self) -> "list[scipy.optimize.LinearConstraint]":
        found = []
        for menu in self.menus:
            row = [float(unit == menu.unit) for unit, _ in self.entries]
            row += [0.0] * self.size
            found.append(
                scipy.optimize.LinearConstraint(row, menu.num_layers, menu.num_layers)
            )
        return found

    def link(self, pure: bool) -> "list[scipy.optimize.LinearConstraint]":
        """A candidate is used if it has layers, and only then; if pure, all of them."""
        layers, used = np.eye(self.size), np.eye(self.size)
        most = np.array(self.most, float)
        return [
            scipy.optimize.LinearConstraint(
                np.hstack([layers, -used * most]), 0.0 if pure else -np.inf, 0.0
            ),
            scipy.optimize.LinearConstraint(
                np.hstack([layers, -used * np.array(self.least, float)]), 0.0, np.inf
            ),
        ]

    def peaks(self, budget: float) -> "scipy.optimize.LinearConstraint":
        """What is kept up to each candidate, and its base if it is used.

        The last one that is used has all that is kept before it, so beside any other
        at least the smallest base has room: rows that are not used need no slack.
        """
        kept = np.array([p.kept_bytes for p in self.prices])
        base = np.array([p.base_bytes for p in self.prices])
        most = float(sum(k * n for k, n in zip(kept, self.most, strict=True)))
        budget = min(budget, most + float(base.max()))
        least = float(base.min())
        before = np.tril(np.ones((self.size, self.size))) * kept
        scale = max(1.0, budget)  # the solver's tolerances are for numbers around 1
        matrix = np.hstack([before, np.diag(base - least)]) / scale
        return scipy.optimize.LinearConstraint(matrix, ub=(budget - least) / scale)

    def without(
        self, support: frozenset[tuple[str, str]]
    ) -> "scipy.optimize.LinearConstraint":
        used = [(unit, price.name) in support for unit, price in self.entries]
        row = [0.0] * self.size + [1.0 if u else -1.0 for u in used]
        return scipy.optimize.LinearConstraint(row, ub=sum(used) - 1)

    def read(self, counts: np.ndarray, bound: float) -> Choice:
        runs: dict[str, list[tuple[str, int]]] = {menu.unit: [] for menu in self.menus}
        for (unit, price), number in zip(self.entries, counts, strict=True):
            if number:
                runs[unit].append((price.name, int(number)))
        chosen = {unit: tuple(found) for unit, found in runs.items()}
        totals = np.array([[p.host_bytes, p.time_us] for p in self.prices])
        host, time = counts @ totals
        return Choice(
            chosen, predict_bytes(self.menus, chosen), float(host), float(time), bound
        )
