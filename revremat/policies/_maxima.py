"""Maxima: what a softmax takes off its logits, kept or found again."""

import dataclasses
from collections.abc import Collection

from revremat._graph import Unit
from revremat.policies._candidate import Candidate


def kept_maxima(unit: Unit, candidate: Candidate) -> tuple[str, ...]:
    """Names of the maxima that a candidate keeps on the device.

    Args:
      unit: From a graph.
      candidate: One of its candidates.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import kept_maxima, preset
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> unit = rr.trace(loss, w, x)["stack"]
      >>> kept_maxima(unit, preset(unit, "dots"))  # there is no softmax
      ()
    """
    maxima = (
        unit.values[k].name
        for op in unit.operations
        if op.kind == "reduce_max"
        for k in op.outputs
    )
    return tuple(name for name in maxima if name in candidate.action.save)


def without_maxima(candidate: Candidate, names: Collection[str]) -> Candidate:
    """The same action with maxima found again that it keeps.

    They are next to no bytes, and by what is read and written it is always better to
    keep them. But a compiler that knows a softmax, from maximum to division, makes one
    kernel of it, and of what is left without the maximum it makes several.

    Args:
      candidate: Any.
      names: The maxima.

    Example:
      >>> import revremat as rr
      >>> from revremat.policies import Candidate, without_maxima
      >>> both = Candidate("up+max", rr.RECOMPUTE(save=["up", "max"]))
      >>> without_maxima(both, ["max"]).action
      RECOMPUTE(save=['up'])
    """
    kept = [name for name in candidate.action.save if name not in names]
    dropped = [name for name in candidate.action.save if name in names]
    if not dropped:
        return candidate
    action = dataclasses.replace(candidate.action, save=tuple(kept))
    return Candidate(f"{candidate.name}, no {'+'.join(dropped)}", action)
