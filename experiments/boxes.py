"""Boxes `(x0, y0, x1, y1)` in pixels: how two overlap, and which of many to keep."""

import jax
import jax.numpy as jnp
import numpy as np


def iou(a: jax.Array, b: jax.Array) -> jax.Array:
    """Intersection over union of boxes `[..., 4]`, in [0, 1].

    >>> import jax.numpy as jnp
    >>> float(iou(jnp.array([0.0, 0, 2, 2]), jnp.array([1.0, 0, 3, 2]))).__round__(4)
    0.3333
    """
    shared, either = _shared_and_either(a, b)
    return shared / jnp.maximum(either, 1e-9)


def giou(a: jax.Array, b: jax.Array) -> jax.Array:
    """Generalised IoU of boxes `[..., 4]`, in (-1, 1] (Rezatofighi et al. 2019, eq. 2).

    Less than IoU by the share of the smallest box around both that neither covers, so
    that boxes that do not touch have a gradient too.
    """
    shared, either = _shared_and_either(a, b)
    first, last = jnp.minimum(a, b)[..., :2], jnp.maximum(a, b)[..., 2:]
    around = jnp.maximum((last - first).prod(-1), 1e-9)
    return shared / jnp.maximum(either, 1e-9) - (around - either) / around


def _shared_and_either(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    first, last = jnp.maximum(a, b)[..., :2], jnp.minimum(a, b)[..., 2:]
    shared = jnp.maximum(last - first, 0).prod(-1)
    return shared, area(a) + area(b) - shared


def area(boxes: jax.Array) -> jax.Array:
    """Of boxes `[..., 4]`."""
    return (boxes[..., 2:] - boxes[..., :2]).prod(-1)


def nms(
    boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, threshold: float
) -> np.ndarray:
    """Non-maximum suppression: of boxes of one class that overlap, the best.

    Args:
      boxes: `[n, 4]`.
      scores: `[n]`.
      labels: `[n]`; boxes of different classes do not suppress one another.
      threshold: The largest IoU that two kept boxes of a class may have.

    Returns:
      The indices of those kept, best first.
    """
    first = np.maximum(boxes[:, None, :2], boxes[None, :, :2])
    last = np.minimum(boxes[:, None, 2:], boxes[None, :, 2:])
    shared = np.maximum(last - first, 0).prod(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    either = areas[:, None] + areas[None] - shared
    baselines = (shared > threshold * either) & (labels[:, None] == labels[None])
    kept: list[int] = []
    suppressed = np.zeros(len(boxes), bool)
    for i in np.argsort(-scores, kind="stable"):
        if not suppressed[i]:
            kept.append(int(i))
            suppressed |= baselines[i]
    return np.array(kept, int)
