"""A stretch of a program's operations, with what searches for layers ask of it.

All of it is read off once, so that looking at every part of a stretch takes no longer
than looking at the whole.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Real

from revremat._primitives import MATMULS
from revremat.program.ir._costs import num_bytes
from revremat.program.ir._fingerprint import describe_op
from revremat.program.ir._ops import Op, Value, as_closed, flatten
from revremat.program.units._runs import Runs, find_runs


@dataclass(frozen=True, eq=False)
class Stretch:
    """Operations that follow one another, without scans, blocks and checkpoints.

    Attributes:
      ops: The operations.
      used_after: What the rest of the program uses of what they make.
      describe: Operations of which it says the same are equal.
    """

    ops: Sequence[Op]
    used_after: set[Value]
    describe: Callable[[Op], str] = describe_op

    def __len__(self) -> int:
        return len(self.ops)

    @cached_property
    def place(self) -> dict[Op, int]:
        """Where each operation stands."""
        return {op: k for k, op in enumerate(self.ops)}

    @cached_property
    def maker(self) -> dict[Value, tuple[int, int]]:
        """For each value, which operation makes it and as which of its outputs."""
        return {
            out: (k, j)
            for k, op in enumerate(self.ops)
            for j, out in enumerate(op.outputs)
        }

    @cached_property
    def last_use(self) -> dict[Value, int]:
        """Where each value is used last: past the end, if by the rest."""
        found = {a: k for k, op in enumerate(self.ops) for a in used_by([op])}
        return found | dict.fromkeys(self.used_after, len(self))

    @cached_property
    def users(self) -> dict[Value, list[Op]]:
        """The operations that take each value."""
        found: dict[Value, list[Op]] = {}
        for op in self.ops:
            for value in used_by([op]):
                found.setdefault(value, []).append(op)
        return found

    @cached_property
    def tokens(self) -> Int[np.ndarray, " ops"]:
        """Operations as numbers, the same ones for equal operations, `[num_ops]`."""
        numbers: dict[str, int] = {}
        listed = [
            numbers.setdefault(self.describe(op), len(numbers)) for op in self.ops
        ]
        return np.array(listed, dtype=np.int64)

    @cached_property
    def runs(self) -> Runs:
        """Where they repeat themselves."""
        return find_runs(self.tokens, len(self))

    @cached_property
    def made(self) -> Real[np.ndarray, " _"]:
        """Bytes made before each operation, and by all, `[num_ops + 1]`."""
        return np.cumsum([0, *map(made_by, self.ops)])

    @cached_property
    def heavy(self) -> Int[np.ndarray, " _"]:
        """Heavy operations before each one, and in all, `[num_ops + 1]`."""
        return np.cumsum([0, *map(is_heavy, self.ops)])

    @cached_property
    def passed_on(self) -> Float[np.ndarray, " _"]:
        """Bytes made before each operation and used there or later."""
        steps = np.zeros(len(self) + 2)
        for value, (k, _) in self.maker.items():
            steps[k + 1] += num_bytes(value.aval)
            steps[self.last_use.get(value, k) + 1] -= num_bytes(value.aval)
        return np.cumsum(steps)

    def leaving(self, part: Iterable[Op]) -> set[Value]:
        """Of what some of the operations make, what all others use."""
        inside = set(part)
        return {
            out
            for op in inside
            for out in op.outputs
            if out in self.used_after
            or any(user not in inside for user in self.users.get(out, ()))
        }


def used_by(ops: Iterable[Op]) -> set[Value]:
    """What operations take."""
    return {atom for op in ops for atom in op.inputs if isinstance(atom, Value)}


def made_by(op: Op) -> int:
    """Bytes that an operation makes."""
    return sum(num_bytes(out.aval) for out in op.outputs)


def is_heavy(op: Op) -> bool:
    """Whether it is a product, or a branch or a call with one inside."""
    if op.kind.startswith(MATMULS):
        return True
    inside = (flatten(as_closed(jaxpr)).ops for jaxpr in _inside(op))
    return any(map(is_heavy, chain.from_iterable(inside)))


def _inside(op: Op) -> Iterator[Any]:
    for value in op.eqn.params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            if hasattr(item, "eqns") or hasattr(item, "jaxpr"):
                yield item
