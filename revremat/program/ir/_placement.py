"""Over which mesh axes the values of a program are cut, as far as it says.

Arguments have shardings, and constraints fix those of values. In between, a dimension
is cut as the dimensions that it is computed from, or that are computed from it. That is
what XLA's partitioner does, too, whose choices are known only after a compile.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from revremat import _compat
from revremat.program.ir._costs import every_op
from revremat.program.ir._ops import Atom, Op, Program, Value, as_closed, flatten

Axes = tuple[tuple[str, int], ...]
"""Mesh axes, each with its size."""
Cut = tuple[Axes, ...]
"""Of each dimension; () for one that is whole."""
_ROUNDS = 4
_End = tuple[Atom, int]
_Pair = tuple[Atom, Atom, int]


def parts_of(cut: Cut | None) -> int:
    """Into how many pieces an array is cut.

    >>> parts_of(((("data", 2),), (), (("model", 4),)))
    8
    """
    return math.prod(size for axes in cut or () for _, size in axes)


def cut_of(sharding: Any, ndim: int) -> Cut | None:
    """What a sharding says, None if it names no axes."""
    if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
        return None
    sizes = dict(sharding.mesh.shape)
    entries = [*sharding.spec, *[None] * ndim][:ndim]
    named = [(e,) if isinstance(e, str) else e for e in entries]
    return tuple(
        tuple((axis, sizes[axis]) for axis in axes if sizes.get(axis, 1) > 1)
        if isinstance(axes, tuple)
        else ()
        for axes in named
    )


@dataclass
class Placement:
    """How values are cut.

    Attributes:
      cuts: Of those that are cut at all.
      fixed: Those of which an argument, a constraint or a type says it.
    """

    cuts: dict[Value, Cut] = field(default_factory=dict)
    fixed: set[Value] = field(default_factory=set)

    def of(self, atom: Atom) -> Cut:
        """How a value is cut; whole where nothing says more."""
        whole = ((),) * len(atom.aval.shape)
        return self.cuts.get(atom, whole) if isinstance(atom, Value) else whole

    def fix(self, value: Value, cut: Cut | None) -> None:
        """Says how a value is cut, once and for all."""
        if cut is not None:
            self.cuts[value] = cut
            self.fixed.add(value)

    def link(self, ends: Sequence[_End]) -> bool:
        """Cuts dimensions of one meaning alike; whether that changed any."""
        known = next((c for a, d in ends if (c := self.of(a)[d])), ())
        changed = [self._cut(atom, dim, known) for atom, dim in ends if known]
        return any(changed)

    def _cut(self, atom: Atom, dim: int, axes: Axes) -> bool:
        if not isinstance(atom, Value) or atom in self.fixed:
            return False
        cut = self.of(atom)
        used = {axis for other in cut for axis in other}
        parts = math.prod(size for _, size in axes)
        if cut[dim] or used.intersection(axes) or atom.aval.shape[dim] % parts:
            return False
        self.cuts[atom] = (*cut[:dim], axes, *cut[dim + 1 :])
        return True


def placement(program: Program, given: Mapping[Value, Cut | None]) -> Placement:
    """How the values of a program are cut.

    Args:
      program: Flat.
      given: Of its inputs, as far as that is known.
    """
    found = Placement()
    for value, cut in given.items():
        found.fix(value, cut)
    for value in program.inputs:
        found.fix(value, _explicit(value))
    for op in program.ops:
        for out in op.outputs:
            found.fix(out, _explicit(out))
        if op.kind == "sharding_constraint":
            (out,) = op.outputs
            found.fix(out, cut_of(op.eqn.params["sharding"], len(out.aval.shape)))
    if not found.fixed and not any(map(_is_cut, every_op(program))):
        return found
    for _ in range(_ROUNDS):
        changed = [_spread(op, found) for op in program.ops]
        changed += [_spread(op, found) for op in reversed(program.ops)]
        if not any(changed):
            break
    return found


def shardings_of_kept(program: Program) -> dict[Value, NamedSharding]:
    """Where values lie that the constraints of a program cut, if not by name.

    A value that is cut and gathered later may be kept in either form. XLA decides by
    what comes next; constrained, it is kept as the smaller one. Of other dimensions
    nothing is said: weights, whose places are not known here, may cut them as well.
    """
    constraints = (op for op in program.ops if op.kind == "sharding_constraint")
    places = [op.eqn.params["sharding"] for op in constraints]
    meshes = {place.mesh for place in places if isinstance(place, NamedSharding)}
    if len(meshes) != 1:
        return {}
    (mesh,) = meshes
    found = placement(program, {})
    return {
        value: NamedSharding(mesh, _open_spec(cut))
        for value, cut in found.cuts.items()
        if value not in found.fixed and parts_of(cut) > 1
    }


def num_devices(program: Program) -> int:
    """How many devices compute a program, as far as it says so itself.

    Types say it, of what is made from arrays that lie on a mesh, on an ambient mesh and
    inside of `shard_map`; and constraints.
    """
    told = (
        (op.eqn.params.get("sharding"), *(_sharding(out) for out in op.outputs))
        for op in every_op(program)
    )
    meshes = [s.mesh for few in told for s in few if isinstance(s, NamedSharding)]
    return max((mesh.size for mesh in meshes if not mesh.empty), default=1)


def _sharding(value: Value) -> Any:
    return getattr(value.aval, "sharding", None)


def _open_spec(cut: Cut) -> PartitionSpec:
    """A cut that says nothing of the dimensions that it leaves whole."""
    names = [tuple(name for name, _ in axes) for axes in cut]
    return PartitionSpec(*(each or PartitionSpec.UNCONSTRAINED for each in names))


def _is_cut(op: Op) -> bool:
    """Whether an operation says where its results lie."""
    return op.kind == "sharding_constraint" or any(map(_explicit, op.outputs))


def _explicit(value: Value) -> Cut | None:
    """What the type of a value on an Explicit mesh says."""
    sharding = _sharding(value)
    if sharding is None or not getattr(sharding.mesh, "explicit_axes", ()):
        return None
    return cut_of(sharding, len(value.aval.shape))


def _spread(op: Op, found: Placement) -> bool:
    inner = _inner(op)
    if inner is not None:
        return _through(op, *inner, found)
    return any([found.link(ends) for ends in _ends(op)])


def _through(
    op: Op,
    body: Program,
    pairs: Sequence[_Pair],
    found: Placement,
) -> bool:
    """Through a program that an operation holds.

    Args:
      op: The operation.
      body: The program.
      pairs: A value outside, the same inside, and how many leading dimensions the one
        outside has more.
      found: Outside.
    """
    inputs = {*body.inputs}
    given = {
        inside: cut[more:]
        for outside, inside, more in pairs
        if inside in inputs and any((cut := found.of(outside))[more:])
    }
    within = placement(body, given)
    changed = False
    for outside, inside, more in pairs:
        for dim, axes in enumerate(within.of(inside)):
            changed |= bool(axes) and found._cut(outside, dim + more, axes)
    return changed


def _inner(op: Op) -> tuple[Program, list[_Pair]] | None:
    """The program that an operation runs, and which values are which."""
    params = op.eqn.params
    if op.kind == "shard_map":
        return None
    if op.kind == "scan":
        body = flatten(as_closed(params["jaxpr"]), keep_names=True)
        consts, carried = _compat.scan_counts(op.eqn)
        more = [0] * (consts + carried)
        more += [1] * (len(op.inputs) - len(more))
        pairs: list[_Pair] = [*zip(op.inputs, body.inputs, more, strict=True)]
        more = [0] * carried + [1] * (len(op.outputs) - carried)
        pairs += zip(op.outputs, body.outputs, more, strict=True)
        return body, pairs
    if op.kind == "cond":
        body = flatten(as_closed(params["branches"][-1]), keep_names=True)
        taken = op.inputs[1:]
    else:
        held = params.get("call_jaxpr", params.get("fun_jaxpr", params.get("jaxpr")))
        if held is None or not hasattr(as_closed(held), "jaxpr"):
            return None
        body, taken = flatten(as_closed(held), keep_names=True), op.inputs
    if len(body.inputs) != len(taken) or len(body.outputs) != len(op.outputs):
        return None
    pairs = [(a, b, 0) for a, b in zip(taken, body.inputs, strict=True)]
    pairs += [(a, b, 0) for a, b in zip(op.outputs, body.outputs, strict=True)]
    return body, pairs


def _ends(op: Op) -> Iterator[list[_End]]:
    """Dimensions of what an operation takes and gives that mean the same."""
    params = op.eqn.params
    if not op.outputs or op.kind == "shard_map":
        return
    out, inputs = op.outputs[0], op.inputs
    rank = len(out.aval.shape)
    if op.kind == "broadcast_in_dim":
        for dim, at in enumerate(params["broadcast_dimensions"]):
            if inputs[0].aval.shape[dim] == out.aval.shape[at]:
                yield [(inputs[0], dim), (out, at)]
    elif op.kind == "transpose":
        for at, dim in enumerate(params["permutation"]):
            yield [(inputs[0], dim), (out, at)]
    elif op.kind.startswith(("reduce_", "arg")) and "axes" in params:
        kept = [d for d in range(len(inputs[0].aval.shape)) if d not in params["axes"]]
        for one in (*inputs, *op.outputs):
            if len(one.aval.shape) not in (len(kept), len(inputs[0].aval.shape)):
                return
        for at, dim in enumerate(kept):
            yield [(inputs[0], dim), *((each, at) for each in op.outputs)]
    elif op.kind == "squeeze":
        gone = params["dimensions"]
        kept = [d for d in range(len(inputs[0].aval.shape)) if d not in gone]
        for at, dim in enumerate(kept):
            yield [(inputs[0], dim), (out, at)]
    elif op.kind == "reshape":
        yield from _reshaped(inputs[0], out)
    elif op.kind == "dot_general":
        yield from _product(op)
    elif op.kind == "gather":
        offsets = params["dimension_numbers"].offset_dims
        batch = [d for d in range(rank) if d not in offsets]
        for dim, at in enumerate(batch[: len(inputs[1].aval.shape) - 1]):
            yield [(inputs[1], dim), (out, at)]
    elif op.kind == "conv_general_dilated":
        lhs, rhs, result = params["dimension_numbers"]
        yield [(inputs[0], lhs[0]), (out, result[0])]
        yield [(inputs[1], rhs[0]), (out, result[1])]
    else:
        alike = [a for a in (*inputs, *op.outputs) if len(a.aval.shape) == rank]
        for dim in range(rank):
            size = out.aval.shape[dim]
            yield [(a, dim) for a in alike if a.aval.shape[dim] == size]


def _reshaped(x: Atom, y: Atom) -> Iterator[list[_End]]:
    """Dimensions that stay, and the first ones of those that are joined or parted."""
    sizes = [x.aval.shape, y.aval.shape]
    at = [0, 0]
    while at[0] < len(sizes[0]) and at[1] < len(sizes[1]):
        first = [*at]
        product = [sizes[0][at[0]], sizes[1][at[1]]]
        while product[0] != product[1]:
            side = int(product[0] > product[1])
            at[side] += 1
            if at[side] == len(sizes[side]):
                return
            product[side] *= sizes[side][at[side]]
        yield [(x, first[0]), (y, first[1])]
        at = [at[0] + 1, at[1] + 1]


def _product(op: Op) -> Iterator[list[_End]]:
    (lhs, rhs), (out, *_) = op.inputs[:2], op.outputs
    (summed, batch) = op.eqn.params["dimension_numbers"]
    for one, other in zip(*summed, strict=True):
        yield [(lhs, one), (rhs, other)]
    at = 0
    for one, other in zip(*batch, strict=True):
        yield [(lhs, one), (rhs, other), (out, at)]
        at += 1
    for side, number in ((lhs, 0), (rhs, 1)):
        for dim in range(len(side.aval.shape)):
            if dim not in (*summed[number], *batch[number]):
                yield [(side, dim), (out, at)]
                at += 1
