"""What an operation costs, counted: FLOPs and bytes. For explaining and for pruning."""

import math
from collections.abc import Callable, Iterator
from typing import Any

from revremat._primitives import ATTENTION, MOVES
from revremat.program.ir._attention import attention_flops
from revremat.program.ir._ops import Op, Program, as_closed, flatten


def num_bytes(aval: Any) -> int:
    """Size of one whole array."""
    itemsize = getattr(aval.dtype, "itemsize", 8)
    return math.prod(aval.shape) * itemsize


def program_flops(program: Program) -> int:
    return sum(num_flops(op) for op in program.ops)


def num_operations(program: Program) -> int:
    """Operations, with those of loops' bodies and other calls, once each."""
    return sum(1 for _ in every_op(program))


def every_op(
    program: Program,
    within: Callable[[Any], bool] = lambda closed: True,
    *,
    keep_checkpoints: bool = False,
) -> Iterator[Op]:
    """Operations, with those of loops' bodies and other calls, once each.

    Args:
      program: Their program.
      within: Which programs (closed jaxprs) that they hold are looked into.
      keep_checkpoints: Whether regions of `jax.checkpoint` are operations, too.
    """
    for op in program.ops:
        yield op
        for closed in filter(within, programs_in(op)):
            inside = flatten(closed, keep_checkpoints=keep_checkpoints)
            yield from every_op(inside, within, keep_checkpoints=keep_checkpoints)


def num_flops(op: Op) -> int:
    """Multiplications and additions, one each; loops count their bodies every time."""
    params, outputs = op.eqn.params, [out.aval for out in op.outputs]
    size = sum(math.prod(aval.shape) for aval in outputs)
    if op.kind == "dot_general":
        (contracted, _), _ = params["dimension_numbers"]
        shape = op.inputs[0].aval.shape
        return 2 * size * math.prod(shape[d] for d in contracted)
    if op.kind == "conv_general_dilated":
        kernel, spec = op.inputs[1].aval.shape, params["dimension_numbers"].rhs_spec
        return 2 * size * math.prod(kernel) // kernel[spec[0]]
    if op.kind in ("ragged_dot", "ragged_dot_general"):
        return 2 * size * op.inputs[0].aval.shape[-1]
    if op.kind.startswith(ATTENTION):
        shapes = [tuple(atom.aval.shape) for atom in op.inputs]
        return attention_flops(op.kind, params, shapes)
    if op.kind == "pallas_call":
        return _kernel_flops(op)
    if inner := [program_flops(flatten(closed)) for closed in programs_in(op)]:
        times = params.get("length", 1) if op.kind == "scan" else 1
        return times * (max(inner) if op.kind == "cond" else sum(inner))
    if op.kind in MOVES:
        return 0
    if op.kind.startswith(("reduce", "arg", "cum")):
        return sum(math.prod(atom.aval.shape) for atom in op.inputs)
    return size


def _kernel_flops(op: Op) -> int:
    """What its author says of a kernel; else its program's, for each piece of its grid.

    A loop whose iterations only the kernel knows counts once, so that is the least.
    """
    if estimate := op.eqn.params.get("cost_estimate"):
        return int(estimate.flops)
    grid = getattr(op.eqn.params.get("grid_mapping"), "grid", ())
    pieces = math.prod(size for size in grid if isinstance(size, int))
    return pieces * sum(program_flops(flatten(closed)) for closed in programs_in(op))


def num_batch_dims(op: Op) -> int:
    """How many dimensions of a `dot_general` are a batch; 0 for all else."""
    if op.kind != "dot_general":
        return 0
    (_, _), (lhs_batch, _) = op.eqn.params["dimension_numbers"]
    return len(lhs_batch)


def programs_in(op: Op) -> list[Any]:
    """The programs an operation holds."""
    return [
        as_closed(item)
        for value in op.eqn.params.values()
        for item in (value if isinstance(value, tuple | list) else [value])
        if hasattr(item, "eqns") or (hasattr(item, "jaxpr") and hasattr(item, "consts"))
    ]
