"""Running a stack: one custom_vjp around a whole stack of layers.

Weights are indexed by layer inside the loops and never sliced into runs; every weight
has one gradient buffer, written in place. Whatever restores a layer's residuals,
its gradients are computed by the same backward program.

A function with its own derivative per layer would keep every layer's output, because
each one's input is a residual of its own; one around the stack keeps what the plan
says.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax

from revremat.program.arrays._avals import is_differentiable
from revremat.program.arrays._buffers import take
from revremat.program.engine._backward import backward as run_backward
from revremat.program.engine._engine import Engine
from revremat.program.engine._forward import forward as run_forward
from revremat.program.engine._forward import only_used
from revremat.program.engine._stack import Stack, carried_mask, widen
from revremat.program.ir._actions_mark import write_actions


def run_stack(
    stack: Stack, consts: Sequence[Any], init: Sequence[Any], xs: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """Run a stack so that its backward pass follows its actions.

    Args:
      stack: The layers and what to do with each one's residuals.
      consts: Arrays all layers share.
      init: What the first layer is given.
      xs: Arrays with one entry for each layer along their first axis, or `Each`.

    Returns:
      What the last layer gives, and the `ys` of all layers, stacked.
    """

    @jax.custom_vjp
    def call(consts, init, xs):
        if not stack.unrolled:
            write_actions(stack.label, stack.actions)

        def body(carry, x):
            outs = stack.body(*consts, *carry, *x)
            return outs[: stack.num_carry], outs[stack.num_carry :]

        if stack.unrolled:
            for t in range(stack.length):
                init, _ = body(init, take(xs, t))
            return init, []
        return lax.scan(body, init, xs, length=stack.length, reverse=stack.reverse)

    def forward(consts, init, xs):
        (consts, c_mask), (init, i_mask), (xs, x_mask) = map(_split, (consts, init, xs))
        mask = carried_mask(stack.body, c_mask, i_mask, x_mask)
        mask = widen(mask, stack.in_mask)
        engine = Engine.of(stack, mask)
        outputs, saved = run_forward(engine, consts, init, xs)
        static = _Static(mask, tuple(jax.tree.map(jax.typeof, xs)))
        return outputs, (only_used(engine, consts, xs), saved, static)

    def backward(residuals, cotangents):
        (consts, xs), saved, static = residuals
        engine = Engine.of(stack, static.mask)
        return run_backward(engine, consts, xs, saved, static.x_avals, *cotangents)

    call.defvjp(forward, backward, symbolic_zeros=True)
    carry, ys = call(list(consts), list(init), list(xs))
    return list(carry), list(ys)


def _split(primals: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """The values that a forward rule is given, and whether each is differentiated."""
    values, mask = [], []
    for primal in primals:
        leaves, treedef = jax.tree.flatten(
            primal, is_leaf=lambda p: hasattr(p, "value")
        )
        values.append(treedef.unflatten([leaf.value for leaf in leaves]))
        perturbed = any(leaf.perturbed for leaf in leaves)
        mask.append(perturbed and is_differentiable(jax.typeof(leaves[0].value)))
    return values, mask


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    mask: tuple[bool, ...]
    x_avals: tuple[Any, ...]
