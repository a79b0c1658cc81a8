"""Branches: how often each of a conditional runs, where no data decide it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from revremat.xla.hlo._hlo import Module, dtype_of
from revremat.xla.hlo._indices import Indices, UndecidedError


def shares_of(
    i: Any, module: Module, num_devices: int, branches_us: Sequence[float]
) -> list[float] | None:
    """The part of a conditional's runs that each branch has.

    Devices of one program may take different branches at the same time, as the stages
    of a pipeline do. They meet at the next collective, so the longest branch that any
    of them takes counts.

    Args:
      i: The conditional.
      module: The scheduled program.
      num_devices: That run it.
      branches_us: Microseconds of each branch.

    Returns:
      Parts of 1, or None where data decide.
    """
    chooser = module.operands(i)[0]
    try:
        taken = Indices(module, num_devices).of(chooser)
    except (UndecidedError, RecursionError):
        return None
    last = len(branches_us) - 1
    if dtype_of(chooser.shape) == "bool":
        taken = np.where(taken, 0, last)
    else:
        taken = np.where((taken < 0) | (taken > last), last, taken)
    us = np.array(branches_us)[taken]
    longest = np.take_along_axis(taken, us.argmax(0, keepdims=True), axis=0)
    counts = np.bincount(longest.ravel(), minlength=len(branches_us))
    return [float(count) / longest.size for count in counts]
