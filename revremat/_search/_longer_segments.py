"""Longer segments of layers, and what they would cost by those of shorter ones.

Of layers in segments of k, one input in k is kept, and one segment's are there while it
is differentiated. Where a budget has room for more of the latter, longer segments leave
more layers that need not run again.
"""

from collections.abc import Iterator
from dataclasses import replace

from revremat._search._layer_costs import LayerCosts
from revremat._search._probes import cuts
from revremat.policies import Candidate, LayerCost

_TIMES = (2, 4)
"""How much longer than those that have a cost."""


def longer_segments(costs: LayerCosts) -> Iterator[tuple[Candidate, LayerCost]]:
    """Longer segments than those with a cost, and what they would cost.

    Args:
      costs: Of a unit.
    """
    unit, known = costs.unit, {cost.name: cost for cost in costs.options.costs}
    if unit.num_layers < costs.heuristics.least_layers_for_slots:
        return
    for cost in known.values():
        candidate = costs.candidates[cost.name]
        short = candidate.action.segment_length
        one = costs.names.get(candidate.action(segment_length=1))
        if short == 1 or one not in known:
            continue
        for times in _TIMES:
            action = candidate.action(segment_length=times * short)
            is_new = action not in costs.known_actions
            if not is_new or len(cuts(unit, action)[-1]) > unit.num_layers:
                continue
            name = f"{one}, segments of {action.segment_length}"
            more = (action.segment_length - short) * known[one].kept_bytes
            yield (
                Candidate(name, action),
                replace(
                    cost,
                    name=name,
                    kept_bytes=cost.kept_bytes / times,
                    base_bytes=cost.base_bytes + more,
                    shortest_run=action.layers_per_iteration,
                ),
            )
