"""Inverses, written into a program by `rr.block(..., inverse=)`, and found in it again.

A block that knows its inverse calls it on its own output and drops the result: dead
code, which costs nothing, survives every transformation together with the block, and
says there, on the block's very values, how to come back.
"""

from collections.abc import Sequence
from typing import Any

from revremat.program._ops import (
    INVERSE_PREFIX,
    Op,
    Program,
    Value,
    as_closed,
    flatten,
    needed,
    substitute,
    with_inputs,
)


def inverse_label(offset: int, count: int) -> str:
    """What to call an inverse: it gives `count` inputs, `offset` before the last."""
    return f"{INVERSE_PREFIX}{offset}.{count}"


def block_inverse(op: Op) -> tuple[tuple[int, ...], Program] | None:
    """The inverse of a block, and at which of the block's inputs its results stand.

    The program takes what the block takes, with the block's outputs at those positions.
    None if the block has no inverse.
    """
    if not op.is_block:
        return None
    inner = flatten(as_closed(op.eqn.params["jaxpr"]), keep_blocks=True)
    calls = [inside for inside in inner.ops if inside.is_inverse]
    if len(calls) != 1:
        return None
    offset, count = map(int, calls[0].called.removeprefix(INVERSE_PREFIX).split("."))
    first = len(inner.inputs) - offset
    positions = tuple(range(first, first + count))
    outputs = [out for out in inner.outputs[:count] if isinstance(out, Value)]
    before, used = needed(inner.ops, calls[0].inputs, outputs)
    if len(outputs) != count or used & {inner.inputs[k] for k in positions}:
        return None
    fresh = [Value(v.aval) for v in inner.inputs]
    env: dict[Any, Any] = dict(zip(inner.inputs, fresh, strict=True))
    env.update({out: fresh[k] for out, k in zip(outputs, positions, strict=True)})
    ops = substitute((*before, calls[0]), env)
    return positions, Program(tuple(fresh), ops, ops[-1].outputs)


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
