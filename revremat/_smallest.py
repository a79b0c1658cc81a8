"""Smallest: what needs least memory is compiled where nothing else fits."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from revremat import policies
from revremat._prices import num_to_offer
from revremat._twins import price

if TYPE_CHECKING:
    from revremat._choose import Search

_DOUBTFUL = ("unroll", "on_host", "closer")
_AFTER_OFFER = 2
"""The second price, and the whole program."""


def try_smallest(search: "Search") -> None:
    """Compiles what needs least by its prices, unless there is a plan that fits.

    Prices of what is written out, on the host, or added by a second look for another
    budget hold least: where that does not fit after all, the smallest mixes without
    follow. At last, what keeps less still and was left out because of a limit.
    """
    for number in range(len(_DOUBTFUL) + 1):
        ways = _DOUBTFUL[:number]
        fits = search.best(search.budget).bytes <= search.budget
        if fits or not search.room_for(1):
            return
        search.try_all([_smallest(search, ways)])
    if _offer_smaller(search) and search.room_for(1):
        search.try_all([_smallest(search, ())])


def _offer_smaller(search: "Search") -> bool:
    """Prices for each unit what keeps least, if less than all that has a price.

    Returns:
      Whether there are new prices.
    """
    found = False
    if search.best(search.budget).bytes <= search.budget:
        return found
    for prices in search.prices:
        unit = prices.unit
        size = lambda candidate, unit=unit: unit.kept(candidate.action).device_bytes
        pool = search.pools[unit.name].worth_compiling(offload=search.can_send(unit))
        pool = [c for c in pool if c.action not in prices.dropped]
        least = min(pool, key=size)
        is_news = size(least) < min(map(size, prices.choices.values()))
        if is_news and search.room_for(num_to_offer([least]) + _AFTER_OFFER):
            price(prices, [least])
            found = True
    return found


def _smallest(search: "Search", ways: Sequence[str]) -> tuple[policies.Counts, float]:
    """The smallest mix by the prices there is room for, and its bytes."""
    while True:
        menus = search.menus_without(ways)
        counts = policies.smallest(menus, search.host_bytes)
        if not search.refine(policies.support(counts)):
            return counts, policies.predict_bytes(menus, counts)
