"""Inverses, written into a program by `rr.block(..., inverse=)`, and found in it again.

A block that knows its inverse calls it on its own output and drops the result: dead
code, which costs nothing, survives every transformation together with the block, and
says there, on the block's very values, how to restore its input.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from revremat.program.ir._ops import (
    INVERSE_PREFIX,
    Atom,
    Op,
    Program,
    Value,
    as_closed,
    flatten,
    needed,
    prune,
    read,
    run,
    same_result,
    substitute,
    with_inputs,
)


def inverse_label(offset: int, count: int, num_outputs: int) -> str:
    """What to call an inverse.

    Args:
      offset: How many inputs before the block's last the first is that it gives.
      count: How many it gives.
      num_outputs: Of the block.
    """
    return f"{INVERSE_PREFIX}{offset}.{count}.{num_outputs}"


def block_inverse(op: Op) -> tuple[tuple[int, ...], Program] | None:
    """The inverse of a block, and at which of the block's inputs its results stand.

    The program takes what the block takes, with the block's outputs at those positions.
    None if the block has no inverse, or a transformation made another block of it that
    has none: where tangents came in, or `vmap` gave its outputs more axes than inputs.
    """
    if not op.is_block:
        return None
    inner = flatten(as_closed(op.eqn.params["jaxpr"]), keep_blocks=True)
    calls = [inside for inside in inner.ops if inside.is_inverse]
    if len(calls) != 1:
        return None
    label = calls[0].called.removeprefix(INVERSE_PREFIX)
    offset, count, num_outputs = map(int, label.split("."))
    if len(inner.outputs) > num_outputs:
        return None
    first = len(inner.inputs) - offset
    positions = tuple(range(first, first + count))
    outputs = [out for out in inner.outputs[:count] if isinstance(out, Value)]
    before, used = needed(inner.ops, calls[0].inputs, outputs)
    if len(outputs) != count or used & {inner.inputs[k] for k in positions}:
        return None
    carried = [inner.inputs[k] for k in positions]
    if not _same_avals(carried, outputs) or not _same_avals(carried, calls[0].outputs):
        return None
    fresh = [Value(v.aval) for v in inner.inputs]
    env: dict[Any, Any] = dict(zip(inner.inputs, fresh, strict=True))
    env.update({out: fresh[k] for out, k in zip(outputs, positions, strict=True)})
    ops = substitute((*before, calls[0]), env)
    return positions, Program(tuple(fresh), ops, ops[-1].outputs)


def _same_avals(some: Sequence[Value], others: Sequence[Value]) -> bool:
    described = ([(v.aval.shape, v.aval.dtype) for v in one] for one in (some, others))
    return next(described) == next(described)


def scan_inverse(
    closed: Any, num_consts: int, num_carry: int, lifted: Sequence[Any]
) -> Program | None:
    """The inverse of a scan's body, if that is one block with an inverse.

    What the block takes beside the carry may be computed in the body, from anything but
    the carry.

    Args:
      closed: The body.
      num_consts: How many of its inputs are constants.
      num_carry: How many are carried.
      lifted: Shapes of further inputs that come first and that the inverse ignores.
    """
    body = flatten(closed, keep_blocks=True)
    carry = body.inputs[num_consts : num_consts + num_carry]
    for op in body.ops:
        if (known := block_inverse(op)) is None:
            continue
        positions, inverse = known
        if [op.inputs[k] for k in positions] != list(carry):
            continue
        if list(op.outputs[:num_carry]) != list(body.outputs[:num_carry]):
            continue
        others = [a for k, a in enumerate(op.inputs) if k not in positions]
        before, used = needed(body.ops, others)
        if used & set(carry):
            continue
        env: dict[Any, Any] = dict(zip(inverse.inputs, op.inputs, strict=True))
        ops = (*before, *substitute(inverse.ops, env))
        outputs = tuple(env[out] for out in inverse.outputs)
        found = Program(body.inputs, ops, outputs)
        return with_inputs(found, lifted, 0)
    return None


def undone(
    inverse: Program, forward: Program, carried: Sequence[int]
) -> tuple[Op, ...]:
    """A layer's operations, run from its carry out.

    First those of the inverse, which make the layer's carried inputs; an operation of
    the layer that computes the same stands in the inverse's place. Then the others.

    Args:
      inverse: Takes what the layer takes, with its carry out at `carried`.
      forward: The layer.
      carried: Which of its inputs it is given, in the order in which it passes them on.
    """
    handed = dict(zip(carried, forward.outputs, strict=False))
    arguments = [handed.get(k, v) for k, v in enumerate(forward.inputs)]
    flat = _flat(inverse)
    known: dict[Value, Atom] = dict(zip(flat.inputs, arguments, strict=True))
    supplied = [forward.inputs[k] for k in carried]
    wanted = dict(zip(flat.outputs, supplied, strict=True))
    duplicates = {same_result(op, op.inputs): op for op in forward.ops}
    ops: dict[Op, None] = {}
    for op in flat.ops:
        inputs = tuple(
            known.get(a, a) if isinstance(a, Value) else a for a in op.inputs
        )
        if op.kind == "stop_gradient" and wanted.keys().isdisjoint(op.outputs):
            # Nothing here is differentiated, and behind it duplicates are not known as
            # such.
            known.update(zip(op.outputs, inputs, strict=True))
            continue
        key = same_result(op, inputs)
        if (
            key in duplicates
            and key is not None
            and wanted.keys().isdisjoint(op.outputs)
        ):
            ops[duplicates[key]] = None
            known.update(zip(op.outputs, duplicates[key].outputs, strict=True))
            continue
        outputs = tuple(wanted.get(out, out) for out in op.outputs)
        known.update(zip(op.outputs, outputs, strict=True))
        ops[Op(op.eqn, inputs, outputs, op.scope)] = None
    return tuple(ops | dict.fromkeys(forward.ops))


def _flat(inverse: Program) -> Program:
    """The inverse, its calls inlined, every output made by an operation of its own."""
    pruned = prune(inverse)

    def expand(op: Op, values: list[Any]) -> list[Any] | None:
        if not op.is_inverse:
            return None
        return flatten(as_closed(op.eqn.params["jaxpr"]))(*values)

    def undo(*args: Any) -> list[Any]:
        env = dict(zip(pruned.inputs, args, strict=True))
        run(pruned.ops, env, expand)
        return [read(env, out) for out in pruned.outputs]

    avals = [v.aval for v in pruned.inputs]
    flat = flatten(jax.make_jaxpr(undo)(*avals))
    made = {out for op in flat.ops for out in op.outputs}
    own = [out in made and flat.outputs.count(out) == 1 for out in flat.outputs]
    if all(own):
        return flat
    copies = lambda *args: [
        out if one else jnp.copy(out) for out, one in zip(flat(*args), own, strict=True)
    ]
    return flatten(jax.make_jaxpr(copies)(*avals))
