"""A map that compilers evaluate in the same way wherever they meet it.

A compiler fuses what is computed with whatever else reads it, and rounds accordingly.
In a backward pass a map's derivative reads much of what the map computes on the way. So
a map whose value has to be the same bit for bit stands between barriers: all that it
reads and all that it returns crosses one, and nothing outside reads what is between.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from revremat import _compat
from revremat.program.arrays._buffers import barrier
from revremat.program.ir._ops import Constant, Op, Program, flatten, read, run

SCOPE = "isolated"
"""Under which compiled programs name what is between the barriers."""


def isolated(f: Callable[..., Any], has_aux: bool) -> Callable[..., Any]:
    """The same map between barriers.

    Args:
      f: `f(params, x, ...) -> value`, or `(value, aux)`.
      has_aux: Which of them.
    """

    def call(*args: Any) -> Any:
        closed, shape = jax.make_jaxpr(f, return_shape=True)(*args)
        program = flatten(
            closed, keep_names=True, keep_checkpoints=True, keep_blocks=True
        )
        zero = jnp.zeros((), jnp.int32)
        known = {id(a.value): a.value for a in _constants(program)}
        leaves, known, zero = barrier((jax.tree.leaves(args), known, zero))
        with jax.named_scope(SCOPE):
            outs = _evaluate(program, leaves, known, zero)
        out = barrier(jax.tree.unflatten(jax.tree.structure(shape), outs))
        return (_with_all(*out), out[1]) if has_aux else out

    return call


def _constants(program: Program) -> list[Constant]:
    """Arrays that the map closes over."""
    atoms = [*(a for op in program.ops for a in op.inputs), *program.outputs]
    return [a for a in atoms if isinstance(a, Constant) and a.aval.shape]


def _evaluate(
    program: Program, args: list[Any], known: dict[int, Any], zero: jax.Array
) -> list[Any]:
    """The program, of which nothing is made of constants alone.

    That would be made once for every evaluation, and then perhaps be stored, where it
    would be fused if there was but one.
    """
    look_up = lambda a, value: known.get(id(a.value), value) if _is_known(a) else value

    def apart(op: Op, values: list[Any]) -> list[Any] | None:
        if op.kind == "iota":
            (out,) = _compat.bind(op.eqn, values, op.scope)
            return [out + zero.astype(out.dtype)]
        if any(map(_is_known, op.inputs)):
            values = list(map(look_up, op.inputs, values))
            return _compat.bind(op.eqn, values, op.scope)
        return None

    env = dict(zip(program.inputs, args, strict=True))
    run(program.ops, env, apart)
    return [look_up(out, read(env, out)) for out in program.outputs]


def _is_known(atom: Any) -> bool:
    return isinstance(atom, Constant) and bool(atom.aval.shape)


def _with_all(value: Any, aux: Any) -> Any:
    """The same value, for which all of aux is made even if nobody else reads it.

    Only the forward pass reads aux. Compilers drop unread results, barriers or not,
    and may then fuse what is left in another way.
    """
    is_number = lambda leaf: not jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    leaves = [leaf for leaf in jax.tree.leaves(aux) if is_number(leaf) and leaf.size]
    if not leaves:
        return value
    never = jnp.zeros((), bool)
    for leaf in map(lax.stop_gradient, leaves):
        never |= leaf.min() > leaf.max()  # not found out by any compiler
    return jax.tree.map(lambda v: jnp.where(never, jnp.zeros_like(v), v), value)
