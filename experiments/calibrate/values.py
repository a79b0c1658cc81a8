"""Numbers for abstract arguments, made on the device by one compiled program."""

import math
from typing import Any

import jax
import jax.numpy as jnp


def fill(specs: Any, num_labels: int = 8) -> Any:
    """What training begins with, at least as a device sees it.

    Optimizer moments and biases are zero: a negative second moment is NaN one step
    later, and a card is faster on NaN than on data. Scales and variances are one,
    matrices have variance one over their inputs, data has variance one, and whole
    numbers differ.

    Args:
      specs: What a step takes: what is trained first, then data.
      num_labels: Whole numbers are below that.
    """
    leaves, tree = jax.tree_util.tree_flatten_with_path(specs)
    simple = lambda path: jax.tree_util.keystr(path, simple=True, separator="/")

    def make() -> list[jax.Array]:
        made = []
        for number, (path, spec) in enumerate(leaves):
            key = jax.random.fold_in(jax.random.key(0), number)
            made.append(_array(simple(path), spec, key, num_labels))
        return made

    shardings = [spec.sharding for _, spec in leaves]
    return jax.tree.unflatten(tree, jax.jit(make, out_shardings=shardings)())


def _array(where: str, spec: Any, key: jax.Array, num_labels: int) -> jax.Array:
    last = where.removesuffix("/value").rsplit("/", 1)[-1]
    is_data = where.split("/")[0] != "0"
    shape, dtype = spec.shape, spec.dtype
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.random.split(key, shape)
    if jnp.issubdtype(dtype, jnp.integer):
        if not shape:  # a count of steps
            return jnp.zeros(shape, dtype)
        return jax.random.randint(key, shape, 0, num_labels).astype(dtype)
    is_number = jnp.issubdtype(dtype, jnp.floating)
    if "opt_state" in where or last in ("bias", "mean") or not shape or not is_number:
        return jnp.zeros(shape, dtype)
    if last in ("scale", "var"):
        return jnp.ones(shape, dtype)
    inputs = 1 if is_data else _num_inputs(shape)
    return (jax.random.normal(key, shape, jnp.float32) * inputs**-0.5).astype(dtype)


def _num_inputs(shape: tuple[int, ...]) -> int:
    """Of an array of weights: how many numbers a sum of its product has.

    The last axis but one counts; of a convolution's kernel, height and width, too.
    """
    sides = list(shape)
    is_kernel = len(sides) >= 4 and max(sides[-4:-2]) <= 11
    return math.prod(sides[-4:-1] if is_kernel else sides[-2:-1])
