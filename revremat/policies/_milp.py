"""How many layers of which kind: the cheapest assignment that stays within the memory.

Layers of one unit are equal, so an assignment is a count per action. Their order is
free, and one order is best: what keeps least runs first, so that in the backward pass,
which starts at the other end, most has been given back when the layers that recompute
most need their working space. The peak is then the largest over these moments,

    what is still kept + the working space of the layers being differentiated,

one linear constraint each, and the assignment is a small integer program. What layers
in segments keep is counted by segments.
"""

import math
from collections.abc import Sequence

import numpy as np
import scipy  # its parts are imported when they are first used
from jaxtyping import Float, Real

from revremat.policies._greedy import choose_greedily
from revremat.policies._layer_options import Assignment, UnitOptions, place
from revremat.policies._quiet import without_lines

_MOST_NODES = 20_000
"""Of the solver; seconds would depend on the load."""
_ANSWERS = (0, 2)
"""Its status at an optimum, and where there is none; it has several for stopping."""


def choose(
    all_options: Sequence[UnitOptions],
    budget_bytes: float,
    *,
    host_budget_bytes: float = float("inf"),
    excluding: Sequence[frozenset[tuple[str, str]]] = (),
    pure: bool = False,
) -> Assignment | None:
    """The fastest assignment within the budget, by mixed-integer programming (HiGHS).

    Args:
      all_options: The units in the order they run.
      budget_bytes: Per device.
      host_budget_bytes: Per device.
      excluding: Supports of assignments that shall not come again.
      pure: Every unit uses one candidate for all of its layers.

    Returns:
      An `Assignment`, or None if no assignment is within the budget, or a unit has no
      candidate.

    Example:
      >>> from revremat.policies import LayerCost, UnitOptions, choose
      >>> slow = LayerCost("recompute all", 1.0, 100.0, 0.0, time_us=4.0)
      >>> fast = LayerCost("save all", 5.0, 100.0, 0.0, time_us=3.0)
      >>> found = choose([UnitOptions("layer", 4, (slow, fast))], budget_bytes=112.5)
      >>> found.bytes, found.time_us
      (112.0, 14.0)
    """
    if not all(one.costs for one in all_options):
        return None
    if not excluding:  # of those the second best may be wanted
        all_options = [one.undominated() for one in all_options]
    rows = _Rows(all_options)
    size = rows.size
    times = np.array([p.time_us for p in rows.costs])
    smaller, simpler = rows.preferences()
    cost = np.concatenate([times + smaller, simpler, np.zeros(rows.num_segmented)])
    constraints = [
        *rows.layers(),
        *rows.link(pure),
        rows.peaks(budget_bytes),
        scipy.optimize.LinearConstraint(
            np.append([p.host_bytes for p in rows.costs], np.zeros(rows.width - size)),
            ub=min(host_budget_bytes, 1e18),
        ),
        *rows.segments(),
        *(rows.without(support) for support in excluding if support <= rows.names),
    ]
    most = np.array(rows.most, float)
    with without_lines(b"HighsMipSolverData::"):
        found = scipy.optimize.milp(
            cost,
            integrality=np.ones(rows.width),
            bounds=scipy.optimize.Bounds(  # pyright: ignore[reportArgumentType]
                np.zeros(rows.width),
                np.concatenate([most, np.ones(size), most[rows.segmented]]),
            ),
            constraints=constraints,
            options={"mip_rel_gap": 1e-6, "node_limit": _MOST_NODES},
        )
    stopped = found.x is None and found.status not in _ANSWERS
    if stopped and not (pure or excluding):
        return choose_greedily(
            all_options, budget_bytes, host_budget_bytes=host_budget_bytes
        )
    if found.x is None:
        return None
    counts = np.rint(found.x[:size]).astype(int)
    # What was counted for preferences is no time, and no assignment has more of it than
    # this.
    dual = found.mip_dual_bound
    bound_us = -math.inf if dual is None else dual - rows.most_preferred_us()
    return rows.read(counts, bound_us)


class _Rows:
    """Variables: layers by unit and candidate, whether there are any, and segments."""

    def __init__(self, all_options: Sequence[UnitOptions]):
        self.all_options = all_options
        self.entries = [
            (unit_options.unit, cost)
            for unit_options in all_options
            for cost in sorted(unit_options.costs, key=place)
        ]
        self.names = {(unit, cost.name) for unit, cost in self.entries}
        self.costs = [cost for _, cost in self.entries]
        by_unit = {unit_options.unit: unit_options for unit_options in all_options}
        self.most = [by_unit[unit].num_layers for unit, _ in self.entries]
        self.least = [cost.shortest_run for cost in self.costs]
        self.size = len(self.entries)
        lengths = [cost.segment_length for cost in self.costs]
        self.segmented = [k for k, length in enumerate(lengths) if length > 1]
        self.num_segmented = len(self.segmented)
        self.width = 2 * self.size + self.num_segmented

    def preferences(
        self,
    ) -> tuple[Float[np.ndarray, " entries"], Float[np.ndarray, " entries"]]:
        """Of equally fast assignments the smaller one, and of those the simpler one.

        In microseconds, small against one layer of the same unit: for each layer that
        takes a candidate, and for each candidate that is taken at all.
        """
        most_expensive = {
            m.unit: max(abs(p.time_us) for p in m.costs) for m in self.all_options
        }
        scale = np.array([max(1e-9, most_expensive[unit]) for unit, _ in self.entries])
        kept = np.array([p.kept_bytes for p in self.costs])
        return 1e-7 * scale * kept / max(1.0, float(kept.max())), 1e-4 * scale

    def most_preferred_us(self) -> float:
        """What preferences come to at most."""
        smaller, simpler = self.preferences()
        total = 0.0
        for unit_options in self.all_options:
            mine = [
                k
                for k, (unit, _) in enumerate(self.entries)
                if unit == unit_options.unit
            ]
            kinds = min(unit_options.num_layers, len(mine))
            total += kinds * float(simpler[mine].max())
            total += unit_options.num_layers * float(smaller[mine].max())
        return total

    def layers(self) -> "list[scipy.optimize.LinearConstraint]":
        """All layers of a unit take a candidate; so there is one that is used.

        The second follows from the first, but not for fractions of layers.
        """
        found = []
        rest = np.zeros(self.width - self.size)
        for unit_options in self.all_options:
            mine = [float(unit == unit_options.unit) for unit, _ in self.entries]
            number = unit_options.num_layers
            used = np.concatenate([np.zeros(self.size), mine, rest[self.size :]])
            found += [
                scipy.optimize.LinearConstraint([*mine, *rest], number, number),
                scipy.optimize.LinearConstraint(used, lb=1.0),
            ]
        return found

    def link(self, pure: bool) -> "list[scipy.optimize.LinearConstraint]":
        """A candidate is used if it has layers, and only then; if pure, all of them."""
        layers, used = np.eye(self.size), np.eye(self.size)
        rest = np.zeros((self.size, self.num_segmented))
        most = np.array(self.most, float)
        return [
            scipy.optimize.LinearConstraint(
                np.hstack([layers, -used * most, rest]), 0.0 if pure else -np.inf, 0.0
            ),
            scipy.optimize.LinearConstraint(
                np.hstack([layers, -used * np.array(self.least, float), rest]),
                0.0,
                np.inf,
            ),
        ]

    def segments(self) -> "list[scipy.optimize.LinearConstraint]":
        """There are enough of them for the layers that they have."""
        if not self.segmented:
            return []
        matrix = np.zeros((self.num_segmented, self.width))
        for row, k in enumerate(self.segmented):
            matrix[row, k] = -1.0
            matrix[row, 2 * self.size + row] = self.costs[k].segment_length
        return [scipy.optimize.LinearConstraint(matrix, 0.0, np.inf)]

    def peaks(self, budget: float) -> "scipy.optimize.LinearConstraint":
        """What is kept up to each candidate, and its base if it is used.

        The next one of its unit that is used has all that is kept before it, or else
        the last one keeps as much: so beside any at least the unit's smallest base has
        room, and rows that are not used need no slack.
        """
        kept = np.array([p.kept_bytes for p in self.costs])
        base = np.array([p.base_bytes for p in self.costs], float)
        most = sum(p.kept_by(n) for p, n in zip(self.costs, self.most, strict=True))
        budget = min(budget, most + float(base.max()))
        least = np.concatenate(
            [
                np.full(len(m.costs), min(p.base_bytes for p in m.costs))
                for m in self.all_options
            ]
        )
        before = np.tril(np.ones((self.size, self.size))) * kept
        lengths = [self.costs[k].segment_length for k in self.segmented]
        whole = before[:, self.segmented] * np.array(lengths, float)
        before[:, self.segmented] = 0.0  # they are counted by segments
        unused = np.zeros((self.size, self.size))
        alive = np.hstack([before, unused, whole])
        rows = alive + np.hstack([unused, np.diag(base - least), 0.0 * whole])
        means = self._mean_peaks(alive, base)
        room = np.append(budget - least, np.full(len(means), budget))
        scale = max(1.0, budget)  # the solver's tolerances are for numbers around 1
        matrix = np.vstack([rows, means]) / scale
        return scipy.optimize.LinearConstraint(matrix, ub=room / scale)

    def _mean_peaks(
        self,
        alive: Float[np.ndarray, " entries width"],
        base: Float[np.ndarray, " entries"],
    ) -> Float[np.ndarray, " units width"]:
        """What is kept before each unit, and the mean base of its layers.

        No more than the unit's largest peak, so these rows follow from the others. For
        fractions of layers they do not, and the solver has fewer of those to refute.
        """
        found, first = [], 0
        for unit_options in self.all_options:
            row = alive[first - 1].copy() if first else np.zeros(self.width)
            last = first + len(unit_options.costs)
            row[first:last] += base[first:last] / unit_options.num_layers
            found.append(row)
            first = last
        return np.array(found)

    def without(
        self, support: frozenset[tuple[str, str]]
    ) -> "scipy.optimize.LinearConstraint":
        used = [(unit, cost.name) in support for unit, cost in self.entries]
        row = [0.0] * self.size + [1.0 if u else -1.0 for u in used]
        row += [0.0] * self.num_segmented
        return scipy.optimize.LinearConstraint(row, ub=sum(used) - 1)

    def read(self, counts: Real[np.ndarray, " entries"], bound: float) -> Assignment:
        runs: dict[str, list[tuple[str, int]]] = {
            one.unit: [] for one in self.all_options
        }
        for (unit, cost), number in zip(self.entries, counts, strict=True):
            if number:
                runs[unit].append((cost.name, int(number)))
        chosen = {unit: tuple(found) for unit, found in runs.items()}
        return Assignment.of(self.all_options, chosen, bound)
