"""Blocks that can be computed in chunks, one after the other.

Like an inverse, a way to split is written into the program as dead code: the block's
function on one chunk of its arguments, for every number of chunks that divides the
axis.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from revremat._action import Action
from revremat._errors import UserError
from revremat.program.arrays._avals import zeros
from revremat.program.engine._keep import INPUT
from revremat.program.engine._run_stack import run_stack
from revremat.program.engine._stack import Stack
from revremat.program.ir._ops import (
    CHUNK_PREFIX,
    Atom,
    Constant,
    Op,
    Program,
    Value,
    as_closed,
    flatten,
    needed,
)

_INPUTS = re.compile(rf"{INPUT}(_\d+)?_*")

MOST_CHUNKS = 256


def write_chunks(
    f: Callable[..., Any], name: str, split: Sequence[int | None], args: Sequence[Any]
) -> None:
    """Call the function on one chunk of its arguments, for a plan to find."""
    if len(split) != len(args):
        raise UserError(
            f"rr.block: {name!r} is called with {len(args)} arguments and `split` has "
            f"{len(split)} entries; give an axis or None for each argument."
        )
    axes = [
        axis
        for axis, arg in zip(split, args, strict=True)
        for _ in jax.tree.leaves(arg)
    ]
    leaves, treedef = jax.tree.flatten(tuple(args))
    sizes = {
        jnp.shape(leaf)[axis]
        for leaf, axis in zip(leaves, axes, strict=True)
        if axis is not None and -jnp.ndim(leaf) <= axis < jnp.ndim(leaf)
    }
    if len(sizes) != 1:
        raise UserError(
            f"rr.block: {name!r} cannot be split along axes {tuple(split)}, whose "
            f"sizes are {sorted(sizes)}; every axis must exist and have the same size."
        )
    (size,) = sizes
    stopped = [jax.lax.stop_gradient(leaf) for leaf in leaves]
    for n in range(2, min(size, MOST_CHUNKS) + 1):
        if size % n or (n & (n - 1) and n != size):
            continue
        chunk = [
            leaf
            if axis is None
            else jax.lax.slice_in_dim(leaf, 0, size // n, axis=axis)
            for leaf, axis in zip(stopped, axes, strict=True)
        ]

        def on_chunk(*args: Any) -> Any:
            return f(*args)

        on_chunk.__name__ = on_chunk.__qualname__ = f"{CHUNK_PREFIX}{n}"
        jax.jit(on_chunk)(*treedef.unflatten(chunk))


@dataclass(frozen=True, eq=False)
class Chunked:
    """One way to split a block.

    Attributes:
      body: The block on one chunk; its outputs add up to the block's.
      inputs: For each of its inputs, which of the block's it is a chunk of, or is; or
        the array that it always is.
      axes: Along which axis, None for one that is not split.
    """

    body: Program
    inputs: tuple[int | Constant, ...]
    axes: tuple[int | None, ...]

    def after(self, number: int) -> "Chunked":
        """The same for a block with so many more inputs before its own."""
        inputs = (k if isinstance(k, Constant) else k + number for k in self.inputs)
        return replace(self, inputs=tuple(inputs))


def block_chunks(op: Op) -> dict[int, Chunked]:
    """The ways to split a block, by number of chunks."""
    if not op.is_block:
        return {}
    inner = flatten(as_closed(op.eqn.params["jaxpr"]), keep_blocks=True)
    position = {value: k for k, value in enumerate(inner.inputs)}
    found = {}
    for call in inner.ops:
        if not call.called.startswith(CHUNK_PREFIX):
            continue
        number = int(call.called.removeprefix(CHUNK_PREFIX))
        sources = [_source(inner, atom, position) for atom in call.inputs]
        body = flatten(as_closed(call.eqn.params["jaxpr"]), keep_names=True)
        way = _way(inner, body, sources, number)
        if way is not None:
            found[number] = way
    return found


def _way(
    inner: Program, body: Program, sources: Sequence[int | Constant | None], number: int
) -> Chunked | None:
    """A way to split a block; None where a transformation has made it none.

    `vmap` gives arrays more axes, and `jvp` a block more outputs, so axes are those
    along which a chunk is shorter than what it is cut from.
    """
    given = [out.aval for out in inner.outputs]
    if [(a.shape, a.dtype) for a in given] != [
        (out.aval.shape, out.aval.dtype) for out in body.outputs
    ]:
        return None
    known: list[int | Constant] = []
    axes: list[int | None] = []
    for source, chunk in zip(sources, body.inputs, strict=True):
        if source is None:
            return None
        known.append(source)
        whole = (
            source.aval if isinstance(source, Constant) else inner.inputs[source].aval
        )
        pairs = list(zip(whole.shape, chunk.aval.shape, strict=False))
        cut = [k for k, (long, short) in enumerate(pairs) if long != short]
        if len(whole.shape) != len(chunk.aval.shape) or len(cut) > 1:
            return None
        if cut and pairs[cut[0]][0] != number * pairs[cut[0]][1]:
            return None
        axes.append(cut[0] if cut else None)
    if all(axis is None for axis in axes):
        return None
    return Chunked(body, tuple(known), tuple(axes))


def _source(
    inner: Program, atom: Atom, position: dict[Value, int]
) -> int | Constant | None:
    """The one input of the block that a value is made from; an array is itself."""
    if isinstance(atom, Constant):
        return atom
    _, used = needed(inner.ops, [atom])
    inputs = [position[v] for v in used if v in position]
    return inputs[0] if len(inputs) == 1 else None


def run_chunks(
    way: Chunked, number: int, action: Action, name: str, args: Sequence[Any]
) -> list[Any]:
    """Compute a block in chunks, one after the other; its outputs are their sums."""
    args = [k.value if isinstance(k, Constant) else args[k] for k in way.inputs]
    whole = [k for k, axis in enumerate(way.axes) if axis is None]
    parts = [(k, axis) for k, axis in enumerate(way.axes) if axis is not None]
    count = len(way.body.outputs)

    def body(consts: list[Any], sums: list[Any], xs: list[Any]) -> list[Any]:
        given = dict(zip(whole, consts, strict=True))
        given.update(zip((k for k, _ in parts), xs, strict=True))
        outs = way.body(*(given[k] for k in range(len(args))))
        return [total + out for total, out in zip(sums, outs, strict=True)]

    stacked = [_in_chunks(args[k], number, axis) for k, axis in parts]
    consts = [args[k] for k in whole]
    sums = [zeros(out.aval) for out in way.body.outputs]
    slices = [jax.eval_shape(lambda x: x[0], x) for x in stacked]
    avals = jax.tree.map(jax.typeof, (consts, sums))
    program = flatten(jax.make_jaxpr(body)(*avals, slices), keep_names=True)
    stack = Stack(
        body=program,
        num_consts=len(consts),
        num_carry=count,
        length=number,
        reverse=False,
        actions=(_without_input(action),) * number,
        name=name,
        in_chunks=True,
    )
    return run_stack(stack, consts, sums, stacked)[0]


def _in_chunks(x: Any, number: int, axis: int) -> Any:
    shape = (*x.shape[:axis], number, x.shape[axis] // number, *x.shape[axis + 1 :])
    return jnp.moveaxis(x.reshape(shape), axis, 0)


def _without_input(action: Action) -> Action:
    """Chunks are handed out from what is there anyway: there is no input to keep."""
    own = lambda names: tuple(n for n in names if not _INPUTS.fullmatch(n))
    return Action(action.kind, own(action.save), own(action.offload))
