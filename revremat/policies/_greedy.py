"""The greedy mix: what saves most time per byte first, as most tools decide."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from revremat.policies._menu import Choice, Menu, Price, place, predict_bytes

_Counts = dict[str, dict[str, int]]


def choose_greedily(
    menus: Sequence[Menu],
    budget_bytes: float,
    *,
    host_budget_bytes: float = math.inf,
) -> Choice | None:
    """A mix within the budget, step by step; a yardstick for `choose`.

    It starts from what keeps least everywhere, and gives as few layers at a time as a
    run may have the candidate that saves most time for each byte more, as long as the
    peak and the host allow it.

    Args:
      menus: The units in the order they run.
      budget_bytes: Per device.
      host_budget_bytes: Per device.

    Returns:
      A `Choice` without a bound, or None if all it starts from is over the budget.
    """
    prices = {menu.unit: {p.name: p for p in menu.prices} for menu in menus}

    def read(counts: _Counts) -> Choice:
        return Choice.of(menus, _ordered(counts, prices))

    def fits(choice: Choice) -> bool:
        if choice.host_bytes > host_budget_bytes:
            return False
        return choice.bytes <= budget_bytes

    alone = {menu.unit: {_least(menu).name: menu.num_layers} for menu in menus}
    together = smallest(menus, host_budget_bytes)
    starts = (alone, {unit: dict(runs) for unit, runs in together.items()})
    counts = next((start for start in starts if fits(read(start))), None)
    while counts is not None:
        for moved in _moves(counts, prices):
            if fits(read(moved)):
                counts = moved
                break
        else:
            return read(counts)
    return None


def _moves(counts: _Counts, prices: dict[str, dict[str, Price]]) -> Iterator[_Counts]:
    """A few layers taking a faster candidate, what saves most for each byte first."""
    moves = []
    for unit, names in counts.items():
        for name, layers in names.items():
            here = prices[unit][name]
            for there in prices[unit].values():
                saved = here.time_us - there.time_us
                added = max(1.0, there.kept_bytes - here.kept_bytes)
                number = _fewest(layers, here, names.get(there.name, 0), there)
                if saved > 0 and number:
                    moves.append((-saved / added, unit, name, there.name, number))
    for _, unit, name, other, number in sorted(moves):
        moved = {u: dict(names) for u, names in counts.items()}
        moved[unit][name] -= number
        moved[unit][other] = moved[unit].get(other, 0) + number
        if not moved[unit][name]:
            del moved[unit][name]
        yield moved


def _fewest(layers: int, here: Price, others: int, there: Price) -> int:
    """How many layers move so that both runs are long enough; 0 if no number does."""
    for number in range(1, layers + 1):
        left = layers - number
        if others + number >= there.shortest_run and (
            left == 0 or left >= here.shortest_run
        ):
            return number
    return 0


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
    """The peak of the smallest mix that is alike in all of a unit, per device."""
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
