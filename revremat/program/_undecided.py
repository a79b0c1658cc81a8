"""Loops with a derivative of their own: what they keep, and what to change.

Solvers of differential equations, and loops with bounds or checkpoints of their own,
hide their iterations in a function whose derivative its author wrote. A plan can run
all of it again, and decides about nothing within it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax

from revremat import _compat
from revremat._format import format_bytes
from revremat._sources import CALLED_AT, source_line
from revremat.program.arrays._avals import is_differentiable
from revremat.program.ir._actions_mark import read_actions
from revremat.program.ir._costs import every_op
from revremat.program.ir._ops import Op, as_closed, flatten
from revremat.program.ir._passes import pick
from revremat.program.units._sites import Survey

_LOOPS = ("scan", "while")


def undecided(found: Survey, bytes_of: Callable[[Any], int]) -> tuple[str, ...]:
    """A sentence on each loop of a program that has a derivative of its own.

    Args:
      found: The program.
      bytes_of: From an array's shape and dtype to its size per device.
    """
    sentences = []
    for op, mask in _own_derivatives(found):
        closed = as_closed(op.eqn.params["call_jaxpr"])
        inside = (one.kind for one in every_op(flatten(closed)))
        if read_actions(closed) is None and any(kind in _LOOPS for kind in inside):
            kept = sum(map(bytes_of, _kept(op, mask)))
            does = f"keeps {format_bytes(kept)}" if kept else "runs again backward"
            place = source_line(op).rpartition(CALLED_AT)[2] or "the loss"
            sentences.append(
                f"{place}: a loop with a jax.custom_vjp of its own {does}, and no plan "
                "decides about its iterations; write a jax.lax.scan without that, or "
                "have its forward pass keep less"
            )
    return tuple(dict.fromkeys(sentences))


def _own_derivatives(found: Survey) -> Iterator[tuple[Op, tuple[bool, ...]]]:
    yield from found.own_derivatives
    for op, places in found.inner.items():
        if op.kind != "shard_map":  # where arrays have other shapes and axes
            for _, _, inside in places:
                yield from _own_derivatives(inside)


def _kept(op: Op, mask: tuple[bool, ...]) -> list[Any]:
    """What is handed from the forward to the backward pass, but for arguments."""

    def residuals(*args: Any) -> list[Any]:
        fixed = list(args)

        def f(*chosen: Any) -> list[Any]:
            rest = iter(chosen)
            values = [
                next(rest) if on else a for a, on in zip(fixed, mask, strict=True)
            ]
            outs = _compat.bind(op.eqn, values, op.scope)
            return [out for out in outs if is_differentiable(jax.typeof(out))]

        return jax.tree.leaves(jax.vjp(f, *pick(args, mask))[1])

    closed = jax.make_jaxpr(residuals)(*(atom.aval for atom in op.inputs))
    program = flatten(closed)
    made = {out for one in program.ops for out in one.outputs}
    return [out.aval for out in dict.fromkeys(program.outputs) if out in made]
