"""Prices: what one layer costs under each candidate, from compiles on the target.

A program's bytes are linear in the layers that keep something, with a constant for all
else; two compiles of the program cut to a few of its layers, at full width and batch,
give both. Measured on GPT at 24 layers, cuts to 4 and 8 predict the compiled bytes to
0.1 %; cuts to 2 and 4 were up to 3.6 % low.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from revremat._apply import shorten
from revremat._graph import Graph, Unit
from revremat._measurement import Measurement
from revremat._plan import RECOMPUTE, Action
from revremat.policies import Candidate, Menu, Price

Ask = Callable[[Callable[..., Any], str], Measurement]
"""Compiles the step of a loss on the target; the text says what it is, for people."""

DEPTHS = (4, 8)


@dataclass(frozen=True)
class Probe:
    """One compile of a cut program.

    Attributes:
      num_layers: Layers that were left in.
      bytes: Per device.
      host_bytes: Per device.
      time_us: Of the cut step.
    """

    num_layers: int
    bytes: int
    host_bytes: int
    time_us: float


def price_unit(
    loss: Callable[..., Any],
    graph: Graph,
    unit: Unit,
    choices: Sequence[Candidate],
    ask: Ask,
    share: float,
) -> Menu:
    """Prices of all candidates of one unit, every other unit rebuilding everything.

    Args:
      loss: The program.
      graph: What `trace` made of it.
      unit: The unit that is cut.
      choices: Its candidates.
      ask: Compiles a loss.
      share: Part of an activation that lies on one device, where a cut cannot tell.

    Returns:
      A `Menu`.
    """
    others = {u.name: (RECOMPUTE,) * u.num_layers for u in graph.units if u != unit}
    kept_by_others = share * sum(
        u.num_layers * u.kept(RECOMPUTE).device_bytes for u in graph.units if u != unit
    )
    prices = []
    for candidate in choices:
        probes = [
            _probe(loss, graph, unit, actions, others, ask, candidate.name)
            for actions in _cuts(unit, candidate.action)
        ]
        prices.append(_price(unit, candidate, probes, share, kept_by_others))
    return Menu(unit.name, unit.num_layers, tuple(prices))


def num_probes(unit: Unit) -> int:
    """Compiles that each candidate of a unit takes."""
    return len(_cuts(unit, RECOMPUTE))


def _cuts(unit: Unit, action: Action) -> list[tuple[Action, ...]]:
    n = unit.num_layers
    if n == 1:
        return [(action,)]
    if not unit.skippable:  # the other half rebuilds everything instead
        return [(action,) * (n // 2) + (RECOMPUTE,) * (n - n // 2), (action,) * n]
    few, more = DEPTHS if n > DEPTHS[1] else (max(1, n // 2), n)
    return [(action,) * few, (action,) * more]


def _probe(
    loss: Callable[..., Any],
    graph: Graph,
    unit: Unit,
    actions: tuple[Action, ...],
    others: Mapping[str, tuple[Action, ...]],
    ask: Ask,
    name: str,
) -> Probe:
    cut = shorten(loss, graph, {**others, unit.name: actions})
    m = ask(cut, f"{unit.name}: {name}, {len(actions)} layers")
    return Probe(
        len(actions), m.memory.total_bytes, m.memory.host_bytes, m.time.step_us
    )


def _price(
    unit: Unit,
    candidate: Candidate,
    probes: Sequence[Probe],
    share: float,
    kept_by_others: float,
) -> Price:
    last, first = probes[-1], probes[0]
    if len(probes) == 1:
        kept = share * unit.kept(candidate.action).device_bytes
        host, time = float(last.host_bytes), last.time_us
    elif first.num_layers == last.num_layers:  # mixed with layers that rebuild all
        layers = last.num_layers - last.num_layers // 2
        rebuilt = share * unit.kept(RECOMPUTE).device_bytes
        kept = rebuilt + (last.bytes - first.bytes) / layers
        host = (last.host_bytes - first.host_bytes) / layers
        time = (last.time_us - first.time_us) / layers
    else:
        layers = last.num_layers - first.num_layers
        kept = (last.bytes - first.bytes) / layers
        host = (last.host_bytes - first.host_bytes) / layers
        time = (last.time_us - first.time_us) / layers
    kept = max(0.0, kept)
    base = last.bytes - last.num_layers * kept - kept_by_others
    return Price(candidate.name, kept, max(0.0, base), max(0.0, host), time)
