"""Finer: ways back that were not worth a compile at first, and seem to be now.

A dozen candidates of a unit are priced before anything is known; units that hold little
have two. Once there are prices, those of their nearest neighbours tell what the others
would cost, and a choice among all of them, priced or not, tells which to ask about.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from revremat._graph import Kept, Unit
from revremat._prices import UnitPrices, plain_of, twin_of
from revremat._twins import price
from revremat.policies import (
    Candidate,
    Menu,
    Pool,
    Price,
    sent_to_host,
    without_maxima,
)

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
                price(prices, new)
                prices.refine([c.name for c in new])
                search.closer |= {(prices.unit.name, c.name) for c in new}
        found = True
    return found


def _unpriced(search: "Search", prices: UnitPrices) -> list[Candidate]:
    """What is proposed for a unit and has no price, in loops and written out.

    Sets, and whatever has a price with one more of its values on the host.
    """
    unit, pool = prices.unit, search.pools[prices.unit.name]
    choices = prices.choices.values()
    found = [*pool.sets]
    if search.can_send(unit) and unit.num_layers > 1:
        sets = {plain_of(c) for c in choices if _is_set(c)}
        for one in sorted(sets, key=lambda c: c.name):
            found += sent_to_host(unit, one)
    found = [without_maxima(c, prices.slower_maxima) for c in found]
    if any(c.action.unroll for c in choices):
        found += [twin_of(c) for c in found if c.action.can_unroll]
    by_action = {c.action: c for c in reversed(found)}  # the first of each stays
    by_name = {c.name: c for c in by_action.values()}
    known = {c.action for c in choices} | prices.dropped
    return [
        c
        for c in by_name.values()
        if c.action not in known and c.name not in prices.choices
    ]


def _with_estimates(
    search: "Search", menu: Menu, prices: UnitPrices, proposed: Sequence[Candidate]
) -> Menu:
    """A menu with what has no price beside what has, where nothing seems better."""
    pool, card = search.pools[menu.unit], search.target.card
    known, share = {p.name: p for p in menu.prices}, prices.cut.share
    estimates = []
    for candidate in proposed:
        near = _nearest(pool, prices.choices.values(), candidate)
        if near is None:
            continue
        mine, theirs, there = pool.kept(candidate), pool.kept(near), known[near.name]
        kept_bytes = share * (mine.device_bytes - theirs.device_bytes)
        host_bytes = share * (mine.host_bytes - theirs.host_bytes)
        traffic = share * (pool.cost(candidate).traffic - pool.cost(near).traffic)
        estimate = Price(
            candidate.name,
            max(0.0, there.kept_bytes + kept_bytes),
            there.base_bytes,
            max(0.0, there.host_bytes + host_bytes),
            there.time_us + 1e6 * traffic / card.stream_bandwidth,
            there.shortest_run,
        )
        if mine.host_bytes > theirs.host_bytes:
            waits_us = _exposed_us(prices.unit, mine, estimate, card.pcie_bandwidth)
            estimate = replace(estimate, time_us=estimate.time_us + waits_us)
        estimates.append(estimate)
    return Menu(menu.unit, menu.num_layers, (*menu.prices, *_best(estimates, known)))


def _exposed_us(unit: Unit, kept: Kept, price: Price, bandwidth: float) -> float:
    """What a layer waits for the host, if its transfers hide behind all that it does.

    The way there has the time of its forward pass, the way back that of its backward
    pass.
    """
    both = unit.forward_flops + unit.backward_flops + kept.rebuild_flops
    forward_us = price.time_us * unit.forward_flops / max(1, both)
    sent_us = 1e6 * price.host_bytes / bandwidth
    return sum(
        max(0.0, sent_us - passes_us)
        for passes_us in (forward_us, price.time_us - forward_us)
    )


def _nearest(
    pool: Pool, priced: Iterable[Candidate], candidate: Candidate
) -> Candidate | None:
    """The one that keeps most of the same, of those that are alike otherwise.

    What sends nothing to the host is held to others that do not.
    """
    unroll, may_send = candidate.action.unroll, candidate.action.on_host
    alike = [
        c
        for c in priced
        if _is_set(c)
        and c.action.unroll == unroll
        and (may_send or not c.action.on_host)
    ]
    order = lambda c: (pool.apart(candidate, c), c.name)
    return min(alike, key=order, default=None)


def _is_set(candidate: Candidate) -> bool:
    """Whether it is no more than to keep some values and rebuild the others."""
    action = candidate.action
    if action.kind not in ("save", "recompute") or action.ahead:
        return False
    return action.chunks == action.every == 1


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
