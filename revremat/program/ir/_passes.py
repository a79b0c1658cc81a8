"""The two passes of programs by JAX's own differentiation, every value in sight.

`jax.vjp` is traced twice: once to see what the forward pass computes and which of its
values the backward pass takes (the *residuals*), once to see the backward pass itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
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

Mask = tuple[bool, ...]


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
    in_mask: Mask
    out_mask: Mask

    @staticmethod
    def of(
        forward: Program, num_outputs: int, backward: Program, masks: tuple[Mask, Mask]
    ) -> "Linearized":
        """The passes without what neither an output nor a cotangent needs.

        Args:
          forward: Gives the layer's outputs, then all that the backward pass may take.
          num_outputs: The layer's own.
          backward: Takes those values, then cotangents.
          masks: Which inputs are differentiated, and which outputs depend on them.
        """
        forward, backward = deduplicate(forward), deduplicate(backward)
        ops, used = needed(backward.ops, backward.outputs, keep_effects=True)
        given = forward.outputs[num_outputs:]
        pairs = zip(backward.inputs, given, strict=False)
        taken = [(v, r) for v, r in pairs if v in used]
        kept = tuple(residual for _, residual in taken)
        outputs = forward.outputs[:num_outputs]
        live, _ = needed(forward.ops, (*outputs, *kept), keep_effects=True)
        alive = {*forward.inputs}.union(*(op.outputs for op in live))
        names = tuple((name, v) for name, v in forward.names if v in alive)
        inputs = (*(v for v, _ in taken), *backward.inputs[len(given) :])
        return Linearized(
            Program(forward.inputs, live, outputs, names),
            kept,
            Program(inputs, ops, backward.outputs),
            *masks,
        )


@dataclass(frozen=True, eq=False)
class Differentiated:
    """A program that is to be differentiated.

    Attributes:
      program: The program, flat.
      in_mask: Its inputs that are; their types have cotangents.
      out_mask: Its outputs that are.
    """

    program: Program
    in_mask: Mask
    out_mask: Mask


def has_derivative(op: Op) -> bool:
    """Whether anything can be differentiated through an operation, if not as zero."""
    if op.kind == "sign":
        return jnp.issubdtype(op.outputs[0].aval.dtype, jnp.complexfloating)
    return op.kind not in ZERO_DERIVATIVE


def depends(program: Program, in_mask: Sequence[bool]) -> Mask:
    """Which outputs may have a derivative with respect to the inputs in `in_mask`."""
    live = dependent(program, in_mask)
    return tuple(out in live for out in program.outputs)


def dependent(program: Program, in_mask: Sequence[bool]) -> set[Value]:
    """Which values may have one."""
    live = {v for v, on in zip(program.inputs, in_mask, strict=True) if on}
    for op in program.ops:
        if has_derivative(op) and not live.isdisjoint(values_in(op.inputs)):
            live.update(out for out in op.outputs if is_differentiable(out.aval))
    return live


def values_in(atoms: Iterable[Atom]) -> list[Value]:
    """Those of them that are no constants."""
    return [atom for atom in atoms if isinstance(atom, Value)]


def pick(items: Iterable[Any], mask: Iterable[bool]) -> list[Any]:
    """Those items at which a mask is on."""
    return [item for item, on in zip(items, mask, strict=True) if on]


def traced(asked: Sequence[Differentiated]) -> list[Linearized]:
    """The passes of some programs, all traced together.

    Args:
      asked: One program, or several without side effects.
    """
    structures: list[Any] = []
    counts: list[int] = []

    def forward(each: Any) -> Any:
        structures.clear()
        counts.clear()
        found = []
        for one, inputs in zip(asked, each, strict=True):
            outs, pullback = _pulled_back(one, inputs)
            leaves, treedef = jax.tree.flatten(pullback)
            structures.append(treedef)
            counts.append(len(leaves))
            found.append((outs, leaves))
        return found

    def backward(leaves: Any, cotangents: Any) -> Any:
        return [
            jax.tree.unflatten(structure, own)(cts)
            for structure, own, cts in zip(structures, leaves, cotangents, strict=True)
        ]

    closed = jax.make_jaxpr(forward)(
        [[v.aval for v in a.program.inputs] for a in asked]
    )
    avals = list(closed.out_avals)
    leaf_avals, ct_avals = [], []
    for one, count in zip(asked, counts, strict=True):
        outs = _first(avals, len(one.program.outputs))
        ct_avals.append([a.to_ct_aval() for a in pick(outs, one.out_mask)])
        leaf_avals.append(_first(avals, count))
    closed_backward = jax.make_jaxpr(backward)(leaf_avals, ct_avals)
    forwards = _apart(
        flatten(closed),
        [len(a.program.inputs) for a in asked],
        [len(a.program.outputs) + n for a, n in zip(asked, counts, strict=True)],
    )
    pulled = flatten(closed_backward)
    # All residuals come first, then all cotangents.
    starts = accumulate([*counts, *map(len, ct_avals)], initial=0)
    parts = [pulled.inputs[a:b] for a, b in pairwise(starts)]
    own = zip(parts[: len(asked)], parts[len(asked) :], strict=True)
    ordered = replace(pulled, inputs=tuple(v for two in own for p in two for v in p))
    backwards = _apart(
        ordered,
        [n + len(cts) for n, cts in zip(counts, ct_avals, strict=True)],
        [sum(a.in_mask) for a in asked],
    )
    return [
        Linearized.of(f, len(a.program.outputs), b, (a.in_mask, a.out_mask))
        for a, f, b in zip(asked, forwards, backwards, strict=True)
    ]


def _pulled_back(one: Differentiated, inputs: Sequence[Any]) -> tuple[Any, Any]:
    """A program's outputs, and the function from their cotangents to its inputs'."""

    def differentiated(*chosen: Any) -> Any:
        rest = iter(chosen)
        pairs = zip(inputs, one.in_mask, strict=True)
        outs = one.program(*(next(rest) if on else x for x, on in pairs))
        return pick(outs, one.out_mask), outs

    chosen = pick(inputs, one.in_mask)
    _, pullback, outs = jax.vjp(differentiated, *chosen, has_aux=True)
    return outs, pullback


def _first(items: list[Any], number: int) -> list[Any]:
    """So many items, which are then gone."""
    found = items[:number]
    del items[:number]
    return found


def _apart(
    program: Program, num_inputs: Sequence[int], num_outputs: Sequence[int]
) -> list[Program]:
    """Programs that were traced as one.

    Args:
      program: All of them.
      num_inputs: Of each.
      num_outputs: Of each.
    """
    if len(num_inputs) == 1:  # with its side effects
        return [program]
    maker = {out: k for k, op in enumerate(program.ops) for out in op.outputs}
    inputs, outputs = list(program.inputs), list(program.outputs)
    owner: dict[Value, int] = {}
    found = []
    for number, (n, m) in enumerate(zip(num_inputs, num_outputs, strict=True)):
        own, given = _first(inputs, n), _first(outputs, m)
        owner.update(dict.fromkeys(own, number))
        places: set[int] = set()
        waiting = values_in(given)
        while waiting:
            at = maker.get(waiting.pop())
            if at is not None and at not in places:
                places.add(at)
                waiting += values_in(program.ops[at].inputs)
        ops = tuple(program.ops[at] for at in sorted(places))
        owner.update((out, number) for op in ops for out in op.outputs)
        found.append(Program(tuple(own), ops, tuple(given)))
    names: list[list[tuple[str, Atom]]] = [[] for _ in found]
    for name, atom in program.names:
        if isinstance(atom, Value) and atom in owner:
            names[owner[atom]].append((name, atom))
    return [replace(p, names=tuple(own)) for p, own in zip(found, names, strict=True)]
