"""The greedy mix: what saves most time per byte first, as most tools decide."""

import math
from collections.abc import Sequence
from dataclasses import replace

from revremat.policies._milp import Choice, Menu, Price, place, predict_bytes


def choose_greedily(menus: Sequence[Menu], budget_bytes: float) -> Choice | None:
    """A mix within the budget, layer by layer; a yardstick for `choose`.

    It starts from what keeps least everywhere, and gives one layer at a time the
    candidate that saves most time for each byte more, as long as the peak allows it.

    Args:
      menus: The units in the order they run.
      budget_bytes: Per device.

    Returns:
      A `Choice` whose bound is 0, or None if even the smallest mix is over the budget.
    """
    prices = {menu.unit: {p.name: p for p in menu.prices} for menu in menus}
    counts = {menu.unit: {_least(menu).name: menu.num_layers} for menu in menus}
    if predict_bytes(menus, _ordered(counts, prices)) > budget_bytes:
        return None
    while True:
        moves = []
        for unit, names in counts.items():
            for name in names:
                here = prices[unit][name]
                for there in prices[unit].values():
                    saved = here.time_us - there.time_us
                    added = max(1.0, there.kept_bytes - here.kept_bytes)
                    if saved > 0:
                        moves.append((-saved / added, unit, name, there.name))
        for _, unit, name, other in sorted(moves):
            moved = {u: dict(names) for u, names in counts.items()}
            moved[unit][name] -= 1
            moved[unit][other] = moved[unit].get(other, 0) + 1
            if not moved[unit][name]:
                del moved[unit][name]
            if predict_bytes(menus, _ordered(moved, prices)) <= budget_bytes:
                counts = moved
                break
        else:
            break
    runs = _ordered(counts, prices)
    flat = [(prices[u][name], n) for u, found in runs.items() for name, n in found]
    return Choice(
        counts=runs,
        bytes=predict_bytes(menus, runs),
        host_bytes=sum(n * p.host_bytes for p, n in flat),
        time_us=sum(n * p.time_us for p, n in flat),
        bound_us=0.0,
    )


def smallest(
    menus: Sequence[Menu], host_budget_bytes: float = math.inf
) -> dict[str, tuple[tuple[str, int], ...]]:
    """One candidate for all layers of a unit, so that the peak is low.

    Each unit begins with what takes least by itself and without the host. Peaks are of
    all units together, so one after another takes what lowers that, until none does.

    Args:
      menus: The units in the order they run.
      host_budget_bytes: Per device.
    """
    on_device = [tuple(p for p in m.prices if not p.host_bytes) for m in menus]
    prices = {
        menu.unit: _least(replace(menu, prices=found or menu.prices))
        for menu, found in zip(menus, on_device, strict=True)
    }

    def peak_bytes(prices: dict[str, Price]) -> float:
        return predict_bytes(menus, _alike(menus, prices))

    while True:
        changed = [{**prices, m.unit: p} for m in menus for p in m.prices]
        on_host = lambda one: sum(m.num_layers * one[m.unit].host_bytes for m in menus)
        allowed = [one for one in changed if on_host(one) <= host_budget_bytes]
        best = min(allowed, key=peak_bytes, default=prices)
        if peak_bytes(best) >= peak_bytes(prices):
            return _alike(menus, prices)
        prices = best


def _alike(
    menus: Sequence[Menu], prices: dict[str, Price]
) -> dict[str, tuple[tuple[str, int], ...]]:
    return {m.unit: ((prices[m.unit].name, m.num_layers),) for m in menus}


def smallest_bytes(menus: Sequence[Menu], host_budget_bytes: float = math.inf) -> float:
    """The peak of the smallest mix, per device."""
    return predict_bytes(menus, smallest(menus, host_budget_bytes))


def _least(menu: Menu) -> Price:
    size = lambda p: menu.num_layers * p.kept_bytes + p.base_bytes
    return min(menu.prices, key=lambda p: (size(p), p.time_us))


def _ordered(
    counts: dict[str, dict[str, int]], prices: dict[str, dict[str, Price]]
) -> dict[str, tuple[tuple[str, int], ...]]:
    return {
        unit: tuple(sorted(names.items(), key=lambda one: place(prices[unit][one[0]])))
        for unit, names in counts.items()
    }
