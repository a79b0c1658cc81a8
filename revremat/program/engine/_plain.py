"""Plain unrolled layers: JAX's own scan, unrolled, and JAX's own derivative of it."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax

from revremat._action import SAVE
from revremat.program.arrays import _avals
from revremat.program.engine._stack import Stack


def is_plain(stack: Stack) -> bool:
    """Whether all layers are unrolled and keep what plain autodiff keeps.

    Then nothing is left for an engine to do: `lax.scan(..., unroll=True)` is that, or
    with the number of layers that an iteration runs.
    """
    alike = not stack.unrolled and len(set(stack.actions)) == 1
    return alike and stack.actions[0](unroll=False) == SAVE != stack.actions[0]


def run_plain(
    stack: Stack, consts: Sequence[Any], init: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Run such a stack, as `run_stack` runs others.

    Compilers then have weights, residuals and gradients as where a user wrote it: no
    layer's are sliced out of a stack or written into one that is not fused away.
    """
    number, left_out = len(stack.actions), stack.length - len(stack.actions)
    first = left_out if stack.reverse else 0
    few = [lax.slice_in_dim(x, first, first + number) if left_out else x for x in xs]

    def body(carry: list[Any], x: list[Any]) -> tuple[list[Any], list[Any]]:
        outs = stack.body(*consts, *carry, *x)
        return outs[: stack.num_carry], outs[stack.num_carry :]

    unroll = stack.actions[0].unroll
    how = {"length": number, "reverse": stack.reverse, "unroll": unroll}
    carry, ys = lax.scan(body, list(init), few, **how)
    if left_out:
        ys = [_with_room(y, left_out, stack.reverse) for y in ys]
    return list(carry), list(ys)


def _with_room(y: Any, left_out: int, in_front: bool) -> Any:
    """Stacked results with room for those of layers that are left out."""
    whole = jax.typeof(y)
    room = _avals.room(whole.update(shape=(left_out, *whole.shape[1:])))
    return lax.concatenate([room, y] if in_front else [y, room], 0)
