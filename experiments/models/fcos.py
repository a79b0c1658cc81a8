"""FCOS on RevBiFPN's pyramid: boxes from every location of every level.

Tian et al. 2019, with its later refinements: only locations near a box's centre count,
centre-ness is read off the boxes' tower, boxes are trained by generalised IoU. The
pyramid has its neck, as published; ranges of sizes are shares of the canvas.

Shapes: B batch, L locations of all levels, M boxes an image, Q classes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from experiments.boxes import area, giou
from experiments.models.depthwise import use_sums_of_products
from experiments.models.layout import ONE_DEVICE, Layout
from experiments.models.revbifpn import Variant
from experiments.models.stateful import Stateful
from experiments.scenes import CANVAS, MOST
from revremat import UserError
from revremat.reversible import REVBIFPN, RevBiFPN

STRIDES = (4, 8, 16, 32)
LIMITS = (0.16, 0.3, 0.5)
"""Of the farthest side of a level's boxes, as shares of the canvas; FCOS has 64, 128,
256 and 512 of 800 pixels, but its finest stride is 8."""
RADIUS = 1.5
PRIOR = 0.01
ALPHA, GAMMA = 0.25, 2.0
Points = jax.Array | np.ndarray
_GROUPS = 8
_LARGEST_LOG = 4.0


@dataclass(frozen=True)
class FCOSConfig:
    """A detector.

    Attributes:
      variant: Widths and depth of the pyramid, by the published name.
      image_size: Pixels down and across, a multiple of 32.
      num_classes: Of objects.
      width: Channels of the head.
      num_layers: Convolutions of each of the head's two towers.
      reversible: Whether the stack is inverted in the backward pass; if not, its
        activations are stored.
      depthwise: Depthwise convolutions as sums of products, fast on a CPU, or XLA's.
    """

    variant: Variant = "S0"
    image_size: int = CANVAS
    num_classes: int = 10
    width: int = 48
    num_layers: int = 2
    reversible: bool = True
    depthwise: Literal["sums", "xla"] = "sums"

    def __post_init__(self):
        if self.image_size % STRIDES[-1]:
            raise UserError(
                f"image_size {self.image_size} is not a multiple of {STRIDES[-1]}, the "
                "coarsest level's stride"
            )
        if self.width % _GROUPS:
            raise UserError(
                f"a head of {self.width} channels has no {_GROUPS} groups to be "
                f"normalised by; choose a multiple of {_GROUPS}"
            )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Predictions:
    """What the head says of every location.

    Attributes:
      classes: Logits `[B, L, Q]`.
      centerness: Logits `[B, L]`.
      distances: To the left, upper, right and lower side, `[B, L, 4]` in pixels, > 0.
    """

    classes: jax.Array
    centerness: jax.Array
    distances: jax.Array


@dataclass(frozen=True)
class Locations:
    """Where the pyramid looks, level by level, row by row.

    Attributes:
      centers: x and y `[L, 2]` in pixels.
      strides: `[L]`.
      ranges: The farthest side of a box that is theirs, `[L, 2]`: above, up to.
    """

    centers: np.ndarray
    strides: np.ndarray
    ranges: np.ndarray


def locations(image_size: int) -> Locations:
    """Those of an image."""
    limits = [0.0, *(share * image_size for share in LIMITS), np.inf]
    centers, strides, ranges = [], [], []
    for level, stride in enumerate(STRIDES):
        at = np.arange(image_size // stride) * stride + stride / 2
        y, x = np.meshgrid(at, at, indexing="ij")
        centers.append(np.stack([x, y], -1).reshape(-1, 2))
        strides.append(np.full(x.size, float(stride)))
        ranges.append(np.tile(limits[level : level + 2], (x.size, 1)))
    parts = (centers, strides, ranges)
    return Locations(*(np.concatenate(part).astype(np.float32) for part in parts))


class Tower(nnx.Module):
    """Convolutions with group norm, which levels of any size can share."""

    def __init__(self, config: FCOSConfig, *, rngs: nnx.Rngs):
        width, layers = config.width, range(config.num_layers)
        conv = partial(nnx.Conv, width, width, (3, 3), use_bias=False, rngs=rngs)
        self.convs = nnx.List(conv() for _ in layers)
        self.norms = nnx.List(
            nnx.GroupNorm(width, num_groups=_GROUPS, rngs=rngs) for _ in layers
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = jax.nn.hard_swish(norm(conv(x)))
        return x


class FCOS(nnx.Module):
    """The pyramid, and one head for all its levels."""

    def __init__(self, config: FCOSConfig, *, rngs: nnx.Rngs):
        published = replace(REVBIFPN[config.variant], num_classes=None)
        self.pyramid = RevBiFPN(published, rngs=rngs, reversible=config.reversible)
        if config.depthwise == "sums":
            use_sums_of_products(self.pyramid)
        self.laterals = nnx.List(
            nnx.Linear(channels, config.width, rngs=rngs)
            for channels in published.head_channels
        )
        self.class_tower = Tower(config, rngs=rngs)
        self.box_tower = Tower(config, rngs=rngs)
        self.classes = nnx.Linear(config.width, config.num_classes, rngs=rngs)
        self.centerness = nnx.Linear(config.width, 1, rngs=rngs)
        self.sides = nnx.Linear(config.width, 4, rngs=rngs)
        self.scale = nnx.Param(jnp.ones(len(STRIDES)))

    def __call__(self, images: jax.Array) -> Predictions:
        """Of images `[B, Y, X, C]`."""
        levels = []
        for k, level in enumerate(self.pyramid(images)):
            x = self.laterals[k](level)
            by_class, by_box = self.class_tower(x), self.box_tower(x)
            # Few locations hold an object: start by saying so.
            classes = self.classes(by_class) + np.log(PRIOR / (1 - PRIOR))
            logs = jnp.minimum(self.scale[k] * self.sides(by_box), _LARGEST_LOG)
            sides = STRIDES[k] * jnp.exp(logs)
            centerness = self.centerness(by_box)
            flat = lambda x: x.reshape(x.shape[0], -1, x.shape[-1])
            levels.append((flat(classes), flat(centerness)[..., 0], flat(sides)))
        parts = zip(*levels, strict=True)
        return Predictions(*(jnp.concatenate(part, 1) for part in parts))


def encode(centers: Points, boxes: jax.Array) -> jax.Array:
    """Distances `[..., 4]` from points `[..., 2]` to the sides of boxes `[..., 4]`."""
    return jnp.concatenate([centers - boxes[..., :2], boxes[..., 2:] - centers], -1)


def decode(centers: Points, distances: jax.Array) -> jax.Array:
    """The boxes that `encode` gave these distances of."""
    first, last = centers - distances[..., :2], centers + distances[..., 2:]
    return jnp.concatenate([first, last], -1)


def targets(
    where: Locations, boxes: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What each location should say: which object is its own (FCOS, section 3.2).

    A location is an object's if it lies in the box, within 1.5 strides of its centre,
    and the farthest side is in its level's range; of several, the smallest one's.

    Args:
      where: The locations.
      boxes: `[M, 4]`.
      labels: `[M]`, -1 for none.

    Returns:
      Labels `[L]`, -1 for background, and boxes `[L, 4]`, which say nothing there.
    """
    distances = encode(where.centers[:, None], boxes[None])
    middle = (boxes[:, :2] + boxes[:, 2:]) / 2
    off = jnp.abs(where.centers[:, None] - middle[None]).max(-1)
    farthest = distances.max(-1)
    own = (
        (labels >= 0)[None]
        & (distances.min(-1) > 0)
        & (off < RADIUS * where.strides[:, None])
        & (farthest > where.ranges[:, :1])
        & (farthest <= where.ranges[:, 1:])
    )
    chosen = jnp.where(own, area(boxes)[None], jnp.inf).argmin(1)
    return jnp.where(own.any(1), labels[chosen], -1), boxes[chosen]


def centerness(distances: jax.Array) -> jax.Array:
    """1 at a box's centre, 0 at its sides (FCOS, eq. 3)."""
    across, down = distances[..., 0::2], distances[..., 1::2]
    smaller = across.min(-1) * down.min(-1)
    return jnp.sqrt(smaller / jnp.maximum(across.max(-1) * down.max(-1), 1e-9))


def losses(
    where: Locations, said: Predictions, boxes: jax.Array, labels: jax.Array
) -> dict[str, jax.Array]:
    """Focal loss of classes, GIoU of boxes, cross-entropy of centre-ness, and the sum.

    Args:
      where: The locations.
      said: What the head says.
      boxes: `[B, M, 4]`.
      labels: `[B, M]`, -1 for none.
    """
    wanted_BL, boxes_BL4 = jax.vmap(partial(targets, where))(boxes, labels)
    positive_BL = wanted_BL >= 0
    count = jnp.maximum(positive_BL.sum(), 1)
    wanted_BLQ = jax.nn.one_hot(wanted_BL, said.classes.shape[-1])
    focal = optax.losses.sigmoid_focal_loss(
        said.classes, wanted_BLQ, alpha=ALPHA, gamma=GAMMA
    )
    # Where there is no object any box will do, as long as its gradient is finite.
    dummy = jnp.asarray([-1.0, -1.0, 1.0, 1.0]) + jnp.tile(where.centers, 2)
    boxes_BL4 = jnp.where(positive_BL[..., None], boxes_BL4, dummy)
    near_BL = jnp.where(positive_BL, centerness(encode(where.centers, boxes_BL4)), 0)
    overlap_BL = giou(decode(where.centers, said.distances), boxes_BL4)
    weights = near_BL / jnp.maximum(near_BL.sum(), 1e-9)
    entropy = optax.losses.sigmoid_binary_cross_entropy(said.centerness, near_BL)
    each = {
        "class_loss": focal.sum() / count,
        "box_loss": (weights * (1 - overlap_BL)).sum(),
        "centerness_loss": jnp.where(positive_BL, entropy, 0).sum() / count,
    }
    return {"loss": sum(each.values(), jnp.zeros(())), **each}


def init(config: FCOSConfig, key: jax.Array) -> dict[str, Any]:
    """Fresh float32 parameters as a nested dict of arrays."""
    return stateful(config).init(key)


def init_state(config: FCOSConfig) -> dict[str, Any]:
    """Fresh batch statistics."""
    return stateful(config).init_state()


def stateful(config: FCOSConfig) -> Stateful:
    """The detector as pure functions; it takes images and gives `Predictions`."""
    return Stateful(lambda rngs: FCOS(config, rngs=rngs))


def loss_fn(
    config: FCOSConfig, *, layout: Layout = ONE_DEVICE
) -> Callable[[Any, dict[str, Any]], tuple[jax.Array, Any]]:
    """The sum of the losses and the moved batch statistics.

    Args:
      config: The model.
      layout: Pins nothing here.

    Returns:
      `loss(params, batch)` with `batch["images"]` float32 [B, Y, X, 1] in [0, 1],
      `batch["boxes"]`, `batch["labels"]`, `batch["key"]` and `batch["state"]`.
    """
    del layout
    model, where = stateful(config), locations(config.image_size)

    def loss(params, batch):
        key = jax.random.wrap_key_data(batch["key"])
        said, state = model(params, batch["state"], key, batch["images"])
        return losses(where, said, batch["boxes"], batch["labels"])["loss"], state

    return loss


def metrics_fn(
    config: FCOSConfig, *, layout: Layout = ONE_DEVICE
) -> Callable[[Any, dict[str, Any]], dict[str, jax.Array]]:
    """What validation reports: the losses by the running statistics."""
    del layout
    model, where = stateful(config), locations(config.image_size)
    size = (config.image_size, config.image_size, 1)

    def metrics(params, batch):
        chex.assert_shape(batch["images"], (None, *size))
        said, _ = model(params, batch["state"], None, batch["images"])
        return losses(where, said, batch["boxes"], batch["labels"])

    return metrics


def best(
    config: FCOSConfig, said: Predictions, count: int = 100
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The likeliest boxes, before those that overlap are dropped.

    Returns:
      Boxes `[B, count, 4]` clipped to the image, labels and scores `[B, count]`; a
      score is the geometric mean of the class's probability and the centre-ness.
    """
    where = locations(config.image_size)
    scores_BLQ = jnp.sqrt(
        jax.nn.sigmoid(said.classes) * jax.nn.sigmoid(said.centerness)[..., None]
    )
    classes = scores_BLQ.shape[-1]
    scores, chosen = jax.lax.top_k(scores_BLQ.reshape(len(scores_BLQ), -1), count)
    boxes_BL4 = decode(where.centers, said.distances).clip(0, config.image_size)
    boxes = jnp.take_along_axis(boxes_BL4, (chosen // classes)[..., None], 1)
    return boxes, chosen % classes, scores


def batch_specs(config: FCOSConfig, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes and dtypes of a batch."""
    size = (config.image_size, config.image_size, 1)
    return {
        "images": jax.ShapeDtypeStruct((batch_size, *size), jnp.float32),
        "boxes": jax.ShapeDtypeStruct((batch_size, MOST, 4), jnp.float32),
        "labels": jax.ShapeDtypeStruct((batch_size, MOST), jnp.int32),
    }


def tensor_parallel(config: FCOSConfig, axis: str) -> tuple[()]:
    """Nothing is cut: its channels are few."""
    del config, axis
    return ()
