"""Norms and an activation whose derivatives keep their inputs."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from revremat.layers._keeping import keep_arguments
from revremat.program.arrays._avals import promoted


def layer_norm(x: Any, scale: Any, bias: Any, *, epsilon: float = 1e-5) -> Any:
    """Layer norm over the last axis, whose derivative keeps `x` and `scale` only.

    Means and variances are in float32 at least. Plain autodiff keeps several float32
    values as large as `x`.

    Source: Ba et al. 2016; what is kept as in Korthikanti et al. 2022, section 4.1.

    Args:
      x: `[..., width]`.
      scale: `[width]`.
      bias: `[width]`.
      epsilon: Added to variances.

    Returns:
      An array as `x`, of its dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat import layers
      >>> layers.layer_norm(jnp.array([1.0, 3.0]), jnp.ones(2), jnp.zeros(2)).round(2)
      Array([-1.,  1.], dtype=float32)
    """
    return keep_arguments(partial(_layer_norm, epsilon=epsilon))(x, scale, bias)


def rms_norm(x: Any, scale: Any, *, epsilon: float = 1e-5) -> Any:
    """Root-mean-square norm over the last axis; keeps `x` and `scale` only.

    Source: Zhang and Sennrich 2019; in float32 at least.

    Args:
      x: `[..., width]`.
      scale: `[width]`.
      epsilon: Added to mean squares.

    Returns:
      An array as `x`, of its dtype.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat import layers
      >>> layers.rms_norm(jnp.array([3.0, 3.0]), jnp.ones(2)).round(2)
      Array([1., 1.], dtype=float32)
    """
    return keep_arguments(partial(_rms_norm, epsilon=epsilon))(x, scale)


def gelu(x: Any) -> Any:
    """`jax.nn.gelu`, whose derivative keeps `x` only.

    Args:
      x: Any array of floats.

    Example:
      >>> import jax.numpy as jnp
      >>> from revremat import layers
      >>> layers.gelu(jnp.array([0.0, 1.0])).round(3)
      Array([0.   , 0.841], dtype=float32)
    """
    return keep_arguments(jax.nn.gelu)(x)


def _layer_norm(x: Any, scale: Any, bias: Any, *, epsilon: float) -> Any:
    wide = _wide(x)
    centred = wide - wide.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + epsilon)
    return (normed * scale + bias).astype(x.dtype)


def _rms_norm(x: Any, scale: Any, *, epsilon: float) -> Any:
    wide = _wide(x)
    squares = jnp.square(wide).mean(-1, keepdims=True)
    return (wide * jax.lax.rsqrt(squares + epsilon) * scale).astype(x.dtype)


def _wide(x: Any) -> Any:
    return x.astype(promoted(x.dtype, jnp.float32))
