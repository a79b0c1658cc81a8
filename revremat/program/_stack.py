"""The stack engine: one custom_vjp around a whole stack of layers.

Weights are indexed by layer inside the loops and never sliced into runs; every weight
has one gradient buffer, written in place. Whatever way a layer's residuals come back,
its gradients are computed by the same backward program.

A function with its own derivative per layer would keep every layer's output, because
each one's input is a residual of its own; one around the stack keeps what the plan
says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax import lax

from revremat._errors import UserError
from revremat._plan import Action
from revremat.program._avals import is_differentiable
from revremat.program._buffers import take
from revremat.program._choice import write_choice
from revremat.program._engine import Engine
from revremat.program._keep import Layer, name_values
from revremat.program._linearize import depends, linearize, pick
from revremat.program._ops import Program


@dataclass(frozen=True, eq=False)
class Stack:
    """A stack of equal layers and the action of each.

    Attributes:
      body: One layer: constants, carry and one layer's `xs` in; carry and `ys` out.
      num_consts: How many of its inputs are constants, shared by all layers.
      num_carry: How many are carried from layer to layer.
      length: How many layers.
      reverse: Whether the first layer to run is the last in the stacked arrays.
      actions: One for each layer, the first to run first.
      inverse: From what `body` takes, with the carry that comes out in place of the one
        that goes in, to the latter; where there is a way.
      name: What messages call it.
      in_mask: Which of the body's inputs are differentiated, as far as the whole
        program shows; None to see when it happens.
      held: Which of the body's inputs no action speaks of; by default all that are not
        carried.
      order: Places of the body's inputs in the order in which names count them.
      unrolled: Whether `xs` are `Each`, not stacked; the loops are written out then,
        and there are no `ys`.
      layers: The body's two passes, for each mask that was asked for.
      shortened: Whether there may be fewer actions than layers; the layers beyond them
        are left out. Not the same function: only for pricing a layer.
      at_once: Whether what goes to the host goes there when all layers are done, and
        comes back before the first of them is differentiated. Where a loop around the
        stack keeps it, compilers cannot fetch one layer of one turn.
    """

    body: Program
    num_consts: int
    num_carry: int
    length: int
    reverse: bool
    actions: tuple[Action, ...]
    inverse: Program | None = None
    name: str = "the stack"
    in_mask: tuple[bool, ...] | None = None
    held: tuple[bool, ...] | None = None
    order: tuple[int, ...] | None = None
    unrolled: bool = False
    shortened: bool = False
    at_once: bool = False
    layers: dict[tuple[bool, ...], Layer] = field(default_factory=dict, repr=False)

    def __post_init__(self):
        if len(self.actions) != self.length and not self.shortened:
            raise UserError(
                f"{self.name} has {self.length} layers and {len(self.actions)} "
                "actions; give one action for each layer."
            )
        for action in self.actions:
            if action.kind == "invert" and self.inverse is None:
                raise UserError(
                    f"{self.name}: INVERT needs the layer's inverse; give one with "
                    "`inverse=`, or choose another action."
                )
            if action.every != 1 and not action.can_group:
                raise UserError(
                    f"{self.name}: {action!r} keeps every {action.every}th layer's "
                    "input on the device and rebuilds the others from it; `every` goes "
                    "with SAVE and RECOMPUTE, without `offload` and `ahead`."
                )
            if action.chunks != 1:
                raise UserError(
                    f"{self.name} is a stack, which cannot be split in {action.chunks} "
                    "chunks; chunks are for `rr.block(..., split=...)`."
                )

    @property
    def label(self) -> str:
        """What people called it."""
        return self.name.removeprefix("rr.").removeprefix("unit ").strip("'")

    def layer(self, mask: tuple[bool, ...]) -> Layer:
        """The layer's two passes when the inputs in `mask` are differentiated."""
        if mask not in self.layers:
            passes = linearize(self.body, mask)
            inputs, n = passes.forward.inputs, self.num_consts
            held = (*inputs[:n], *inputs[n + self.num_carry :])
            if self.held is not None:
                held = pick(inputs, self.held)
            carried = range(n, n + self.num_carry)
            unit = f"a layer of {self.name}"
            self.layers[mask] = name_values(
                passes, held, unit, self.inverse, carried, self.order
            )
        return self.layers[mask]


def carried_mask(
    body: Program, consts: Sequence[bool], carry: Sequence[bool], xs: Sequence[bool]
) -> tuple[bool, ...]:
    """Which of a layer's inputs are differentiated, given which of the stack's are.

    A carry that starts as a constant is differentiated if any layer makes it depend on
    something that is.
    """
    carry = list(carry)
    while True:
        mask = (*consts, *carry, *xs)
        out = depends(body, mask)[: len(carry)]
        grown = [a or b for a, b in zip(carry, out, strict=True)]
        if grown == carry:
            return mask
        carry = grown


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
            write_choice(stack.label, stack.actions)

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
        engine = Engine(stack, stack.layer(mask))
        outputs, saved = engine.forward(consts, init, xs)
        static = _Static(mask, tuple(jax.tree.map(jax.typeof, xs)))
        return outputs, (engine.only_used(consts, xs), saved, static)

    def backward(residuals, cotangents):
        (consts, xs), saved, static = residuals
        engine = Engine(stack, stack.layer(static.mask))
        return engine.backward(consts, xs, saved, static.x_avals, *cotangents)

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


def widen(mask: tuple[bool, ...], known: tuple[bool, ...] | None) -> tuple[bool, ...]:
    """The mask a plan was made for, unless more than that is differentiated.

    Names that are made up count operations of the derivative, so they hold for one
    mask.
    """
    if known is None or any(on and not k for on, k in zip(mask, known, strict=True)):
        return mask
    return known
