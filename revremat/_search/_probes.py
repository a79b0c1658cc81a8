"""Probes: shortened programs of a few layers, and what was measured of them.

The layers of such a program are a tuple of actions, one for each layer that is left.
Everything else of the program stays at full width and batch.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from revremat._action import RECOMPUTE, Action
from revremat._graph import Graph, Unit
from revremat._search._keys import ProbeKey, ProgramKey
from revremat.policies import Candidate

DEPTHS = (4, 8)
"""Layers in a shortened program; 4 and 8 extrapolate to 1.5 %, 2 and 4 to 3.6 %."""


@dataclass(frozen=True)
class Probe:
    """What the target's compiler says of one shortened program.

    Attributes:
      bytes: Per device.
      host_bytes: Per device.
      time_us: Of the shortened step.
    """

    bytes: float
    host_bytes: float
    time_us: float


def cuts(
    unit: Unit, action: Action, most_whole: int = DEPTHS[1]
) -> list[tuple[Action, ...]]:
    """The layers of the shortened programs that tell a cost, the shorter one first.

    Args:
      unit: Whose layers.
      action: What these do.
      most_whole: Layers up to which the longer one has all of them.
    """
    n = unit.num_layers
    if n == 1:
        return [(action,)]
    if not unit.skippable:  # the other half recomputes everything instead
        whole, half = (action,) * n, (action,) * (n // 2)
        if action == RECOMPUTE:
            return [whole]
        return [(RECOMPUTE,) * (n - n // 2) + half, whole]
    few, more = DEPTHS if n > most_whole else (max(1, n // 2), n)
    if (each := action.layers_per_iteration) > 1:  # several: one is no loop
        few, more = 2 * each, 4 * each
    return [(action,) * few, (action,) * more]


def first_cuts(
    unit: Unit, candidates: Iterable[Candidate], most_whole: int = DEPTHS[1]
) -> list[tuple[Action, ...]]:
    """One for each candidate; two for longer iterations, whose cuts are longer."""
    few = [(c.action, cuts(unit, c.action, most_whole)) for c in candidates]
    longer = [cut[0] for action, cut in few if action.layers_per_iteration > 1]
    return [*longer, *(cut[-1] for _, cut in few)]


def is_loop(unit: Unit) -> bool:
    """Whether the layers are iterations of a loop, which can be unrolled."""
    return unit.is_loop and unit.num_layers > 1


def whole_of(graph: Graph, key: ProbeKey) -> ProgramKey | None:
    """The whole program that a shortened one with all layers is; None for others."""
    if key.is_isolated or len(key.actions) < graph[key.unit].num_layers:
        return None
    taken = {name: (RECOMPUTE,) * graph[name].num_layers for name in key.recomputed}
    taken[key.unit] = key.actions
    order = [unit.name for unit in graph.units if unit.name in taken]
    return ProgramKey.of({name: taken[name] for name in order}, key.gradient_barrier)
