"""What devices send each other in an operation, and how many share its work.

By where values lie before a compile: a constraint that moves a value is a collective,
and so is a product over a dimension that is cut, whose partial sums are added up. Which
collectives a program has in the end, XLA decides.
"""

import math
from collections.abc import Iterable

from revremat._primitives import COLLECTIVES, REDUCTIONS
from revremat.program.ir._costs import num_bytes, programs_in
from revremat.program.ir._ops import Atom, Op, flatten
from revremat.program.ir._placement import Cut, Placement, parts_of

CONSTRAINTS = ("sharding_constraint", "reshard")
_Axis = tuple[str, int]


def sent_bytes(op: Op, found: Placement) -> int:
    """What each device sends to others in running an operation once.

    Rings are counted: of n devices each sends (n - 1) / n of what is gathered,
    scattered or exchanged, and twice that of what is added up everywhere.

    Args:
      op: Of a flat program.
      found: How its values are cut.
    """
    if op.kind in CONSTRAINTS:
        return _moved(op.inputs[0], op.outputs[0], found)
    if op.kind in COLLECTIVES:
        return _by_hand(op)
    if summed := _summed(op, found):
        return sum(_added_up(out, summed, found) for out in op.outputs)
    times = op.eqn.params.get("length", 1) if op.kind == "scan" else 1
    inside = [flatten(closed).ops for closed in programs_in(op)]
    nowhere = Placement()
    sent = [sum(sent_bytes(inner, nowhere) for inner in ops) for ops in inside]
    return times * (max(sent, default=0) if op.kind == "cond" else sum(sent))


def num_sharing(op: Op, found: Placement) -> int:
    """How many devices share an operation's work.

    Args:
      op: Of a flat program.
      found: How its values are cut.
    """
    axes = _summed(op, found).union(*(_axes(found.of(out)) for out in op.outputs))
    return _size(axes)


def _axes(cut: Cut) -> frozenset[_Axis]:
    return frozenset(axis for axes in cut for axis in axes)


def _size(axes: Iterable[_Axis]) -> int:
    return math.prod(size for _, size in axes)


def _on_one(atom: Atom, found: Placement) -> int:
    return num_bytes(atom.aval) // parts_of(found.of(atom))


def _moved(before: Atom, after: Atom, found: Placement) -> int:
    """Of a constraint: axes that are gone are gathered, others change dimensions."""
    was, now = found.of(before), found.of(after)
    gone = _size(_axes(was) - _axes(now))
    sent = (gone - 1) * _on_one(after, found) // gone
    where = lambda cut: {axis: dim for dim, axes in enumerate(cut) for axis in axes}
    old, new = where(was), where(now)
    turned = _size(axis for axis in old if new.get(axis, old[axis]) != old[axis])
    return sent + (turned - 1) * _on_one(before, found) // turned


def _summed(op: Op, found: Placement) -> frozenset[_Axis]:
    """Mesh axes over which an operation's result has to be added up."""
    if op.kind == "dot_general":
        lhs, rhs = map(found.of, op.inputs[:2])
        (pairs, _) = op.eqn.params["dimension_numbers"]
        both = ({*lhs[a]} & {*rhs[b]} for a, b in zip(*pairs, strict=True))
        return frozenset().union(*both)
    if op.kind.startswith(REDUCTIONS) and "axes" in op.eqn.params:
        cut = found.of(op.inputs[0])
        return frozenset(axis for dim in op.eqn.params["axes"] for axis in cut[dim])
    return frozenset()


def _added_up(out: Atom, summed: frozenset[_Axis], found: Placement) -> int:
    """Sums that are cut at once are scattered; others are whole everywhere."""
    scattered = summed & _axes(found.of(out))
    parts, whole, size = (
        _size(scattered),
        _size(summed - scattered),
        _on_one(out, found),
    )
    return (parts - 1) * size + 2 * (whole - 1) * size // whole


def _by_hand(op: Op) -> int:
    """Of a collective within `jax.shard_map`, whose values are one device's."""
    sizes = [num_bytes(a.aval) for a in (*op.inputs, *op.outputs)]
    number = op.eqn.params.get("axis_size", 0)
    share = (number - 1) / number if isinstance(number, int) and number else 1.0
    passes = 2 if op.kind in ("psum", "psum_invariant", "pmax", "pmin") else 1
    return round(passes * share * max(sizes, default=0))
