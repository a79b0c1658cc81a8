"""Slices whose start a loop of a CPU reads anew for each element.

XLA makes a function of what is needed at several indices, and LLVM puts it in their
place. By then nothing says that the loop does not write where a slice's start lies. So
the start is read again after every element, held to its limits, and added to an address
that is not known before. LLVM then finds no vectors, and takes nothing that depends on
the slice out of a loop.

A slice that is needed at one index is no such function: its start is read once, before
the loops. In branches that are not taken together it is one function each.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from revremat.xla.hlo._hlo import Module

_WORK_OF_A_START = 4
"""It is read, held to both its limits, and added."""


@dataclass(frozen=True)
class Visit:
    """A value of a fusion, as its loop needs it.

    Attributes:
      instruction: That gives it.
      index: At which it is needed.
      share: Of the elements, for which it is.
      branches: In which that is.
      slices: Dynamic ones of it that are needed.
    """

    instruction: Any
    index: tuple[Any, ...]
    share: float = 1.0
    branches: tuple[Any, ...] = ()
    slices: tuple[int, ...] = ()


class Starts:
    """Which starts a loop reads anew, and what that changes.

    Args:
      visits: All of the loop.
      module: The fusion's.
    """

    def __init__(self, visits: Iterable[Visit], module: Module):
        self._module = module
        self._shares: dict[tuple[Any, ...], float] = {}
        indices: dict[tuple[int, tuple[Any, ...]], set[Any]] = defaultdict(set)
        for visit in visits:
            self._shares.setdefault(visit.branches, visit.share)
            if visit.instruction.opcode == "dynamic-slice":
                key = visit.instruction.id, visit.branches
                indices[key].add(visit.index)
        self._anew = [
            key for key, found in indices.items() if len(found) > 1 and self._read(key)
        ]
        self._above = {i: self._users_of(i) for i, _ in self._anew}

    def __bool__(self) -> bool:
        return bool(self._anew)

    @property
    def work(self) -> float:
        """Instructions for an element that read them."""
        found = {
            (branches, start): self._shares[branches]
            for i, branches in self._anew
            for start in self._read((i, branches))
        }
        return _WORK_OF_A_START * sum(found.values())

    def share(self, visit: Visit) -> float:
        """The part of a value's evaluations that are for elements with such starts."""
        here, found = visit.branches, 0.0
        for _, branches in self._anew:
            if _begins_with(here, branches):
                return 1.0
            if _begins_with(branches, here):
                part = self._shares[branches] / max(1e-30, self._shares[here])
                found = max(found, part)
        return min(1.0, found)

    def decides(self, visit: Visit) -> bool:
        """Whether such a slice decides a value: then no loop is left out."""
        for i, branches in self._anew:
            if i in visit.slices and _begins_with(visit.branches, branches):
                return True
            is_above = visit.instruction.id in self._above[i]
            if is_above and _begins_with(branches, visit.branches):
                return True
        return False

    def _read(self, key: tuple[int, tuple[Any, ...]]) -> set[tuple[int, int]]:
        """Starts that are no constants, each with its upper limit."""
        i = self._module.instructions[key[0]]
        whole, *starts = self._module.operands(i)
        sizes = zip(whole.shape.dimensions, i.shape.dimensions, strict=True)
        return {
            (start.id, size - part)
            for start, (size, part) in zip(starts, sizes, strict=True)
            if start.opcode != "constant"
        }

    def _users_of(self, slice_id: int) -> set[int]:
        """All that depend on a slice, and itself."""
        found = {slice_id}
        home = self._module.home[slice_id]
        for i in self._module.computations[home].instructions:
            if not found.isdisjoint(i.operand_ids):
                found.add(i.id)
        return found


def _begins_with(path: tuple[Any, ...], first: tuple[Any, ...]) -> bool:
    return path[: len(first)] == first
