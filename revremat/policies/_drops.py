"""Drops: from what plain autodiff keeps, one value after the other is recomputed."""

import math
from dataclasses import dataclass

from revremat._action import RECOMPUTE, SAVE, Action
from revremat._graph import Unit
from revremat.policies._candidate import Candidate
from revremat.policies._proposals import title

_MOST_SINGLE = 48
"""Values of which the next one is chosen, the largest of all."""


@dataclass(frozen=True)
class Drop:
    """One value more that a layer recomputes.

    Attributes:
      candidate: What it does from then on, with a name.
      bytes_per_flop: Freed for each FLOP that recomputing the value takes.

    Example:
      >>> import revremat as rr
      >>> from revremat.policies import Candidate, Drop
      >>> Drop(Candidate("up", rr.RECOMPUTE(save=["up"])), bytes_per_flop=4.0).action
      RECOMPUTE(save=['up'])
    """

    candidate: Candidate
    bytes_per_flop: float

    @property
    def action(self) -> Action:
        """What the layer does from then on."""
        return self.candidate.action


def drops(unit: Unit) -> tuple[Drop, ...]:
    """Sets to keep, each without one value of the set before.

    The value goes whose going frees most bytes per FLOP of recomputing, given what is
    gone already. That is greedy, and needs no model of what is fused: it ranks values
    where recomputing takes arithmetic and no traffic.

    Args:
      unit: From a graph.

    Returns:
      The first drop first; none frees more bytes per FLOP than the one before.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import drops
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> [drop.action for drop in drops(rr.trace(loss, w, x)["stack"])]
      [RECOMPUTE]
    """
    kept = unit.kept(SAVE)
    inputs = {value.name for value in unit.values if value.role == "input"}
    size = lambda name: unit.values[unit.position[name]].num_bytes
    saved = sorted((name for name in kept.saved if name not in inputs), key=size)
    found: list[Drop] = []
    while saved:
        ratios = []
        for name in saved[-_MOST_SINGLE:]:
            action = RECOMPUTE(save=[other for other in saved if other != name])
            after = unit.kept(action)
            freed = kept.device_bytes - after.device_bytes
            flops = after.recompute_flops - kept.recompute_flops
            ratios.append((freed / max(1, flops), name, action, after))
        ratio, name, action, kept = max(ratios, key=lambda one: one[0])
        saved.remove(name)
        least = found[-1].bytes_per_flop if found else math.inf
        told = title(unit, [unit.position[one] for one in action.save])
        found.append(Drop(Candidate(told, action), min(ratio, least)))
    return tuple(found)
