"""Refine: small changes to the best plan so far, each of them compiled."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import batched, product
from typing import TYPE_CHECKING

import numpy as np

from revremat._fitted import Row
from revremat._prices import NUM_EDGES, neighbour
from revremat.policies import (
    Choice,
    Counts,
    Menu,
    Price,
    Runs,
    Support,
    predict_bytes,
)

if TYPE_CHECKING:
    from revremat._choose import Search

WORTH_A_COMPILE = 0.003
"""Of the budget: what is not left unused."""
_LEAST_GAIN = 1e-3
_APART = 1e-4
_NEARLY = 1.25
_MOST_FILLED = 8
_MOST_TRIMMED = 4

_Kind = tuple[str, str]
"""A unit and a candidate of it."""
_Ends = Mapping[str, tuple[Runs, Runs]]
"""What stands before and after the loops of units."""


@dataclass(frozen=True)
class _Miss:
    """A mix that came out too large.

    Attributes:
      newcomer: The kind of layers in it that the best plan had not, if there was one.
      choice: The mix.
      bytes: What it took.
    """

    newcomer: _Kind | None
    choice: Choice
    bytes: int

    def came_with(self, newcomer: _Kind | None, menus: Sequence[Menu]) -> bool:
        """Whether it tells of mixes of these menus, by what is new in both."""
        if self.newcomer is None:
            return newcomer is None
        unit, name = self.newcomer
        return any(m.unit == unit and m.has(name) for m in menus)


def use_up(search: "Search") -> None:
    """Fills the budget, unless what the best plan leaves is known to be of no use."""
    best = search.best(search.budget)
    fits = best.bytes <= search.budget
    if fits and search.is_priced(best) and not is_filled(search, best):
        row, is_full = fill(search, best)
        search.full += [row.measurement] if is_full else []


def is_filled(search: "Search", row: Row) -> bool:
    """Whether a program leaves next to nothing of the budget, or what is of no use."""
    if any(row.measurement is one for one in search.full):
        return row.bytes <= search.budget
    return (1 - WORTH_A_COMPILE) * search.budget < row.bytes <= search.budget


def fill(search: "Search", best: Row) -> tuple[Row, bool]:
    """Uses up what the best plan leaves of the budget.

    Prices tell a difference between two mixes of the same kinds of layers better than
    they tell the sum of either, so they are held to what the best one really took. No
    more than one kind of layers comes in at a time. What stands outside of a loop stays
    there.

    Returns:
      The fastest that fits, the same row if there is none that is faster; and whether
      no more is to be had: next to nothing is left, or nothing near is faster by its
      prices but for what the compiler says is not.
    """
    misses: list[_Miss] = []
    slower: list[Support] = []
    counts, ends = _apart(search, best)
    for _ in range(_MOST_FILLED):
        left = search.budget - best.bytes
        if left < WORTH_A_COMPILE * search.budget:
            return best, True
        found = _nearby(search, best, counts, misses, slower)
        if found is None:
            return best, search.room_for(2)
        newcomer, choice = found
        mix, expected = choice.counts, choice.bytes
        if ends:
            mix = {**mix, **{u: (*a, *mix[u], *b) for u, (a, b) in ends.items()}}
            expected += best.bytes - predict_bytes(search.menus(), counts)
        (row,) = search.try_all([(mix, expected)])
        if row is None:  # it does not compile
            slower.append(choice.support)
        elif row.bytes > search.budget:
            misses.append(_Miss(newcomer, choice, row.bytes))
        elif row.time_us < best.time_us:
            best, counts = row, choice.counts
        else:
            slower.append(choice.support)
    return best, False


def _nearby(
    search: "Search",
    row: Row,
    counts: Counts,
    misses: Sequence[_Miss],
    slower: Sequence[Support],
) -> tuple[_Kind | None, Choice] | None:
    """The fastest mix of a row's kinds of layers and one more; None: it is the row.

    Args:
      search: Knows the prices.
      row: Has some.
      counts: Its layers, those outside of loops left out.
      misses: Mixes that came out too large. Prices are set right by what they took;
        others with the same newcomer have to be smaller by what that leaves, and
        beside another one their kinds do not come again.
      slower: What those consist of that came out slower; they do not come again.

    Returns:
      The kind that comes in, if one does, and the mix.
    """
    numbers = {unit: sum(n for _, n in runs) for unit, runs in counts.items()}
    used = {unit: {name for name, _ in runs} for unit, runs in counts.items()}
    while True:
        more_each = _more_each(search.menus(), counts, row.bytes, misses)
        every = _corrected(search.menus(), more_each)
        menus = [menu.distinct(used[menu.unit]) for menu in _menus(search, used)]
        menus = [replace(menu, num_layers=numbers[menu.unit]) for menu in menus]
        menus = _corrected(menus, more_each)
        limit = predict_bytes(every, counts) + search.budget - row.bytes
        found = []
        for newcomer, few in _one_more(menus, used):
            known = [m for m in misses if m.came_with(newcomer, few)]
            others = [m.choice.support for m in misses if m not in known]
            over = [_over(every, counts, row.bytes, miss) for miss in known]
            less = max(0.0, *over) + _APART * search.budget if over else 0.0
            others += slower
            if choice := search.mix(few, limit - less, excluding=others):
                came = newcomer if newcomer in choice.support else None
                found.append((came, choice))
        if not found or not search.room_for(2):
            return None
        newcomer, choice = min(found, key=lambda one: (one[1].time_us, one[1].bytes))
        if search.refine(choice.support):
            continue
        gain_us = Choice.of(every, counts).time_us - choice.time_us
        return (newcomer, choice) if gain_us > _LEAST_GAIN * row.time_us else None


def _apart(search: "Search", row: Row) -> tuple[Counts, _Ends]:
    """A row's layers, and apart from them those that stand outside of loops."""
    counts, ends = dict(search.counts_of(row)), {}
    for prices in search.prices:
        unit = prices.unit.name
        first, loop, last = prices.ends(counts[unit])
        if first or last:
            counts[unit], ends[unit] = loop, (first, last)
    return counts, ends


def _over(menus: Sequence[Menu], counts: Counts, bytes: float, miss: _Miss) -> float:
    """By how much more than a plan a mix took than prices say of both."""
    expected = predict_bytes(menus, miss.choice.counts) - predict_bytes(menus, counts)
    return miss.bytes - bytes - expected


def _more_each(
    menus: Sequence[Menu], counts: Counts, bytes: float, misses: Sequence[_Miss]
) -> dict[_Kind, float]:
    """Bytes that a layer of each kind takes more than its price says.

    Least squares: what is over in mixes is spread over the layers of kinds that one of
    them has more of than the plan.
    """
    had = _layers(counts)
    grown = [_layers(miss.choice.counts) for miss in misses]
    for layers in grown:
        layers.subtract(had)
    kinds = sorted({kind for layers in grown for kind, n in layers.items() if n > 0})
    if not kinds:
        return {}
    over = [_over(menus, counts, bytes, miss) for miss in misses]
    matrix = [[layers[kind] for kind in kinds] for layers in grown]
    each = np.linalg.lstsq(np.array(matrix, float), np.array(over), rcond=None)[0]
    return dict(zip(kinds, each.tolist(), strict=True))


def _layers(counts: Counts) -> Counter[_Kind]:
    """How many layers there are of each kind."""
    found: Counter[_Kind] = Counter()
    for unit, runs in counts.items():
        for name, n in runs:
            found[unit, name] += n
    return found


def _corrected(menus: Sequence[Menu], more: Mapping[_Kind, float]) -> list[Menu]:
    """The same menus, with so much more for a layer of some kinds."""
    found = []
    for menu in menus:
        prices = [
            replace(p, kept_bytes=p.kept_bytes + more.get((menu.unit, p.name), 0.0))
            for p in menu.prices
        ]
        found.append(replace(menu, prices=tuple(prices)))
    return found


def _menus(search: "Search", used: dict[str, set[str]]) -> Sequence[Menu]:
    """All prices; those that are known to be far off if the mix has some already."""
    surer = search.menus_without(search.far_off)
    holds = all(used[menu.unit] <= {p.name for p in menu.prices} for menu in surer)
    return surer if holds else search.menus()


def _one_more(
    menus: Sequence[Menu], used: dict[str, set[str]]
) -> Iterator[tuple[_Kind | None, list[Menu]]]:
    """Menus of what is used, then with each other candidate beside it."""
    yield None, [menu.only(used[menu.unit]) for menu in menus]
    for menu in menus:
        for price in menu.prices:
            if price.name not in used[menu.unit]:
                names = {**used, menu.unit: used[menu.unit] | {price.name}}
                few = [other.only(names[other.unit]) for other in menus]
                yield (menu.unit, price.name), few


def try_ends(search: "Search", best: Row, bound_us: float) -> float:
    """Compiles plans whose first and last layers stand outside of loops.

    Args:
      search: Knows the prices.
      best: The best plan so far, if any fits.
      bound_us: What no mix of layers in loops beats.

    Returns:
      The same, of plans with such ends too.
    """
    if best.bytes <= search.budget:
        bound_us += trim_ends(search, best)
    for row in _near_misses(search):
        bound_us = min(bound_us, row.time_us + trim_ends(search, row))
    return bound_us


def _near_misses(search: "Search") -> list[Row]:
    """A plan all in loops, hardly too large, and faster than the best if that fits.

    A layer outside of the loop may give back more than it keeps.
    """
    best = search.best(search.budget)
    most_us = best.time_us / (1 + _LEAST_GAIN)
    found = [
        row
        for row in search.rows.values()
        if search.budget < row.bytes <= _NEARLY * search.budget
        and (row.time_us < most_us or best.bytes > search.budget)
        and search.is_priced(row)
        and not (row.takes("unroll") or _apart(search, row)[1])
    ]
    return sorted(found, key=lambda row: row.bytes)[:1]


def trim_ends(search: "Search", start: Row) -> float:
    """Other actions for the first and the last layer, which stand outside of loops.

    Args:
      search: Knows the prices; what is tried is among its rows.
      start: A plan with prices, which may be too large.

    Returns:
      How much faster than that the prices say that such a plan can be, at most.
    """
    row, gain_us = start, 0.0
    is_over = lambda row: row.bytes > search.budget
    none_fits = is_over(start) and is_over(search.best(search.budget))
    with_edges = [prices for prices in search.prices if prices.has_edges]
    for prices in with_edges:
        few = max(1, NUM_EDGES // len(with_edges))
        if not search.room_for(2 * few + _MOST_TRIMMED):
            continue
        counts = search.counts_of(row)
        inner = counts[prices.unit.name]
        room = search.budget - row.bytes
        ends = []
        for last in (False, True):
            beside, stands_alone = neighbour(inner, last)
            action = prices.choices[beside].action
            if action.every > 1 or action.unroll:
                ends.append([None])
                continue
            names = [] if stands_alone else prices.least_rebuilt(beside, few)
            found = prices.edges(names, beside, last).values()
            ends.append([None, *found])
            known = found or prices.known_edges(beside, last)
            gain_us += min([0.0, *(p.time_us for p in known)])
        options = []
        for first, end in product(*ends):
            added = [p for p in (first, end) if p is not None]
            time_us = sum(p.time_us for p in added)
            size = sum(p.kept_bytes for p in added)
            if added and (time_us < 0 or none_fits) and size <= room:
                runs = _with_ends(inner, first, end)
                options.append((time_us, size, {**counts, prices.unit.name: runs}))
        options.sort(key=lambda option: option[:2])
        fits = row.bytes <= search.budget
        fitting = [row] if fits else []
        for tried in batched(options[:_MOST_TRIMMED], 2):
            rows = search.try_all(
                [(option, row.bytes + size) for _, size, option in tried]
            )
            fitting += [r for r in rows if r and r.bytes <= search.budget]
            if len(fitting) > fits:
                break
        row = min(fitting, key=lambda r: r.time_us, default=row)
    return gain_us


def _with_ends(
    runs: Runs, first: Price | None, last: Price | None
) -> tuple[tuple[str, int], ...]:
    """The runs, with a first and a last layer of their own."""
    found = list(runs)
    if first is not None:
        found[0] = (found[0][0], found[0][1] - 1)
        found.insert(0, (first.name, 1))
    if last is not None:
        found[-1] = (found[-1][0], found[-1][1] - 1)
        found.append((last.name, 1))
    return tuple((name, n) for name, n in found if n)
