"""Depthwise convolution the way a CPU is fast at it.

XLA's CPU backend computes a convolution of one channel a group, and even more so its
gradients, ten to a thousand times slower than the same sums of products unrolled.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx


def use_sums_of_products(model: nnx.Module) -> None:
    """Let each depthwise convolution of a model be computed by `depthwise`.

    Parameters, and what is computed but for the order of sums, stay as they are.
    """
    for _, module in nnx.iter_modules(model):
        if isinstance(module, nnx.Conv) and module.feature_group_count > 1:
            module.conv_general_dilated = _in_place_of_conv


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def depthwise(x: jax.Array, kernel: jax.Array, stride: int, padding: int) -> jax.Array:
    """A convolution of each channel with a kernel of its own.

    Args:
      x: `[batch, height, width, channels]`.
      kernel: `[size, size, 1, channels]`.
      stride: Of the windows, down and across.
      padding: Zeros on each side.

    Returns:
      `[batch, new_height, new_width, channels]`.

    >>> import jax.numpy as jnp
    >>> depthwise(jnp.ones((1, 2, 2, 1)), jnp.ones((3, 3, 1, 1)), 2, 1)[0, :, :, 0]
    Array([[4.]], dtype=float32)
    """
    windows = Windows.of(x.shape, kernel.shape[0], stride, padding)
    padded, kernel = _padded(x, padding), kernel[:, :, 0]
    if windows.are_few:
        out = [(padded[at] * kernel).sum((1, 2)) for at in windows.of_outputs()]
        shape = (-1, windows.rows, windows.columns, x.shape[-1])
        return jnp.stack(out, 1).reshape(shape)
    products = [padded[at] * kernel[i, j] for (i, j), at in windows.of_weights()]
    return reduce(jnp.add, products)


@dataclass(frozen=True)
class Windows:
    """Which entries of a padded input meet which weights.

    Attributes:
      size: Of the kernel.
      stride: Of the windows.
      rows: Of the output.
      columns: Of the output.
    """

    size: int
    stride: int
    rows: int
    columns: int

    @classmethod
    def of(
        cls, shape: Sequence[int], size: int, stride: int, padding: int
    ) -> "Windows":
        """Those of an input `[batch, height, width, channels]`."""
        counts = ((n + 2 * padding - size) // stride + 1 for n in shape[1:3])
        return cls(size, stride, *counts)

    @property
    def are_few(self) -> bool:
        """Whether there are fewer outputs than weights."""
        return self.rows * self.columns < self.size**2

    def of_outputs(self) -> Iterator[Any]:
        """Where each output's window is, row by row."""
        size, stride = self.size, self.stride
        for i, j in product(range(self.rows), range(self.columns)):
            down, across = i * stride, j * stride
            yield (
                ...,
                slice(down, down + size),
                slice(across, across + size),
                slice(None),
            )

    def of_weights(self) -> Iterator[tuple[tuple[int, int], Any]]:
        """Each weight, and where its factor in all the windows is."""
        for i, j in product(range(self.size), repeat=2):
            ends = (
                i + self.stride * (self.rows - 1),
                j + self.stride * (self.columns - 1),
            )
            down = slice(i, ends[0] + 1, self.stride)
            across = slice(j, ends[1] + 1, self.stride)
            yield (i, j), (..., down, across, slice(None))


def _padded(x: jax.Array, padding: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))


def _forward(x, kernel, stride, padding):
    return depthwise(x, kernel, stride, padding), (x, kernel)


def _backward(stride, padding, residuals, dy):
    x, kernel = residuals
    by_input = lambda x: depthwise.__wrapped__(x, kernel, stride, padding)
    (dx,) = jax.linear_transpose(by_input, x)(dy)
    windows = Windows.of(x.shape, kernel.shape[0], stride, padding)
    return dx, _by_kernel(windows, _padded(x, padding), dy)[:, :, None]


def _by_kernel(windows: Windows, padded: jax.Array, dy: jax.Array) -> jax.Array:
    """The gradient by the kernel, summed image after image, which stays in the cache.

    As one sum over the batch it would be some ten times slower.
    """
    size, channels = windows.size, dy.shape[-1]
    if windows.are_few:

        def add_outputs(total, image):
            x, dy = image
            each = zip(windows.of_outputs(), dy.reshape(-1, channels), strict=True)
            return reduce(jnp.add, (x[at] * by for at, by in each), total), None

        zeros = jnp.zeros((size, size, channels), dy.dtype)
        return jax.lax.scan(add_outputs, zeros, (padded, dy))[0]

    def add_weights(totals, image):
        x, dy = image
        each = zip(totals, windows.of_weights(), strict=True)
        return tuple(total + x[at] * dy for total, (_, at) in each), None

    zeros = (jnp.zeros(dy.shape[1:], dy.dtype),) * size**2
    totals, _ = jax.lax.scan(add_weights, zeros, (padded, dy))
    sums = [total.sum((0, 1)) for total in totals]
    return jnp.stack(sums).reshape(size, size, channels)


depthwise.defvjp(_forward, _backward)


def _in_place_of_conv(
    x: jax.Array, kernel: jax.Array, strides: Any, padding: Any, **kwargs: Any
) -> jax.Array:
    """`lax.conv_general_dilated` as `nnx.Conv` calls it."""
    del kwargs
    return depthwise(x, kernel, strides[0], padding[0][0])
