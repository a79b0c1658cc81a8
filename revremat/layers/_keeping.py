"""keep_arguments: a derivative that keeps what its function was given."""

import functools
from collections.abc import Callable
from typing import Any

import jax


def keep_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose derivative keeps its arguments and nothing else.

    Plain autodiff keeps values in between, often in float32 and several of them. Here
    they are computed again from the arguments when the derivative is. For cheap
    functions only: norms, activations, gates.

    No barrier keeps XLA from using again what it still has, as `jax.checkpoint` would.
    There is a reverse derivative only; `jax.jvp` is refused.

    Args:
      function: Of arrays, or pytrees of arrays, by position. It must not close over
        anything that is differentiated.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from revremat import layers
      >>> gate = layers.keep_arguments(lambda a, b: jax.nn.silu(a) * b)
      >>> x = jnp.ones(2, jnp.bfloat16)
      >>> [str(kept.dtype) for kept in jax.tree.leaves(jax.vjp(gate, x, x)[1])]
      ['bfloat16', 'bfloat16']
    """

    @jax.custom_vjp
    def kept(*args: Any) -> Any:
        return function(*args)

    def forward(*args: Any) -> Any:
        return function(*args), args

    def backward(args: Any, cotangents: Any) -> Any:
        return jax.vjp(function, *args)[1](cotangents)

    kept.defvjp(forward, backward)
    return functools.wraps(function)(kept)
