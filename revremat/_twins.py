"""Twins: a candidate once more, compiled another way, where a model cannot judge it."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from revremat._prices import UnitPrices, num_to_offer, unrolled
from revremat.policies import Candidate, kept_maxima, without_maxima

if TYPE_CHECKING:
    from revremat._choose import Search

# What is chosen with twins, until one fits.
_AFTER_TWINS = 4


def drop_maxima(search: "Search") -> None:
    """Prices what keeps a softmax's maxima also without them, where that is faster.

    One candidate tells for all of its unit, maximum by maximum, as long as there is
    room to choose by what it tells.
    """
    for prices in search.prices:
        choices = prices.choices.values()
        kept = {candidate: kept_maxima(prices.unit, candidate) for candidate in choices}
        slower: set[str] = set()
        for maximum in dict.fromkeys(name for names in kept.values() for name in names):
            one = next(c for c, names in kept.items() if maximum in names)
            twins = [without_maxima(one, [maximum])]
            if not search.room_for(num_to_offer(twins) + _AFTER_TWINS):
                break
            if not (priced := price(prices, twins)):
                continue
            (twin,) = priced
            if prices.difference(twin)[1] < prices.difference(one.name)[1]:
                slower.add(maximum)
        prices.slower_maxima |= slower
        keeping = [c for c, names in kept.items() if slower & set(names)]
        twins = [without_maxima(c, slower) for c in keeping]
        if twins and search.room_for(num_to_offer(twins) + _AFTER_TWINS):
            price(prices, twins)
            prices.passed_over |= {candidate.name for candidate in keeping}


def write_out(search: "Search", support: Collection[tuple[str, str]] = ()) -> bool:
    """Prices layers that are written out instead of being turns of a loop.

    Args:
      search: That has prices.
      support: Units and names of what was chosen: where there is no room for all,
        only these are written out.

    Returns:
      Whether there are new prices.
    """
    found = False
    for prices in search.prices if search.unroll else ():
        name = prices.unit.name
        if not (twins := prices.written_out()):
            continue
        chosen = {unrolled(n) for unit, n in support if unit == name}
        if not search.room_for(len(twins) + len(chosen) + _AFTER_TWINS):
            twins = [twin for twin in twins if twin.name in chosen]
        if twins and search.room_for(len(twins) + len(chosen) + 1):
            price(prices, twins)
            found = True
    return found


def price(prices: UnitPrices, twins: Sequence[Candidate]) -> list[str]:
    """Prices more candidates; under another's name those that are no news.

    Returns:
      What each is called; those that do not compile are left out.
    """
    known = prices.names.keys() | prices.dropped
    missing = {t.action: t for t in twins if t.action not in known}
    prices.offer([*missing.values()])
    names = prices.names
    return [names[twin.action] for twin in twins if twin.action in names]
