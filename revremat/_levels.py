"""Levels: what is decided where units have others inside, the outer ones or those."""

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


def look_inside(search: "Search", budget_bytes: int) -> float:
    """Decides about the units inside instead, where that may be faster.

    The outer loops stay as they are written then. Three plans that treat all inner
    layers alike tell whether a mix of those could be better than what was found.

    Args:
      search: Of the units around them; whole programs are compiled into its rows.
      budget_bytes: Per device.

    Returns:
      Estimated time that no mix at that level can beat; 0 where that is not known.
    """
    if search.inner is None and (inner := _inner(search)) is not None:
        search.inner = inner
    inner = search.inner
    if inner is None or not search.room_for(len(_FIRST)):
        return 0.0
    inner.done, inner.expected = search.done, search.done + len(_FIRST)
    uniform = [
        (
            f"inside: {name}",
            {u.name: (preset(u, name).action,) * u.num_layers for u in inner.units},
            UNKNOWN,
        )
        for name in _FIRST
    ]
    rows = [search.add("as written", None), *inner.add_all(uniform)]
    bound_us, best = 0.0, search.best(budget_bytes)
    is_inside = best.plan is not None and set(best.plan.actions) <= set(
        inner.candidates
    )
    misses = best.bytes > budget_bytes
    if misses or is_inside or _promised_us(rows, budget_bytes) < best.time_us:
        bound_us = inner.fit(budget_bytes).bound_us
    search.done = inner.done
    return bound_us


def _inner(search: "Search") -> "Search | None":
    """A search one level further in; None if there is nothing to decide."""
    units = units_at(search.graph, search.level + 1)
    if {u.name for u in units} == {
        u.name for u in units_at(search.graph, search.level)
    }:
        return None
    try:
        return search.within()
    except UserError:  # every way back keeps the same there
        return None


def _promised_us(rows: list[Row], budget_bytes: int) -> float:
    """What a mix of two of these that just fits would take, were all in proportion."""
    found = [row.time_us for row in rows if row.bytes <= budget_bytes]
    for small, large in product(rows, rows):
        if small.bytes < budget_bytes < large.bytes:
            part = (budget_bytes - small.bytes) / (large.bytes - small.bytes)
            found.append(small.time_us + part * (large.time_us - small.time_us))
    return min(found, default=float("inf"))
