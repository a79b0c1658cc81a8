"""Which operations a compiler runs as one kernel, in one sentence of a model.

Elementwise operations and moves are computed where they are used; products, loops and
opaque kernels read their operands from memory and write their results there; a
reduction computes its operands on the fly and writes its small result. Nothing is known
of kernel sizes: this is for explaining and for pruning, the compiler decides.
"""

from revremat._primitives import MOVES, REDUCTIONS, is_intensive
from revremat.program.ir._ops import Atom, Op, Value
from revremat.program.ir._passes import Linearized


def takes_fused(op: Op) -> bool:
    """Whether it computes its operands on the fly, where their makers allow that."""
    return not is_intensive(op.kind) or op.kind.startswith(REDUCTIONS)


def read_whole(passes: Linearized) -> tuple[Atom, ...]:
    """The residuals that the backward pass reads from memory, however they came back.

    Moves are looked through: a transposed operand is read by the product.
    """
    read: set[Value] = set()
    for op in reversed(passes.backward.ops):
        moved = op.kind in MOVES and any(out in read for out in op.outputs)
        if moved or not takes_fused(op):
            read.update(a for a in op.inputs if isinstance(a, Value))
    pairs = zip(passes.residuals, passes.backward.inputs, strict=False)
    return tuple(residual for residual, taken in pairs if taken in read)
