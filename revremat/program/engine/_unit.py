"""One unit that is no loop, with its residuals coming back as an action says."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.custom_derivatives import SymbolicZero

from revremat._action import Action
from revremat.program.arrays._avals import instantiate, is_differentiable
from revremat.program.arrays._buffers import barrier
from revremat.program.engine import _layer
from revremat.program.engine._keep import Kept, Layer, name_values, resolve
from revremat.program.engine._stack import widen
from revremat.program.ir._linearize import linearize
from revremat.program.ir._ops import Program
from revremat.program.ir._passes import pick


@dataclass(frozen=True, eq=False)
class Unit:
    """A part of a program, and its action.

    Attributes:
      body: What it computes.
      in_mask: Which inputs are differentiated as far as the whole program shows.
      held: Which inputs are there in the backward pass anyway.
      action: How its residuals are restored.
      name: What messages call it.
      gradient_barrier: Whether all of its gradients are there before any of them is
        used. Else the compiler may put those of its weights off, and hold what they are
        made of, unless that came from the host.
      layers: The body's two passes, for each mask that was asked for.
    """

    body: Program
    in_mask: tuple[bool, ...] | None
    held: tuple[bool, ...]
    action: Action
    name: str
    gradient_barrier: bool = False
    layers: dict[tuple[bool, ...], Layer] = field(default_factory=dict, repr=False)

    def passes(self, mask: tuple[bool, ...]) -> tuple[Layer, Kept]:
        """The two passes, and what is kept between them."""
        if mask not in self.layers:
            passes = linearize(self.body, mask)
            held = pick(passes.forward.inputs, self.held)
            self.layers[mask] = name_values(passes, held, self.name)
        layer = self.layers[mask]
        # Nothing runs ahead of anything here.
        return layer, resolve(layer, replace(self.action, ahead=()), self.name)


def run_unit(unit: Unit, args: Sequence[Any]) -> list[Any]:
    """Evaluate a unit so that its backward pass follows its action."""

    @jax.custom_vjp
    def call(args):
        return unit.body(*args)

    def forward(primals):
        mask = tuple(
            p.perturbed and is_differentiable(jax.typeof(p.value)) for p in primals
        )
        mask = widen(mask, unit.in_mask)
        layer, kept = unit.passes(mask)
        args = [p.value for p in primals]
        outputs, saved = _layer.forward(layer, kept, args)
        outputs = _layer.wait_for(saved[1], outputs)
        used = {*layer.passes.residuals}.union(*(op.inputs for op in kept.late))
        pairs = zip(layer.passes.forward.inputs, args, unit.held, strict=True)
        held = [arg if on and v in used else None for v, arg, on in pairs]
        return outputs, (held, saved, _Static(mask))

    def backward(residuals, cotangents):
        held, saved, static = residuals
        layer, kept = unit.passes(static.mask)
        inputs = layer.passes.forward.inputs
        env = {v: a for v, a in zip(inputs, held, strict=True) if a is not None}
        wanted = pick(cotangents, layer.passes.out_mask)
        if all(isinstance(ct, SymbolicZero) for ct in wanted):
            return ([None] * len(inputs),)
        waiting = [instantiate(ct) for ct in wanted]
        fetched, tied = _layer.fetch_after(saved[1], waiting)
        env = _layer.recall(kept, env, (saved[0], fetched))
        tied = _layer.tie(env, kept.late, tied)
        pulled = _layer.pull_back(layer, kept, env, tied)
        # What was fetched for gradients put off would be held until then.
        if unit.gradient_barrier or kept.offloaded:
            pulled = barrier(pulled)
        gradients = iter(pulled)
        return ([next(gradients) if on else None for on in static.mask],)

    call.defvjp(forward, backward, symbolic_zeros=True)
    return list(call(list(args)))


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Static:
    mask: tuple[bool, ...]
