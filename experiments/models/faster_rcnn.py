"""Faster R-CNN on any pyramid (Ren et al. 2015; Lin et al. 2017), for training.

Proposals are given, as are the targets of both stages: which boxes are sampled is no
matter of memory. Images are `[batch, height, width, channels]`, boxes are left, upper,
right and lower in pixels.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

CHANNELS, ANCHORS, BINS, HIDDEN = 256, 3, 7, 1024
ROI_LEVELS = 4
_CANONICAL_SIZE, _CANONICAL_LEVEL = 224.0, 2
_NORMAL = nnx.initializers.normal(0.01)

Levels = Sequence[jax.Array]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Targets:
    """What is taught; `P` anchors and `R` proposals an image.

    Attributes:
      proposals: Boxes `[B, R, 4]`.
      classes: Of the proposals, `[B, R]`; 0 is none.
      box_deltas: Of the proposals, `[B, R, 4]`.
      objectness: Of the anchors, `[B, P]`, 0 or 1.
      anchor_deltas: `[B, P, 4]`.
    """

    proposals: jax.Array
    classes: jax.Array
    box_deltas: jax.Array
    objectness: jax.Array
    anchor_deltas: jax.Array


class FeaturePyramid(nnx.Module):
    """FPN: from coarse to fine, then a 3 x 3 convolution each, and one coarser level.

    Args:
      channels: Of the streams, finest first.
      rngs: For parameters.
    """

    def __init__(self, channels: Sequence[int], *, rngs: nnx.Rngs):
        conv = partial(nnx.Conv, rngs=rngs)
        self.laterals = nnx.List(conv(c, CHANNELS, (1, 1)) for c in channels)
        self.outputs = nnx.List(conv(CHANNELS, CHANNELS, (3, 3)) for _ in channels)

    def __call__(self, streams: Levels) -> tuple[jax.Array, ...]:
        """One level more than streams."""
        laterals = [f(x) for f, x in zip(self.laterals, streams, strict=True)]
        merged = [laterals[-1]]
        for fine in reversed(laterals[:-1]):
            above = jax.image.resize(merged[0], fine.shape, "nearest")
            merged.insert(0, fine + above)
        levels = [f(x) for f, x in zip(self.outputs, merged, strict=True)]
        return (*levels, levels[-1][:, ::2, ::2])


class ProposalHead(nnx.Module):
    """The first stage, the same on every level."""

    def __init__(self, *, rngs: nnx.Rngs):
        conv = partial(nnx.Conv, kernel_init=_NORMAL, rngs=rngs)
        self.conv = conv(CHANNELS, CHANNELS, (3, 3))
        self.objectness = conv(CHANNELS, ANCHORS, (1, 1))
        self.deltas = conv(CHANNELS, 4 * ANCHORS, (1, 1))

    def __call__(self, levels: Levels) -> tuple[jax.Array, jax.Array]:
        """Logits `[B, P]` and deltas `[B, P, 4]` of all anchors."""
        logits, deltas = [], []
        for level in levels:
            x = jax.nn.relu(self.conv(level))
            logits.append(self.objectness(x).reshape(len(x), -1))
            deltas.append(self.deltas(x).reshape(len(x), -1, 4))
        return jnp.concatenate(logits, 1), jnp.concatenate(deltas, 1)


class BoxHead(nnx.Module):
    """The second stage: two layers on the features of each proposal."""

    def __init__(self, num_classes: int, *, rngs: nnx.Rngs):
        linear = partial(nnx.Linear, rngs=rngs)
        self.first = linear(BINS * BINS * CHANNELS, HIDDEN)
        self.second = linear(HIDDEN, HIDDEN)
        self.classes = linear(HIDDEN, num_classes + 1, kernel_init=_NORMAL)
        self.deltas = linear(HIDDEN, 4 * num_classes, kernel_init=_NORMAL)

    def __call__(self, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logits `[B, R, Q + 1]` and deltas `[B, R, Q, 4]`."""
        x = jax.nn.relu(self.first(features.reshape(*features.shape[:2], -1)))
        x = jax.nn.relu(self.second(x))
        deltas = self.deltas(x)
        return self.classes(x), deltas.reshape(*deltas.shape[:2], -1, 4)


class FasterRCNN(nnx.Module):
    """A backbone, a neck and both heads.

    Args:
      backbone: Images to streams at a 4th to a 32nd of their resolution.
      neck: Streams to levels of 256 channels.
      num_classes: Of objects.
      rngs: For parameters.
    """

    def __init__(
        self,
        backbone: Callable[[jax.Array], Any],
        neck: Callable[[Any], Levels],
        num_classes: int = 80,
        *,
        rngs: nnx.Rngs,
    ):
        self.backbone, self.neck = backbone, neck
        self.proposals = ProposalHead(rngs=rngs)
        self.boxes = BoxHead(num_classes, rngs=rngs)

    def __call__(self, images: jax.Array, targets: Targets) -> jax.Array:
        """The loss: both stages' cross-entropies and smooth distances."""
        levels = self.neck(self.backbone(images))
        objectness, anchor_deltas = self.proposals(levels)
        features = roi_align(levels[:ROI_LEVELS], targets.proposals)
        logits, deltas = self.boxes(features)
        own = jnp.maximum(targets.classes - 1, 0)[..., None, None]
        deltas = jnp.take_along_axis(deltas, own, 2)[:, :, 0]
        found = (targets.classes > 0)[..., None]
        losses = (
            optax.losses.sigmoid_binary_cross_entropy(objectness, targets.objectness),
            targets.objectness[..., None]
            * optax.losses.huber_loss(anchor_deltas, targets.anchor_deltas),
            optax.losses.softmax_cross_entropy_with_integer_labels(
                logits, targets.classes
            ),
            found * optax.losses.huber_loss(deltas, targets.box_deltas),
        )
        return sum((loss.mean() for loss in losses), start=jnp.zeros(()))


def roi_align(levels: Levels, boxes: jax.Array) -> jax.Array:
    """Features of boxes, interpolated at the centres of their bins.

    Args:
      levels: `[B, Y, X, C]`, at a 4th of the images' resolution, an 8th and so on.
      boxes: `[B, R, 4]`; large ones are read from coarse levels (Lin et al. 2017,
        equation 1).

    Returns:
      `[B, R, 7, 7, C]`.
    """
    rows = jnp.asarray([level.shape[1] for level in levels])
    columns = jnp.asarray([level.shape[2] for level in levels])
    starts = jnp.cumsum(rows * columns) - rows * columns
    flat = jnp.concatenate(
        [level.reshape(len(level), -1, level.shape[-1]) for level in levels], 1
    )
    sizes = boxes[..., 2:] - boxes[..., :2]
    scale = jnp.sqrt(jnp.maximum(sizes.prod(-1), 1.0)) / _CANONICAL_SIZE
    level = jnp.floor(_CANONICAL_LEVEL + jnp.log2(scale)).astype(int)
    level = jnp.clip(level, 0, len(levels) - 1)
    share = (jnp.arange(BINS) + 0.5) / BINS
    at = (boxes[..., :2, None] + sizes[..., None] * share) / 2.0 ** (
        2 + level[..., None, None]
    )
    # Pixels' centres lie at halves.
    x, y = at[..., 0, None, :] - 0.5, at[..., 1, :, None] - 0.5
    height, width = (n[level][..., None, None] for n in (rows, columns))
    y, x = jnp.clip(y, 0, height - 1), jnp.clip(x, 0, width - 1)
    top, left = jnp.floor(y).astype(int), jnp.floor(x).astype(int)
    found = jnp.zeros((), flat.dtype)
    for down in (0, 1):
        for right in (0, 1):
            row = jnp.minimum(top + down, height - 1)
            column = jnp.minimum(left + right, width - 1)
            weight = jnp.where(down, y - top, 1 - (y - top)) * jnp.where(
                right, x - left, 1 - (x - left)
            )
            index = starts[level][..., None, None] + row * width + column
            values = jax.vmap(lambda one, where: one[where])(flat, index)
            found = found + weight[..., None].astype(flat.dtype) * values
    return found
