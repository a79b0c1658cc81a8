"""Twins: a candidate once more, compiled another way, where a model cannot judge it."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from revremat._prices import UnitPrices, unrolled
from revremat.policies import Candidate, without_maxima

if TYPE_CHECKING:
    from revremat._choose import Search

# Mixes of layers written out, until one fits.
_AFTER_TWINS = 4


def drop_maxima(search: "Search") -> None:
    """Prices what keeps a softmax's maxima also without them, where that is faster.

    One candidate tells for all of its unit: it is the same softmax.
    """
    for prices in search.prices:
        twins: dict[str, Candidate] = {}
        for candidate in search.candidates[prices.unit.name]:
            found = without_maxima(prices.unit, candidate)
            taken = {c.action for c in (*prices.choices.values(), *twins.values())}
            if found is not None and found.action not in taken:
                twins[candidate.name] = found
        if not twins:
            continue
        name, first = next(iter(twins.items()))
        _offer(search, prices, [first])
        if prices.difference(first.name)[1] < prices.difference(name)[1]:
            _offer(search, prices, list(twins.values())[1:])
            prices.passed_over |= twins.keys()


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
            _offer(search, prices, twins)
            found = True
    return found


def _offer(search: "Search", prices: UnitPrices, twins: Sequence[Candidate]) -> None:
    prices.offer(twins)
    name = prices.unit.name
    search.candidates[name] = (*search.candidates[name], *twins)
