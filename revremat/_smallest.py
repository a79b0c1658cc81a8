"""Smallest: what needs least memory is compiled where nothing else fits."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from revremat import policies

if TYPE_CHECKING:
    from revremat._choose import Search
    from revremat._prices import Counts

_DOUBTFUL = ("unroll", "on_host", "closer")


def try_smallest(search: "Search") -> None:
    """Compiles what needs least by its prices, unless there is a plan that fits.

    Prices of what is written out, on the host, or added by a second look for another
    budget hold least: where that does not fit after all, the smallest mixes without
    follow.
    """
    for number in range(len(_DOUBTFUL) + 1):
        ways = _DOUBTFUL[:number]
        fits = search.best(search.budget).bytes <= search.budget
        if fits or not search.room_for(1):
            return
        search.try_all([_smallest(search, ways)])


def _smallest(search: "Search", ways: Sequence[str]) -> "tuple[Counts, float]":
    """The smallest mix by the prices there is room for, and its bytes."""
    while True:
        menus = search.menus_without(ways)
        counts = policies.smallest(menus, search.host_bytes)
        if not search.refine(policies.support(counts)):
            return counts, policies.predict_bytes(menus, counts)
