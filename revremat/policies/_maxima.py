"""Maxima: what a softmax takes off its logits, kept or found again."""

import dataclasses

from revremat._graph import Unit
from revremat.policies._candidates import Candidate


def without_maxima(unit: Unit, candidate: Candidate) -> Candidate | None:
    """The same way back with the maxima of what it keeps found again.

    They are next to no bytes, and by what is read and written it is always better to
    keep them. But a compiler that knows a softmax, from maximum to division, makes one
    kernel of it, and of what is left without the maximum it makes several.

    Args:
      unit: Whose candidate it is.
      candidate: Any.

    Returns:
      None where no maximum is kept on the device.
    """
    maxima = {
        unit.values[k].name
        for op in unit.operations
        if op.kind == "reduce_max"
        for k in op.outputs
    }
    action = candidate.action
    save = [name for name in action.save if name not in maxima]
    if len(save) == len(action.save):
        return None
    found = dataclasses.replace(action, save=tuple(save))
    return Candidate(f"{candidate.name}, no maxima", found)
