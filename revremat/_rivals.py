"""Rivals: what else is compiled beside the mix that the prices like best."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from revremat import policies
from revremat._fitted import over
from revremat.policies import Choice

if TYPE_CHECKING:
    from revremat._choose import Search

NUM_RIVALS = 2
NEAR = 1.02


def try_rivals(search: "Search", choice: Choice, without: Sequence[str] = ()) -> None:
    """Compiles the nearest competitors, and the best that treats all layers alike.

    Args:
      search: Knows the prices.
      choice: What it likes best.
      without: Ways that no layer takes, as `menus_without` has them.
    """
    # Prices were set right by the reference: what that took is no error of theirs.
    rows = [r for r in search.rows.values() if r is not search.reference]
    rows = [r for r in rows if search.is_priced(r) and not r.takes(*without)]
    akin = [r for r in rows if choice.support & policies.support(search.counts_of(r))]
    limit = search.budget - over(akin)
    if not search.room_for(1 + NUM_RIVALS):
        return
    # Mixes may need copies of weights that no price has and these do not need.
    alike_limit = search.budget - over(r for r in rows if r.alike)
    pure = search.choose(alike_limit, without, pure=True)
    found = [] if pure is None else [pure]
    seen, best = [choice.support, *(c.support for c in found)], search.best_priced()
    # If all layers are alike in what was chosen, one compile more is left.
    is_news = pure is not None and pure.support != choice.support
    for _ in range(NUM_RIVALS + (not is_news)):
        rival = search.choose(limit, without, excluding=seen)
        if rival is None or not search.room_for(len(found) + 1):
            break
        seen.append(rival.support)
        if best is not None:
            fixed_us = best.time_us - search.layers_us(best)
            if rival.time_us + fixed_us > NEAR * search.best(search.budget).time_us:
                break
        found.append(rival)
    while found and not search.room_for(len(found)):  # second prices took some
        found.pop()
    search.try_all([(mix.counts, mix.bytes) for mix in found])  # at the same time
