"""Room: an array that is yet to be written, which costs nothing where it can."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from revremat import _compat


def room(aval: Any) -> Any:
    """An array of this type, where it is to lie; all of it is to be written.

    `lax.scan` fills its stacks with zeros first. On GPUs and TPUs this does not, where
    a device has the program to itself or a part of its own by `jax.shard_map`. Where
    the compiler splits arrays over devices it would make all of it on each of them.
    """
    return _room.bind(aval=aval)


def _made(ctx: Any, *, aval: Any) -> list[Any]:
    is_plain = not jnp.issubdtype(aval.dtype, jax.dtypes.extended)
    if (
        is_plain
        and aval.memory_space is jax.memory.Space.Device
        and _compat.is_for_one_device(ctx)
    ):
        make = lambda: lax.empty(aval.shape, aval.dtype)
    else:
        make = lambda: _compat.empty_of(aval)
    return mlir.lower_fun(make, multiple_results=False)(ctx)


_room = Primitive("room")
_room.def_impl(lambda *, aval: _compat.empty_of(aval))
_room.def_abstract_eval(lambda *, aval: aval)
mlir.register_lowering(_room, _made)
