"""Late moves: what only gives a program's results another form, done after the rest."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from revremat.program.ir._ops import Atom, Op, Program, Value, needed, read, run

_FORMS = frozenset(
    {"convert_element_type", "reshape", "transpose", "squeeze", "expand_dims"}
)


@dataclass(frozen=True, eq=False)
class LateMoves:
    """A program in two parts: results as they are computed, then in their own form.

    A gradient is computed in the precision that its layer computes in, and converted to
    its weight's at the end. Whoever holds the gradient then holds the narrow one, and a
    compiler fuses the conversion into what reads it.

    Attributes:
      early: The program, whose last results are not in their own form yet.
      moves: The operations that give them that.
      outputs: The last results in their own form.
    """

    early: Program
    moves: tuple[Op, ...]
    outputs: tuple[Atom, ...]

    def finish(self, arrays: Sequence[Any]) -> list[Any]:
        """The last results, from what `early` has in their place."""
        count = len(self.outputs)
        atoms = self.early.outputs[len(self.early.outputs) - count :]
        env = {
            atom: array
            for atom, array in zip(atoms, arrays, strict=True)
            if isinstance(atom, Value)
        }
        run(self.moves, env)
        return [read(env, out) for out in self.outputs]


def late_moves(program: Program, count: int) -> LateMoves:
    """Splits a program.

    Args:
      program: It.
      count: How many of its results, the last ones, may get their form late.
    """
    maker = {out: op for op in program.ops for out in op.outputs}
    start = len(program.outputs) - count
    outputs = program.outputs[start:]
    sources = tuple(_source(out, maker) for out in outputs)
    early = (*program.outputs[:start], *sources)
    ops, _ = needed(program.ops, early, keep_effects=True)
    given = [atom for atom in sources if isinstance(atom, Value)]
    moves, _ = needed(program.ops, outputs, given)
    return LateMoves(Program(program.inputs, ops, early), moves, outputs)


def _source(atom: Atom, maker: dict[Value, Op]) -> Atom:
    """What a result is made of by moves alone, as long as that is no larger."""
    found = atom
    while isinstance(atom, Value) and (op := maker.get(atom)) is not None:
        if op.kind not in _FORMS or not isinstance(op.inputs[0], Value):
            break
        atom = op.inputs[0]
        if _size(atom) <= _size(found):
            found = atom
    return found


def _size(value: Atom) -> int:
    return math.prod(value.aval.shape) * value.aval.dtype.itemsize
