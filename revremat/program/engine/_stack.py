"""A stack of equal layers, as data: what one computes, and an action for each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from revremat._action import Action, Facts, check_actions
from revremat.program.engine._keep import Layer, name_values
from revremat.program.ir._linearize import linearize
from revremat.program.ir._ops import Program
from revremat.program.ir._passes import depends, pick


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
      unrolled: Whether `xs` are `Each`, not stacked; the loops are unrolled then,
        and there are no `ys`.
      layers: The body's two passes, for each mask that was asked for.
      shortened: Whether there may be fewer actions than layers; the layers beyond them
        are left out. Not the same function: only to measure what a layer costs.
      at_once: Whether what goes to the host goes there when all layers are done, and
        is fetched before the first of them is differentiated. Where a loop around the
        stack keeps it, compilers cannot fetch one layer of one iteration.
      gradient_lag: How many layers later unrolled layers have to have the gradients of
        their weights, while devices add them up: 0 or 1; None for any time. With 1
        nothing waits for those of a stack's last layers.
      in_chunks: Whether the layers are chunks of one block, of which actions speak.
        What that makes of its weights alone, chunks have for free and without a name.
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
    gradient_lag: int | None = 0
    in_chunks: bool = False
    layers: dict[tuple[bool, ...], Layer] = field(default_factory=dict, repr=False)

    def __post_init__(self):
        check_actions(self.name, self.actions, self.facts, shortened=self.shortened)

    @property
    def facts(self) -> Facts:
        """What decides which actions its layers may take.

        Names, and what can be run twice, are known once it is differentiated. Where it
        stands is the business of who runs it there.
        """
        return Facts(
            num_layers=self.length,
            is_loop=not self.unrolled,
            is_stack=True,
            has_inverse=self.inverse is not None,
            splits=(),
            names=None,
            listed=(),
            unrepeatable="",
            in_branch=False,
            num_scans=0,
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


def widen(mask: tuple[bool, ...], known: tuple[bool, ...] | None) -> tuple[bool, ...]:
    """The mask a plan was made for, unless more than that is differentiated.

    Names that are made up count operations of the derivative, so they hold for one
    mask.
    """
    if known is None or any(on and not k for on, k in zip(mask, known, strict=True)):
        return mask
    return known
