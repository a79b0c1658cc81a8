"""Finer: ways back that were not worth a compile at first, and seem to be now.

A dozen candidates of a unit are priced before anything is known; units that hold little
have two. Once there are prices, those of their nearest neighbours tell what the others
would cost, and a choice among all of them, priced or not, tells which to ask about.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from revremat._prices import UnitPrices, unrolled
from revremat._twins import price
from revremat.policies import Candidate, Menu, Pool, Price, without_maxima

if TYPE_CHECKING:
    from revremat._choose import Search

_MOST_ROUNDS = 4
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
        if best.bytes > search.budget:
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
        # Two prices of each, and the mix that comes of them.
        if not number or not gains or not search.room_for(2 * number + 2):
            return found
        for prices in search.prices:
            if new := wanted[prices.unit.name]:
                price(search, prices, new)
                prices.refine([c.name for c in new])
        found = True
    return found


def _unpriced(search: "Search", prices: UnitPrices) -> list[Candidate]:
    """What is proposed for a unit and has no price, in loops and written out."""
    pool = search.pools[prices.unit.name]
    known = {c.action for c in prices.choices.values()}
    found = [without_maxima(c, prices.slower_maxima) for c in pool.sets]
    if any(c.action.unroll for c in prices.choices.values()):
        found += [
            Candidate(unrolled(c.name), c.action(unroll=True))
            for c in found
            if c.action.can_unroll
        ]
    return [c for c in found if c.action not in known and c.name not in prices.choices]


def _with_estimates(
    search: "Search", menu: Menu, prices: UnitPrices, proposed: Sequence[Candidate]
) -> Menu:
    """A menu with what has no price beside what has, where nothing seems better."""
    pool, card = search.pools[menu.unit], search.target.card
    bytes_per_us = 1e-6 * card.memory_efficiency * card.memory_bandwidth
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
    """The one that keeps what is most like it, of those that are alike otherwise."""
    unit = pool.unit
    size = lambda names: sum(unit.values[unit.position[n]].num_bytes for n in names)
    mine = set(unit.kept(candidate.action).saved)
    is_plain = lambda c: (
        not (
            c.action.on_host
            or c.action.ahead
            or c.action.chunks > 1
            or c.action.every > 1
        )
    )
    alike = [
        c
        for c in priced
        if c.action.kind != "invert"
        and is_plain(c)
        and c.action.unroll == candidate.action.unroll
    ]
    apart = lambda c: (size(mine ^ set(unit.kept(c.action).saved)), c.name)
    return min(alike, key=apart, default=None)


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
