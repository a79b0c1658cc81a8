"""A layer's forward and backward passes as two programs, with every value in sight.

`jax.vjp` is traced twice: once to see what the forward pass computes and which of its
values the backward pass takes (the *residuals*), once to see the backward pass itself.
Any set of the forward program's values may then be kept and the residuals recomputed
from them; what plain autodiff keeps is only one choice among many.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from revremat._primitives import ZERO_DERIVATIVE
from revremat.program.arrays._avals import is_differentiable
from revremat.program.ir._ops import (
    Atom,
    Op,
    Program,
    Value,
    deduplicate,
    flatten,
    needed,
)


@dataclass(frozen=True, eq=False)
class Linearized:
    """The two passes of one layer.

    Attributes:
      forward: The layer with the values its derivative needs; `inputs` and `outputs`
        are the layer's own.
      residuals: The values of `forward` that `backward` takes first.
      backward: From the residuals, then one cotangent for each output in `out_mask`, to
        one cotangent for each input in `in_mask`.
      in_mask: Which inputs are differentiated.
      out_mask: Which outputs depend on those differentiably.
    """

    forward: Program
    residuals: tuple[Atom, ...]
    backward: Program
    in_mask: tuple[bool, ...]
    out_mask: tuple[bool, ...]


def has_derivative(op: Op) -> bool:
    """Whether anything can be differentiated through an operation, if not as zero."""
    if op.kind == "sign":
        return jnp.issubdtype(op.outputs[0].aval.dtype, jnp.complexfloating)
    return op.kind not in ZERO_DERIVATIVE


def depends(program: Program, in_mask: Sequence[bool]) -> tuple[bool, ...]:
    """Which outputs may have a derivative with respect to the inputs in `in_mask`."""
    live = {v for v, on in zip(program.inputs, in_mask, strict=True) if on}
    for op in program.ops:
        if has_derivative(op) and not live.isdisjoint(_values(op.inputs)):
            live.update(out for out in op.outputs if is_differentiable(out.aval))
    return tuple(out in live for out in program.outputs)


def _values(atoms: Sequence[Atom]) -> list[Value]:
    return [atom for atom in atoms if isinstance(atom, Value)]


def linearize(layer: Program, in_mask: Sequence[bool]) -> Linearized:
    """Split a layer's derivative into its two passes.

    Args:
      layer: The layer, flat.
      in_mask: Which inputs are differentiated; their types must have cotangents.
    """
    in_mask = tuple(in_mask)
    out_mask = depends(layer, in_mask)
    avals = [v.aval for v in layer.inputs]
    structure: list[Any] = []

    def forward(*inputs):
        fixed = list(inputs)

        def differentiated(*chosen):
            chosen_iter = iter(chosen)
            full = [
                next(chosen_iter) if on else fixed[k] for k, on in enumerate(in_mask)
            ]
            outs = layer(*full)
            return pick(outs, out_mask), outs

        chosen = pick(fixed, in_mask)
        _, pullback, outs = jax.vjp(differentiated, *chosen, has_aux=True)
        leaves, treedef = jax.tree.flatten(pullback)
        structure[:] = [treedef]
        return outs, leaves

    closed = jax.make_jaxpr(forward)(*avals)
    program = deduplicate(flatten(closed))
    count = len(layer.outputs)

    def backward(leaves, cotangents):
        return jax.tree.unflatten(structure[0], leaves)(cotangents)

    cotangents = [
        aval.to_ct_aval() for aval in pick(closed.out_avals[:count], out_mask)
    ]
    closed_backward = jax.make_jaxpr(backward)(closed.out_avals[count:], cotangents)
    pulled = deduplicate(flatten(closed_backward))
    ops, used = needed(pulled.ops, pulled.outputs, keep_effects=True)
    num_residuals = len(closed.out_avals) - count
    arguments = zip(pulled.inputs, program.outputs[count:], strict=False)
    taken = [(v, r) for v, r in arguments if v in used]
    kept = tuple(residual for _, residual in taken)
    outputs = program.outputs[:count]
    live, _ = needed(program.ops, (*outputs, *kept), keep_effects=True)
    alive = {*program.inputs}.union(*(op.outputs for op in live))
    names = tuple((name, v) for name, v in program.names if v in alive)
    return Linearized(
        forward=Program(program.inputs, live, outputs, names),
        residuals=kept,
        backward=Program(
            (*(v for v, _ in taken), *pulled.inputs[num_residuals:]),
            ops,
            pulled.outputs,
        ),
        in_mask=in_mask,
        out_mask=out_mask,
    )


def pick(items: Iterable[Any], mask: Iterable[bool]) -> list[Any]:
    return [item for item, on in zip(items, mask, strict=True) if on]
