"""The two passes of single operations, traced once for all that are equal.

A program has many operations and few that differ. Tracing a derivative takes some
hundred times as long as writing down once more what is known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from revremat import _compat
from revremat.program.ir._ops import Atom, Constant, Op, Program, Value, is_scalar
from revremat.program.ir._passes import Differentiated, Linearized, Mask, traced

_MOST_KNOWN = 4096
_known: dict[Any, Linearized] = {}
"""By what decides them; the oldest go first."""


@dataclass(frozen=True, eq=False)
class Alone:
    """One operation as a program of its own.

    Attributes:
      op: The operation.
      atoms: What it takes, each once, without plain numbers.
      in_mask: Which of them are differentiated.
      out_mask: Which of its results are.
    """

    op: Op
    atoms: tuple[Atom, ...]
    in_mask: Mask
    out_mask: Mask

    @staticmethod
    def of(op: Op, live: set[Value], wanted: set[Value]) -> "Alone":
        """An operation.

        Args:
          op: The operation.
          live: Values that have a derivative.
          wanted: Those of them whose cotangents are needed.
        """
        atoms = tuple(dict.fromkeys(a for a in op.inputs if not _is_number(a)))
        return Alone(
            op,
            atoms,
            tuple(a in live for a in atoms),
            tuple(out in wanted for out in op.outputs),
        )

    @cached_property
    def program(self) -> Differentiated:
        """It, on values of its own, in a scope that stands for any."""
        op = self.op
        values = {atom: Value(atom.aval) for atom in self.atoms}
        outputs = tuple(Value(out.aval) for out in op.outputs)
        inputs = tuple(values.get(a, a) for a in op.inputs)
        alone = Op(op.eqn, inputs, outputs, op.scope.anywhere())
        program = Program(tuple(values.values()), (alone,), outputs)
        return Differentiated(program, self.in_mask, self.out_mask)

    @cached_property
    def key(self) -> Any:
        """Equal for operations that have the same passes; None if that is not known."""
        eqn = self.op.eqn
        place = {atom: k for k, atom in enumerate(self.atoms)}
        taken = tuple(
            (a.aval, np.asarray(a.value).tobytes())
            if isinstance(a, Constant) and _is_number(a)
            else (a.aval, place[a])
            for a in self.op.inputs
        )
        params = tuple(sorted(eqn.params.items(), key=lambda item: item[0]))
        about = eqn.primitive, params, eqn.ctx, taken, self.in_mask, self.out_mask
        try:
            hash(about)
        except TypeError:
            return None
        return about


def _is_number(atom: Atom) -> bool:
    return isinstance(atom, Constant) and is_scalar(atom)


def passes_of(asked: Sequence[Alone]) -> list[Linearized]:
    """The passes of operations, of equal ones the same."""
    context = _compat.trace_context()
    found: dict[Any, Linearized] = {}
    new: dict[Any, Alone] = {}
    keys = []
    for number, one in enumerate(asked):
        key = number if one.key is None else one.key
        keys.append(key)
        if key in found or key in new:
            continue
        whole = _lasting(one, context)
        if whole is not None and whole in _known:
            found[key] = _known[whole]
        else:
            new[key] = one
    with_effects = {k: a for k, a in new.items() if _compat.side_effects(a.op.eqn)}
    others = {k: a for k, a in new.items() if k not in with_effects}
    found |= {k: traced([a.program])[0] for k, a in with_effects.items()}
    if others:
        made = traced([a.program for a in others.values()])
        found |= dict(zip(others, made, strict=True))
        for key, one in others.items():
            if (whole := _lasting(one, context)) is not None:
                _remember(whole, found[key])
    return [found[key] for key in keys]


def _lasting(one: Alone, context: Any) -> Any:
    """What is remembered by: nothing of operations that hold a user's functions."""
    if one.key is None or not all(map(_is_plain, one.op.eqn.params.values())):
        return None
    return one.key, context


def _is_plain(value: Any) -> bool:
    """Whether a parameter holds no program and no function."""
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    holds = hasattr(value, "eqns") or hasattr(value, "jaxpr")
    return not holds and not isinstance(value, Callable)


def _remember(key: Any, passes: Linearized) -> None:
    _known[key] = passes
    while len(_known) > _MOST_KNOWN:
        _known.pop(next(iter(_known)), None)
