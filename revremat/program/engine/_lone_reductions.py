"""Reductions that stay kernels by themselves, so that others can write in place.

Compilers for GPUs compute `exp(x - max(x))` in one kernel with the maximum. Such a
kernel cannot write its result into a stack of all layers, and a second one copies it
there. With the maximum in a kernel by itself, the result is computed in the stack.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from jax import lax

from revremat._primitives import REDUCTIONS, is_intensive
from revremat.program.arrays._buffers import barrier
from revremat.program.ir._ops import Atom, Op, Value


def lone_reductions(ops: Sequence[Op], saved: Iterable[Value]) -> frozenset[Value]:
    """Results of reductions from which saved values of more entries follow elementwise.

    Args:
      ops: A layer's forward pass.
      saved: What it keeps.
    """
    made = {value: op for op in ops for value in op.outputs}
    kept = frozenset(saved)
    found: set[Value] = set()
    for value in kept:
        if value in made and not is_intensive(made[value].kind):
            found |= _reductions_of(value, made, kept)
    return frozenset(found)


def in_own_kernel(x: Any) -> Any:
    """The same array, which no kernel for GPUs makes beside what follows from it."""
    return lax.platform_dependent(x, cuda=barrier, rocm=barrier, default=lambda x: x)


def _reductions_of(
    value: Value, made: dict[Value, Op], kept: Collection[Value]
) -> set[Value]:
    """Those that one kernel would compute together with the value."""
    found: set[Value] = set()
    waiting: list[Atom] = list(made[value].inputs)
    seen: set[Value] = set()
    while waiting:
        atom = waiting.pop()
        if not isinstance(atom, Value) or atom in seen or atom not in made:
            continue
        seen.add(atom)
        kind = made[atom].kind
        if kind.startswith(REDUCTIONS) and kind != "reduce_precision":
            if atom.aval.size < value.aval.size:
                found.add(atom)
        elif not is_intensive(kind) and atom not in kept:
            waiting += made[atom].inputs
    return found
