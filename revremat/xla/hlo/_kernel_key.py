"""A name for what a kernel does, whatever program it is found in."""

import hashlib
from typing import Any

from revremat.xla.hlo._hlo import Computation, Module

# Of an instruction: what it is called, where it comes from, what stands around it.
_OF_THE_PROGRAM = (
    "name",
    "id",
    "metadata",
    "operand_ids",
    "called_computation_ids",
    "control_predecessor_ids",
    "literal",
)


def kernel_key(i: Any, module: Module) -> str:
    """A hash of operation, shapes, layouts, and of all that is computed inside.

    Numbers are left out: the same kernel with another constant is as fast.

    Args:
      i: An instruction that runs by itself.
      module: Its module.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> root = list(module.instructions.values())[-1]
      >>> isinstance(xla.kernel_key(root, module), str)
      True
    """
    operands = [
        o.shape.SerializeToString(deterministic=True) for o in module.operands(i)
    ]
    parts = [_own(i), *operands]
    for computation in module.called(i):
        parts += _inside(computation, module)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return digest.hexdigest()[:20]


def _inside(computation: Computation, module: Module) -> list[bytes]:
    """Its instructions from the root on, operands by when they were first met."""
    numbers: dict[int, int] = {}
    parts: list[bytes] = []
    waiting = [computation.root]
    while waiting:
        i = waiting.pop()
        if i.id in numbers:
            continue
        numbers[i.id] = len(numbers)
        parts.append(_own(i))
        for called in module.called(i):
            parts += _inside(called, module)
        waiting += reversed(module.operands(i))
    order = sorted(numbers, key=numbers.__getitem__)
    edges = [[numbers[o] for o in module.instructions[k].operand_ids] for k in order]
    return [*parts, repr(edges).encode()]


def _own(i: Any) -> bytes:
    copy = type(i)()
    copy.CopyFrom(i)
    for field in _OF_THE_PROGRAM:
        copy.ClearField(field)
    return copy.SerializeToString(deterministic=True)
