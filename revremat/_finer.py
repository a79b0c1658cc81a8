"""Finer: ways back that were not worth a compile at first, and seem to be now.

A dozen candidates of a unit are priced before anything is known; units that hold little
have two. Once there are prices, those of their nearest neighbours tell what the others
would cost, and a choice among all of them, priced or not, tells which to ask about.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from revremat._plan import Action
from revremat._prices import UnitPrices, twin_of
from revremat._twins import price
from revremat.policies import Candidate, Menu, Pool, Price, without_maxima

if TYPE_CHECKING:
    from revremat._choose import Search

_MOST_ROUNDS = 4
_FOR_MIXES = 2
"""Compiles of what comes of two prices: the mix, and once more if it is too large."""
_LEAST_GAIN = 0.002
"""Of a step: what is worth some compiles."""


def look_closer(search: "Search") -> bool:
    """Prices what the best choice among all ways back would take, if it gains enough.

    Estimates are too good or too bad; a price shows which, and moves those of all that
    are near. So it is done again, some rounds.

    Returns:
      Whether there are new prices.
    """
    found = False
    for _ in range(_MOST_ROUNDS):
        best = search.best(search.budget)
        if best.bytes > search.budget or not search.room_for(2 + _FOR_MIXES):
            return found
        proposed = {p.unit.name: _unpriced(search, p) for p in search.prices}
        menus = [
            _with_estimates(search, menu, prices, proposed[menu.unit])
            for menu, prices in zip(search.menus(), search.prices, strict=True)
        ]
        choice = search.mix(menus, search.budget)
        now = search.mix(search.menus(), search.budget)
        if choice is None or now is None:
            return found
        wanted = {
            name: [c for c in few if (name, c.name) in choice.support]
            for name, few in proposed.items()
        }
        number = sum(map(len, wanted.values()))
        gains = now.time_us - choice.time_us > _LEAST_GAIN * best.time_us
        if not number or not gains or not search.room_for(2 * number + _FOR_MIXES):
            return found
        for prices in search.prices:
            if new := wanted[prices.unit.name]:
                price(search, prices, new)
                prices.refine([c.name for c in new])
                search.closer |= {(prices.unit.name, c.name) for c in new}
        found = True
    return found


def _unpriced(search: "Search", prices: UnitPrices) -> list[Candidate]:
    """What is proposed for a unit and has no price, in loops and written out."""
    pool = search.pools[prices.unit.name]
    known = {c.action for c in prices.choices.values()}
    found = [without_maxima(c, prices.slower_maxima) for c in pool.sets]
    if any(c.action.unroll for c in prices.choices.values()):
        found += [twin_of(c) for c in found if c.action.can_unroll]
    return [c for c in found if c.action not in known and c.name not in prices.choices]


def _with_estimates(
    search: "Search", menu: Menu, prices: UnitPrices, proposed: Sequence[Candidate]
) -> Menu:
    """A menu with what has no price beside what has, where nothing seems better."""
    pool = search.pools[menu.unit]
    bytes_per_us = 1e-6 * search.target.card.stream_bandwidth
    known = {p.name: p for p in menu.prices}
    estimates = []
    for candidate in proposed:
        near = _nearest(pool, prices.choices.values(), candidate)
        if near is None:
            continue
        mine, theirs = pool.cost(candidate), pool.cost(near)
        there, share = known[near.name], prices.cut.share
        estimates.append(
            Price(
                candidate.name,
                max(0.0, there.kept_bytes + share * (mine.bytes - theirs.bytes)),
                there.base_bytes,
                0.0,
                there.time_us + share * (mine.traffic - theirs.traffic) / bytes_per_us,
                there.shortest_run,
            )
        )
    return Menu(menu.unit, menu.num_layers, (*menu.prices, *_best(estimates, known)))


def _nearest(
    pool: Pool, priced: Iterable[Candidate], candidate: Candidate
) -> Candidate | None:
    """The one that keeps most of the same, of those that are alike otherwise."""
    alike = [c for c in priced if _is_set(c.action, candidate.action.unroll)]
    order = lambda c: (pool.apart(candidate, c), c.name)
    return min(alike, key=order, default=None)


def _is_set(action: Action, unroll: bool) -> bool:
    """Whether an action is no more than to keep some values and rebuild the others."""
    if action.kind == "invert" or action.on_host or action.ahead:
        return False
    return action.chunks == action.every == 1 and action.unroll == unroll


def _best(estimates: Iterable[Price], known: dict[str, Price]) -> list[Price]:
    """Without those that take no less time than another that keeps no more."""
    found: list[Price] = []
    order = lambda p: (p.kept_bytes, p.time_us, p.name)
    for one in sorted(estimates, key=order):
        others = [*known.values(), *found]
        if not any(
            p.kept_bytes <= one.kept_bytes
            and p.time_us <= one.time_us
            and p.base_bytes <= one.base_bytes
            and not p.host_bytes
            for p in others
        ):
            found.append(one)
    return found
