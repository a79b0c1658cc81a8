"""The greedy mix: what saves most time per byte first, as most tools decide."""

from collections.abc import Sequence

from revremat.policies._milp import Choice, Menu, Price, predict_bytes


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


def smallest(menus: Sequence[Menu]) -> dict[str, tuple[tuple[str, int], ...]]:
    """Every layer takes what needs least, per device."""
    return {m.unit: ((_least(m).name, m.num_layers),) for m in menus}


def smallest_bytes(menus: Sequence[Menu]) -> float:
    """The peak of the smallest mix, per device."""
    return predict_bytes(menus, smallest(menus))


def _least(menu: Menu) -> Price:
    size = lambda p: menu.num_layers * p.kept_bytes + p.base_bytes
    return min(menu.prices, key=lambda p: (size(p), p.time_us))


def _ordered(
    counts: dict[str, dict[str, int]], prices: dict[str, dict[str, Price]]
) -> dict[str, tuple[tuple[str, int], ...]]:
    """What keeps least runs first."""
    return {
        unit: tuple(
            sorted(names.items(), key=lambda one: prices[unit][one[0]].kept_bytes)
        )
        for unit, names in counts.items()
    }
