"""Sums over the batch: made once in the forward pass and used again to invert.

Batch norm's mean and variance are such sums. Where the batch lies on several devices
each costs a collective, so the backward pass takes over the forward pass's; their
gradients are those of sums all the same. In a map that is replayed it holds for any sum
over the first axis, of whatever module; maps with running statistics are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from revremat import _compat
from revremat._primitives import CALLS
from revremat.program.ir._ops import Op, as_closed, flatten, read, run

_MUCH_SMALLER = 8


@partial(jax.tree_util.register_dataclass, data_fields=["rest", "sums"], meta_fields=[])
@dataclass(frozen=True)
class Replayed:
    """What a map has beside its parameters, and the sums of its forward pass.

    Attributes:
      rest: Its own: running statistics, RNG counts.
      sums: In the order they are made; None before the forward pass.
    """

    rest: Any
    sums: Any = None


def replayed(f: Callable[..., Any]) -> Callable[..., Any]:
    """A map that gives its sums over the batch, or takes them.

    Args:
      f: `f(params, x, rest) -> (value, rest)`.

    Returns:
      The same with `Replayed` for `rest`, given and returned.
    """

    def call(params: Any, x: Any, replay: Replayed) -> tuple[Any, Replayed]:
        args = (params, x, replay.rest)
        closed, shapes = jax.make_jaxpr(f, return_shape=True)(*args)
        batch = jnp.shape(jax.tree.leaves(x)[0])[:1]
        # Other calls stay as they are, whoever may look for them.
        program = flatten(
            closed,
            keep_names=True,
            keep_checkpoints=True,
            keep_blocks=True,
            keep=lambda op: not _sums_inside(op.eqn, batch),
        )
        made: list[Any] = []
        given = None if replay.sums is None else iter(replay.sums)

        def share(op: Op, values: list[Any]) -> list[Any] | None:
            if not _is_batch_sum(op.eqn, batch):
                return None
            if given is None:
                (total,) = _compat.bind(op.eqn, values, op.scope)
            else:
                total = _known_sum(op)(next(given), *values)
            made.append(total)
            return [total]

        env = dict(zip(program.inputs, jax.tree.leaves(args), strict=True))
        run(program.ops, env, share)
        outs = [read(env, out) for out in program.outputs]
        value, rest = jax.tree.structure(shapes).unflatten(outs)
        return value, Replayed(rest, made)

    return call


def recall(rest: Any, aux: Any) -> Any:
    """`rest` with the sums that `aux`, of the forward pass, has."""
    is_one = lambda leaf: isinstance(leaf, Replayed)
    if not any(map(is_one, jax.tree.leaves(rest, is_leaf=is_one))):
        return rest
    take = lambda own, made: Replayed(own.rest, made.sums) if is_one(own) else own
    return jax.tree.map(take, rest, aux, is_leaf=is_one)


def _is_batch_sum(eqn: Any, batch: tuple[int, ...]) -> bool:
    if eqn.primitive.name != "reduce_sum" or 0 not in eqn.params["axes"]:
        return False
    before, after = eqn.invars[0].aval, eqn.outvars[0].aval
    is_small = _MUCH_SMALLER * after.size <= before.size
    return is_small and before.shape[:1] == batch


def _sums_inside(eqn: Any, batch: tuple[int, ...]) -> bool:
    closed = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
    if eqn.primitive.name not in CALLS or closed is None:
        return False
    inner = as_closed(closed).jaxpr.eqns
    return any(_is_batch_sum(e, batch) or _sums_inside(e, batch) for e in inner)


def _known_sum(op: Op) -> Callable[[Any, Any], Any]:
    """A sum whose value is known, so that nothing is added up but its gradient."""

    @jax.custom_jvp
    def known(total: Any, x: Any) -> Any:
        del x
        return total

    @known.defjvp
    def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
        (change,) = _compat.bind(op.eqn, [tangents[1]], op.scope)
        return primals[0], change

    return known
