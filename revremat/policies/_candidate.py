"""Candidate: one way back for every layer of a unit, and the presets."""

from dataclasses import dataclass

from revremat._action import RECOMPUTE, SAVE, Action
from revremat._graph import Unit

PRESETS = ("save all", "recompute all", "dots", "dots_no_batch")


@dataclass(frozen=True)
class Candidate:
    """One way back for every layer of a unit.

    Attributes:
      name: A preset's name, or what is kept (`ctx+qkv`, `offload ctx`).
      action: What to do.
    """

    name: str
    action: Action


def preset(unit: Unit, name: str) -> Candidate:
    """A preset for a unit.

    `save all` keeps what plain autodiff keeps, `recompute all` the layer's input alone, `dots` the
    results of matrix products as well, `dots_no_batch` only of those without batch
    dimensions (products with weights).

    Raises:
      KeyError: No preset of that name.
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
