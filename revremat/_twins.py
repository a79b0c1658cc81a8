"""Twins: a candidate once more, compiled another way, where a model cannot judge it."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from revremat._prices import UnitPrices, unrolled
from revremat.policies import Candidate, kept_maxima, without_maxima

if TYPE_CHECKING:
    from revremat._choose import Search

# Mixes of layers written out, until one fits.
_AFTER_TWINS = 4


def drop_maxima(search: "Search") -> None:
    """Prices what keeps a softmax's maxima also without them, where that is faster.

    One candidate tells for all of its unit, maximum by maximum.
    """
    for prices in search.prices:
        unit, few = prices.unit, search.candidates[prices.unit.name]
        kept = {candidate: kept_maxima(unit, candidate) for candidate in few}
        slower: set[str] = set()
        for maximum in dict.fromkeys(name for names in kept.values() for name in names):
            one = next(c for c, names in kept.items() if maximum in names)
            twin = price(search, prices, [without_maxima(one, [maximum])])[0]
            if prices.difference(twin)[1] < prices.difference(one.name)[1]:
                slower.add(maximum)
        keeping = [c for c, names in kept.items() if slower & set(names)]
        price(search, prices, [without_maxima(c, slower) for c in keeping])
        prices.passed_over |= {candidate.name for candidate in keeping}
        prices.slower_maxima |= slower


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
        twins = prices.written_out()
        chosen = {unrolled(n) for unit, n in support if unit == name}
        if not search.room_for(len(twins) + len(chosen) + _AFTER_TWINS):
            twins = [twin for twin in twins if twin.name in chosen]
        if twins and search.room_for(len(twins) + len(chosen) + 1):
            price(search, prices, twins)
            found = True
    return found


def price(
    search: "Search", prices: UnitPrices, twins: Sequence[Candidate]
) -> list[str]:
    """Prices more candidates; under another's name those that are no news."""
    unit, names = prices.unit.name, {c.action: c.name for c in prices.choices.values()}
    missing = {t.action: t for t in twins if t.action not in names}
    prices.offer([*missing.values()])
    search.candidates[unit] = (*search.candidates[unit], *missing.values())
    names |= {action: twin.name for action, twin in missing.items()}
    return [names[twin.action] for twin in twins]
