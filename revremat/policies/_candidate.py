"""Candidate: one action for every layer of a unit, and the presets."""

from dataclasses import dataclass

from revremat._action import RECOMPUTE, SAVE, Action
from revremat._graph import Unit

PRESETS = ("save all", "recompute all", "dots", "dots_no_batch")


@dataclass(frozen=True)
class Candidate:
    """one action for every layer of a unit.

    Attributes:
      name: A preset's name, or what is kept (`ctx+qkv`, `offload ctx`).
      action: What to do.

    Example:
      >>> import revremat as rr
      >>> from revremat.policies import Candidate
      >>> Candidate("up", rr.RECOMPUTE(save=["up"])).name
      'up'
    """

    name: str
    action: Action


def preset(unit: Unit, name: str) -> Candidate:
    """A preset for a unit.

    `save all` keeps what plain autodiff keeps, `recompute all` the layer's input alone,
    `dots` the results of matrix products as well, `dots_no_batch` only of those without
    batch dimensions (products with weights).

    Args:
      unit: From a graph.
      name: One of `PRESETS`.

    Raises:
      KeyError: No preset of that name.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat.policies import preset
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> preset(rr.trace(loss, w, x)["stack"], "dots").action
      RECOMPUTE(save=['dot_general_0'])
    """
    match name:
        case "save all":
            return Candidate(name, SAVE)
        case "recompute all":
            return Candidate(name, RECOMPUTE)
        case "dots":
            return Candidate(name, RECOMPUTE(save=dots(unit, with_batch=True)))
        case "dots_no_batch":
            return Candidate(name, RECOMPUTE(save=dots(unit, with_batch=False)))
    raise KeyError(name)


def dots(unit: Unit, *, with_batch: bool) -> list[str]:
    """Names of results of matrix products, or only of those with weights."""
    names = (
        unit.values[k].name
        for op in unit.operations
        if op.kind == "dot_general" and (with_batch or not op.batch_dims)
        for k in op.outputs
    )
    return [name for name in names if name]
