"""Levels: what is decided where units have others inside, the outer ones or those."""

import contextlib
import math
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from revremat._errors import UserError
from revremat._fitted import UNKNOWN, Row
from revremat._graph import Graph, Unit
from revremat.policies import preset

if TYPE_CHECKING:
    from revremat._choose import Search

_FIRST = ("full", "dots", "dots_no_batch")


def units_at(graph: Graph, level: int) -> tuple[Unit, ...]:
    """The units of which so many lie around, and those with fewer and none inside."""
    outer = {unit.inside for unit in graph.units}
    depths = {unit.name: len(graph.around(unit.name)) for unit in graph.units}
    return tuple(
        unit
        for unit in graph.units
        if depths[unit.name] == level
        or (depths[unit.name] < level and unit.name not in outer)
    )


def look_inside(search: "Search") -> float:
    """Decides about the units inside instead, or too, where that may be better.

    The outer loops stay as they are written at first, then they rebuild everything,
    which runs layers forward up to three times. A few plans that treat all inner layers
    alike tell whether a mix of those could be better than what was found.

    Args:
      search: Of the units around them; whole programs are compiled into its rows.

    Returns:
      Estimated time that no mix at those levels can beat; 0 where that is not known,
      infinite where there is none to gain by.
    """
    return min(_instead(search), _as_well(search))


def _instead(search: "Search") -> float:
    """Decides about the units inside, those around them as they are written."""
    inner = _inner(search, ())
    if inner is None:
        return math.inf
    inner.expected = search.done + len(_FIRST)
    bound_us = _decide(inner, _all_alike(inner), search.written())
    _come_back(search, inner)
    return bound_us


def _as_well(search: "Search") -> float:
    """Decides about the units inside, those around them rebuilding everything."""
    outer = {unit.inside for unit in search.graph.units}
    around = [unit for unit in search.units if unit.name in outer]
    inner = _inner(search, around)
    if not around or inner is None:
        return math.inf
    bound_us = math.inf
    tried = _all_alike(inner, 1)
    if all(unit.kind == "scan" for unit in around):
        bound_us = _decide(inner, tried, search.reference)
    elif _may_gain(inner, tried, search.reference):
        _all_alike(inner)  # loops of unrolled layers cannot differ
        bound_us = 0.0
    _come_back(search, inner)
    return bound_us


def _come_back(search: "Search", inner: "Search") -> None:
    """What was compiled and what was left out inside counts outside."""
    search.done = inner.done
    search.is_cut_short |= inner.is_cut_short


def _decide(inner: "Search", tried: list[Row], known: Row | None) -> float:
    """Searches inside where that may be better; a bound on what that can find."""
    if not _may_gain(inner, tried, known):
        return math.inf
    if not (inner.priced or inner.room_for(inner.num_needed)):
        return 0.0
    return inner.fit(inner.budget).bound_us


def _may_gain(inner: "Search", tried: list[Row], known: Row | None) -> bool:
    """Whether a mix of such programs may be better than the best there is.

    Args:
      inner: The search of what they differ in.
      tried: Some of them; there was room for none if these are none.
      known: One more, from the search outside.
    """
    if not tried:
        return True
    rows = tried if known is None else [*tried, known]
    best = inner.best(inner.budget)
    around = {unit.name for unit in inner.around}
    taken = set(best.plan.actions) if best.plan else set()
    units = {unit.name for unit in inner.units}
    is_inside = bool(taken) and around <= taken <= around | units
    misses = best.bytes > inner.budget
    return misses or is_inside or _promised_us(rows, inner.budget) < best.time_us


def _all_alike(inner: "Search", most: int = len(_FIRST) + 1) -> list[Row]:
    """Programs all of whose inner layers take the same way back, as many as allowed."""
    found = {
        name: {u.name: preset(u, name).action for u in inner.units} for name in _FIRST
    }
    segments = {
        unit: candidate.action
        for unit, few in inner.choices.items()
        for candidate in few.values()
        if candidate.action.every > 1 and candidate.action.rebuilds_all
    }
    if segments:
        found["full in segments"] = found["full"] | segments
    around = "full, " if inner.around else ""
    programs = [
        (f"{around}inside: {name}", actions, UNKNOWN) for name, actions in found.items()
    ]
    while programs[:most] and not inner.room_for(len(programs[:most])):
        programs.pop()
    rows = inner.add_all(programs[:most], in_order=False)
    return [row for row in rows if row is not None]


def _inner(search: "Search", around: Sequence[Unit]) -> "Search | None":
    """A search one level further in; None if there is nothing to decide."""
    rebuilds = bool(around)
    if rebuilds not in search.inside:
        search.inside[rebuilds] = None
        units = units_at(search.graph, search.level + 1)
        if {u.name for u in units} != {
            u.name for u in units_at(search.graph, search.level)
        }:
            # Otherwise every way back keeps the same there.
            with contextlib.suppress(UserError):
                search.inside[rebuilds] = search.within(around)
    if (inner := search.inside[rebuilds]) is not None:
        inner.budget, inner.done = search.budget, search.done
    return inner


def _promised_us(rows: list[Row], budget_bytes: int) -> float:
    """What a mix of two of these that just fits would take, were all in proportion."""
    found = [row.time_us for row in rows if row.bytes <= budget_bytes]
    for small, large in product(rows, rows):
        if small.bytes < budget_bytes < large.bytes:
            part = (budget_bytes - small.bytes) / (large.bytes - small.bytes)
            found.append(small.time_us + part * (large.time_us - small.time_us))
    return min(found, default=float("inf"))
