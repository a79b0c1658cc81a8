"""Bounds: how good any mix could be by its prices, and how good a greedy one is."""

from typing import TYPE_CHECKING

from revremat import policies
from revremat._fitted import Row

if TYPE_CHECKING:
    from revremat._choose import Search


def bounds(search: "Search", best: Row) -> tuple[float, float | None]:
    """What a step takes with any mix, at least, and with a greedily chosen one.

    Where prices say of the best one that it takes more than it does, any other mix may
    take as much less than its prices.

    Args:
      search: Knows all prices.
      best: The best plan whose layers have prices.

    Returns:
      Microseconds of a step: that no mix beats, 0 if that is not known, and of the
      greedy choice, None if it finds none.
    """
    menus, host_bytes = search.menus(), search.host_bytes
    fixed_us = best.time_us - search.layers_us(best)
    predicted = policies.predict_bytes(menus, search.counts_of(best))
    limit = search.budget + max(0.0, predicted - best.bytes)
    found = search.mix(menus, limit)
    greedy = policies.choose_greedily(menus, limit, host_budget_bytes=host_bytes)
    return (
        max(0.0, found.bound_us + fixed_us) if found else 0.0,
        greedy.time_us + fixed_us if greedy else None,
    )
