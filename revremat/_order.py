"""Order: whether a plan has gradients computed in order, as the compiler tells."""

import dataclasses
from typing import TYPE_CHECKING

from revremat._compiled import IN_ORDER
from revremat._fitted import UNKNOWN
from revremat._plan import RECOMPUTE
from revremat._prices import REFERENCE

if TYPE_CHECKING:
    from revremat._choose import Search

_WORTH_IT = 0.05
"""Of all bytes: computing in order takes time, too."""


def put_in_order(search: "Search") -> None:
    """Has layers outside of loops compute gradients in order where it saves memory.

    A compiler may put gradients of weights off, and then holds what several layers
    rebuilt. It is asked about the program all of whose layers rebuild everything, and
    where that takes most in its backward pass, about the same in order.
    """
    apart = [u for u in search.units if u.kind != "scan" and not u.chained]
    too_few = sum(u.num_layers for u in apart) < 2
    if too_few or not search.room_for(search.num_needed + 1):
        return
    counts, _ = search.all_alike(REFERENCE, RECOMPUTE)
    (rebuilt,) = search.try_all([(counts, UNKNOWN)])
    if rebuilt is None:
        return
    if not rebuilt.measurement.memory.where(phase="recompute").bytes:
        return
    search.in_order = True
    (in_order,) = search.try_all([(counts, UNKNOWN)])
    search.in_order = False
    if in_order is not None:
        search.in_order = in_order.bytes < (1 - _WORTH_IT) * rebuilt.bytes
    search.cuts = dataclasses.replace(search.cuts, in_order=search.in_order)


def try_without_order(search: "Search", bound_us: float) -> float:
    """Compiles the best plan without: where there is room for that, it is faster.

    Returns:
      The same bound on all mixes, or 0: of mixes without order there are no prices.
    """
    best = search.best(search.budget)
    if best.plan is None or not best.plan.in_order or not search.room_for(1):
        return bound_us
    name = best.name.removesuffix(IN_ORDER)
    row = search.add(name, best.plan.actions, in_order=False)
    if row is None:
        return bound_us
    fits = row.bytes <= search.budget
    return 0.0 if fits and row.time_us < bound_us else bound_us
