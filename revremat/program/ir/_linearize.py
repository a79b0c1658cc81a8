"""A layer's forward and backward passes as two programs, with every value in sight.

Any set of the forward program's values may be kept and the residuals recomputed from
them; what plain autodiff keeps is only one choice among many. Both programs are put
together from the passes of the layer's operations, as JAX differentiates each: forward
in order, backward in reverse, with the sums of cotangents where a value has several
uses.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from revremat import _compat
from revremat._primitives import CALLS, CHECKPOINTS
from revremat.program.arrays import _avals
from revremat.program.ir._derivatives import Alone, passes_of
from revremat.program.ir._ops import Atom, Constant, Op, Program, Value, flatten
from revremat.program.ir._passes import (
    Linearized,
    dependent,
    has_derivative,
    pick,
    values_in,
)


def linearize(layer: Program, in_mask: Sequence[bool]) -> Linearized:
    """Split a layer's derivative into its two passes.

    Args:
      layer: The layer, flat.
      in_mask: Which inputs are differentiated; their types must have cotangents.
    """
    in_mask = tuple(in_mask)
    live = dependent(layer, in_mask)
    out_mask = tuple(out in live for out in layer.outputs)
    ops = _differentiated(layer, live)
    passes = dict(zip(ops, passes_of([*ops.values()]), strict=True))
    forward = _Forward(layer, passes, ops)
    backward = _Backward(layer, passes, ops, forward.residuals_of)
    cotangents = backward.run(
        pick(layer.outputs, out_mask), pick(layer.inputs, in_mask)
    )
    residuals = sorted(backward.residuals, key=forward.order.__getitem__)
    program = Program(
        tuple(forward.env[v] for v in layer.inputs),
        tuple(forward.ops),
        (*map(forward.read, layer.outputs), *residuals),
        tuple(forward.names),
    )
    pulled = Program(
        (*(backward.residuals[r] for r in residuals), *backward.given),
        tuple(backward.ops),
        tuple(cotangents),
    )
    return Linearized.of(program, len(layer.outputs), pulled, (in_mask, out_mask))


def _differentiated(layer: Program, live: set[Value]) -> dict[Op, Alone]:
    """The operations between what is differentiated and what depends on it."""
    wanted = {out for out in layer.outputs if out in live}
    found: dict[Op, Alone] = {}
    for op in reversed(layer.ops):
        if has_derivative(op) and not wanted.isdisjoint(op.outputs):
            mine = live.intersection(values_in(op.inputs))
            if mine:
                found[op] = Alone.of(op, live, wanted)
                wanted |= mine
    return dict(reversed(found.items()))


class _Forward:
    """The forward pass, from operations' own, in order.

    Attributes:
      env: From the layer's values to those of the pass.
      ops: Its operations.
      names: Its values that have names.
      order: From residuals to their places, as they come to be.
      residuals_of: Of each operation, what its backward pass takes first.
    """

    def __init__(
        self,
        layer: Program,
        passes: Mapping[Op, Linearized],
        alone: Mapping[Op, Alone],
    ):
        self.env: dict[Value, Any] = {v: Value(v.aval) for v in layer.inputs}
        self.ops: list[Op] = []
        self.names: list[tuple[str, Atom]] = []
        self.order: dict[Atom, int] = {}
        self.residuals_of: dict[Op, list[Atom]] = {}
        for op in layer.ops:
            if op in passes:
                self._differentiated(op, alone[op], passes[op])
            else:
                self._plain(op)

    def read(self, atom: Atom) -> Atom:
        """A value of the layer, in the pass."""
        return self.env[atom] if isinstance(atom, Value) else atom

    def _differentiated(self, op: Op, alone: Alone, passes: Linearized) -> None:
        given = map(self.read, alone.atoms)
        inner = dict(zip(passes.forward.inputs, given, strict=True))
        self.ops += _written(op, passes.forward.ops, inner)
        self._results(op, passes.forward, inner)
        taken = [_of(inner, atom) for atom in passes.residuals]
        self.residuals_of[op] = taken
        for atom in taken:
            self.order.setdefault(atom, len(self.order))

    def _plain(self, op: Op) -> None:
        outputs = tuple(Value(out.aval) for out in op.outputs)
        scope = op.scope.differentiated()
        mine = Op(op.eqn, tuple(map(self.read, op.inputs)), outputs, scope)
        if not _is_rewritten(mine):
            self.ops.append(mine)
            self.env.update(zip(op.outputs, outputs, strict=True))
            return
        alone = Alone.of(mine, set(), set())
        program = alone.program.program
        traced = flatten(jax.make_jaxpr(program)(*(v.aval for v in program.inputs)))
        inner = dict(zip(traced.inputs, alone.atoms, strict=True))
        self.ops += _written(mine, traced.ops, inner)
        self._results(op, traced, inner)

    def _results(self, op: Op, program: Program, inner: Mapping[Value, Any]) -> None:
        given = program.outputs[: len(op.outputs)]
        results = (_of(inner, atom) for atom in given)
        self.env.update(zip(op.outputs, results, strict=True))
        self.names += [(name, _of(inner, atom)) for name, atom in program.names]


class _Backward:
    """The backward pass, from operations' own, the last first.

    Attributes:
      residuals: From the forward pass's values to this one's inputs.
      given: Its inputs that are cotangents.
      ops: Its operations.
    """

    def __init__(
        self,
        layer: Program,
        passes: Mapping[Op, Linearized],
        alone: Mapping[Op, Alone],
        residuals_of: Mapping[Op, Sequence[Atom]],
    ):
        self.layer, self.passes, self.alone = layer, passes, alone
        self.residuals_of = residuals_of
        self.residuals: dict[Atom, Value] = {}
        self.given: list[Value] = []
        self.ops: list[Op] = []
        self._cotangents: dict[Value, Atom] = {}
        self._sums: dict[Any, Program] = {}

    def run(self, outputs: Sequence[Any], inputs: Sequence[Any]) -> list[Atom]:
        """Cotangents of inputs, from those of outputs."""
        for out in outputs:
            value = Value(out.aval.to_ct_aval())
            self.given.append(value)
            self._add(out, value, None)
        for op in reversed(self.layer.ops):
            if op in self.passes:
                self._pull_back(op)
        known = self._cotangents
        return [known.get(v) or self._zero(v.aval, None) for v in inputs]

    def _pull_back(self, op: Op) -> None:
        alone, passes = self.alone[op], self.passes[op]
        outs = pick(op.outputs, alone.out_mask)
        known = [self._cotangents.pop(out, None) for out in outs]
        if not any(known):
            return
        given = [
            ct or self._zero(out.aval, op) for ct, out in zip(known, outs, strict=True)
        ]
        taken = [self._residual(atom) for atom in self.residuals_of[op]]
        backward = passes.backward
        inner = dict(zip(backward.inputs, (*taken, *given), strict=True))
        zeros = _zeros_in(backward)
        self.ops += _written(op, backward.ops, inner)
        for value, atom in zip(
            pick(alone.atoms, alone.in_mask), backward.outputs, strict=True
        ):
            if atom not in zeros:
                self._add(value, _of(inner, atom), op)

    def _residual(self, atom: Atom) -> Atom:
        if isinstance(atom, Constant):
            return atom
        return self.residuals.setdefault(atom, Value(atom.aval))

    def _add(self, value: Value, cotangent: Atom, at: Op | None) -> None:
        """One more cotangent of a value, by an operation."""
        known = self._cotangents.get(value)
        if known is not None:
            if (aval := cotangent.aval) not in self._sums:
                closed = jax.make_jaxpr(_avals.add)(aval, aval)
                self._sums[aval] = flatten(closed)
            cotangent = self._put(self._sums[aval], [known, cotangent], at)
        self._cotangents[value] = cotangent

    def _zero(self, aval: Any, at: Op | None) -> Atom:
        closed = jax.make_jaxpr(lambda: _avals.zero_cotangent(aval))()
        return self._put(flatten(closed), [], at)

    def _put(self, program: Program, given: Sequence[Atom], at: Op | None) -> Atom:
        inner: dict[Value, Any] = dict(zip(program.inputs, given, strict=True))
        for op in program.ops:
            scope = op.scope if at is None else at.scope.differentiated(backward=True)
            self.ops.append(_copied(at or op, op, scope, inner))
        return _of(inner, program.outputs[0])


def _is_rewritten(op: Op) -> bool:
    """Whether tracing it once more gives something else: its parts, or a number."""
    if op.kind == "name" or op.kind in CALLS | CHECKPOINTS:
        return True
    if op.kind not in ("convert_element_type", "broadcast_in_dim"):
        return False
    (given, *_), (made,) = op.inputs, op.outputs
    return isinstance(given, Constant) or given.aval == made.aval


def _of(env: Mapping[Value, Any], atom: Atom) -> Atom:
    return env[atom] if isinstance(atom, Value) else atom


def _written(op: Op, ops: Iterable[Op], env: dict[Value, Any]) -> list[Op]:
    """What an operation's own pass does, where the operation stands."""
    return [_copied(op, one, one.scope.placed(op.scope), env) for one in ops]


def _copied(at: Op, op: Op, scope: _compat.Scope, env: dict[Value, Any]) -> Op:
    """An operation on other values, with the source lines of a second one."""
    inputs = tuple(_of(env, atom) for atom in op.inputs)
    outputs = tuple(Value(out.aval) for out in op.outputs)
    env.update(zip(op.outputs, outputs, strict=True))
    eqn = op.eqn.replace(source_info=at.eqn.source_info)
    return Op(eqn, inputs, outputs, scope)


def _zeros_in(program: Program) -> set[Atom]:
    """Results that are zero whatever the program is given."""
    zeros: set[Atom] = {a for a in program.outputs if _is_zero(a)}
    for op in program.ops:
        if op.kind == "broadcast_in_dim" and all(map(_is_zero, op.inputs)):
            zeros.update(op.outputs)
    return zeros


def _is_zero(atom: Atom) -> bool:
    if not isinstance(atom, Constant) or _compat.is_tracer(atom.value):
        return False
    return not atom.aval.shape and not np.any(np.asarray(atom.value))
