"""What follows from the type of a value: zeros, sums, whether it has a derivative.

A type is more than a shape and a dtype. On a mesh of Explicit axes it says how the
array is sharded, within an Auto region on which mesh, inside of `shard_map` over which
axes it varies; everywhere in which memory it lies. What cotangents are and how they add
up depends on the dtype: keys have none, those of flax's FP8 scales add up to the
largest one.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from revremat import _compat
from revremat.program.arrays._host import move
from revremat.program.arrays._room import room as room


def is_differentiable(aval: Any) -> bool:
    """Whether values of this type have cotangents that can be other than zero."""
    tangent = getattr(aval.to_tangent_aval(), "dtype", jax.dtypes.float0)
    return tangent != jax.dtypes.float0


def is_floating(aval: Any) -> bool:
    """Whether values of this type are plain numbers to calculate with."""
    return jnp.issubdtype(aval.dtype, jnp.inexact)


def zero_cotangent(aval: Any) -> Any:
    """The cotangent of a value that nothing depends on.

    Args:
      aval: The type of the value, not of its cotangent.
    """
    return zeros(aval.to_ct_aval())


def zeros(aval: Any) -> Any:
    """What changes no sum of this type."""
    if aval.dtype == jax.dtypes.float0:
        return np.zeros(aval.shape, aval.dtype)
    return move(_compat.zeros_of(aval), aval.memory_space)


def stacked(aval: Any, length: int) -> Any:
    """The type of so many values of a type, along an axis in front of the others."""
    sharding = aval.sharding
    spec = sharding.spec.update(partitions=(None, *sharding.spec.partitions))
    return aval.update(shape=(length, *aval.shape), sharding=sharding.update(spec=spec))


def add(a: Any, b: Any) -> Any:
    """The sum of two cotangents of the same type."""
    return _compat.add_cotangents(a, b)


def instantiate(cotangent: Any) -> Any:
    """A cotangent as an array, where it may be a symbolic zero."""
    return zeros(cotangent.aval) if isinstance(cotangent, SymbolicZero) else cotangent


def promoted(*given: Any) -> Any:
    """The dtype that JAX's standard promotion gives, whichever one is set.

    Args:
      *given: Arrays or dtypes.

    >>> with jax.numpy_dtype_promotion("strict"):
    ...     promoted(jnp.bfloat16, jnp.float32)
    dtype('float32')
    """
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*given)
