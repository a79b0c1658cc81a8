"""The greedy assignment: what saves most time per byte first, as most tools decide."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from revremat.policies._layer_options import (
    Assignment,
    LayerCost,
    UnitOptions,
    place,
    predict_bytes,
)

_Counts = dict[str, dict[str, int]]


def choose_greedily(
    all_options: Sequence[UnitOptions],
    budget_bytes: float,
    *,
    host_budget_bytes: float = math.inf,
) -> Assignment | None:
    """An assignment within the budget, step by step; a yardstick for `choose`.

    It starts from what keeps least everywhere, and gives as few layers at a time as a
    run may have the candidate that saves most time for each byte more, as long as the
    peak and the host allow it.

    Args:
      all_options: The units in the order they run.
      budget_bytes: Per device.
      host_budget_bytes: Per device.

    Returns:
      An `Assignment` without a bound, or None if all it starts from is over the budget,
      or a unit has no candidate.

    Example:
      >>> from revremat.policies import LayerCost, UnitOptions, choose_greedily
      >>> slow = LayerCost("recompute all", 1.0, 100.0, 0.0, time_us=4.0)
      >>> fast = LayerCost("save all", 5.0, 100.0, 0.0, time_us=3.0)
      >>> layers = UnitOptions("layer", 4, (slow, fast))
      >>> choose_greedily([layers], budget_bytes=1000.0).time_us
      12.0
    """
    if not all(one.costs for one in all_options):
        return None
    costs = {
        unit_options.unit: {p.name: p for p in unit_options.costs}
        for unit_options in all_options
    }

    def read(counts: _Counts) -> Assignment:
        return Assignment.of(all_options, _ordered(counts, costs))

    def fits(assignment: Assignment) -> bool:
        if assignment.host_bytes > host_budget_bytes:
            return False
        return assignment.bytes <= budget_bytes

    alone = {
        unit_options.unit: {_least(unit_options).name: unit_options.num_layers}
        for unit_options in all_options
    }
    together = smallest(all_options, host_budget_bytes)
    starts = (alone, {unit: dict(runs) for unit, runs in together.items()})
    counts = next((start for start in starts if fits(read(start))), None)
    while counts is not None:
        for moved in _moves(counts, costs):
            if fits(read(moved)):
                counts = moved
                break
        else:
            return read(counts)
    return None


def _moves(
    counts: _Counts, costs: dict[str, dict[str, LayerCost]]
) -> Iterator[_Counts]:
    """A few layers taking a faster candidate, what saves most for each byte first."""
    moves = []
    for unit, names in counts.items():
        for name, layers in names.items():
            here = costs[unit][name]
            for there in costs[unit].values():
                saved = here.time_us - there.time_us
                added = max(1.0, there.kept_bytes - here.kept_bytes)
                number = _fewest(layers, here, names.get(there.name, 0), there)
                if saved > 0 and number:
                    moves.append((-saved / added, unit, name, there.name, number))
    for _, unit, name, other, number in sorted(moves):
        moved = {u: dict(names) for u, names in counts.items()}
        moved[unit][name] -= number
        moved[unit][other] = moved[unit].get(other, 0) + number
        if not moved[unit][name]:
            del moved[unit][name]
        yield moved


def _fewest(layers: int, here: LayerCost, others: int, there: LayerCost) -> int:
    """How many layers move so that both runs are long enough; 0 if no number does."""
    for number in range(1, layers + 1):
        left = layers - number
        if others + number >= there.shortest_run and (
            left == 0 or left >= here.shortest_run
        ):
            return number
    return 0


def smallest(
    all_options: Sequence[UnitOptions], host_budget_bytes: float = math.inf
) -> dict[str, tuple[tuple[str, int], ...]]:
    """One candidate for all layers of a unit, so that the peak is low.

    Each unit begins with what takes least by itself and without the host. Peaks are of
    all units together, so one after another takes what lowers that, until none does.

    Args:
      all_options: The units in the order they run.
      host_budget_bytes: Per device.

    Example:
      >>> from revremat.policies import LayerCost, UnitOptions, smallest
      >>> slow = LayerCost("recompute all", 1.0, 100.0, 0.0, time_us=4.0)
      >>> fast = LayerCost("save all", 5.0, 100.0, 0.0, time_us=3.0)
      >>> smallest([UnitOptions("layer", 4, (slow, fast))])
      {'layer': (('recompute all', 4),)}
    """
    on_device = [tuple(p for p in m.costs if not p.host_bytes) for m in all_options]
    costs = {
        unit_options.unit: _least(
            replace(unit_options, costs=found or unit_options.costs)
        )
        for unit_options, found in zip(all_options, on_device, strict=True)
    }

    def peak_bytes(costs: dict[str, LayerCost]) -> float:
        return predict_bytes(all_options, _alike(all_options, costs))

    while True:
        changed = [{**costs, m.unit: p} for m in all_options for p in m.costs]
        on_host = lambda one: sum(
            m.num_layers * one[m.unit].host_bytes for m in all_options
        )
        allowed = [one for one in changed if on_host(one) <= host_budget_bytes]
        best = min(allowed, key=peak_bytes, default=costs)
        if peak_bytes(best) >= peak_bytes(costs):
            return _alike(all_options, costs)
        costs = best


def _alike(
    all_options: Sequence[UnitOptions], costs: dict[str, LayerCost]
) -> dict[str, tuple[tuple[str, int], ...]]:
    return {m.unit: ((costs[m.unit].name, m.num_layers),) for m in all_options}


def smallest_bytes(
    all_options: Sequence[UnitOptions], host_budget_bytes: float = math.inf
) -> float:
    """The peak of the smallest assignment with units alike throughout, per device.

    Args:
      all_options: The units in the order they run.
      host_budget_bytes: Per device.

    Returns:
      Bytes; infinitely many where a unit has no candidate.

    Example:
      >>> from revremat.policies import LayerCost, UnitOptions, smallest_bytes
      >>> slow = LayerCost("recompute all", 1.0, 100.0, 0.0, time_us=4.0)
      >>> smallest_bytes([UnitOptions("layer", 4, (slow,))])
      104.0
    """
    if not all(one.costs for one in all_options):
        return math.inf
    return predict_bytes(all_options, smallest(all_options, host_budget_bytes))


def _least(unit_options: UnitOptions) -> LayerCost:
    size = lambda p: p.kept_by(unit_options.num_layers) + p.base_bytes
    return min(unit_options.costs, key=lambda p: (size(p), p.time_us))


def _ordered(
    counts: dict[str, dict[str, int]], costs: dict[str, dict[str, LayerCost]]
) -> dict[str, tuple[tuple[str, int], ...]]:
    return {
        unit: tuple(sorted(names.items(), key=lambda one: place(costs[unit][one[0]])))
        for unit, names in counts.items()
    }
