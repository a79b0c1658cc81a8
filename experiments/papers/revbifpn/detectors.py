"""The detectors of the comparison: Faster R-CNN on RevBiFPN-S3 and on HRNetV2p-W18.

At the size to which COCO's images are brought, 1344 x 800 pixels, with 512 proposals
each, as both were trained.
"""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from experiments.models.faster_rcnn import (
    ANCHORS,
    FasterRCNN,
    FeaturePyramid,
    Targets,
)
from experiments.models.hrnet import HRNET, HRNet, Pyramid
from experiments.papers.revbifpn.networks import INVERTED, STORED, Step, gradient_step
from revremat import UserError
from revremat.reversible import REVBIFPN, RevBiFPN

HEIGHT, WIDTH, PROPOSALS = 800, 1344, 512
DETECTORS = {
    f"{name} detector": (name, ways)
    for name, ways in (("S3", (INVERTED, STORED)), ("W18", (STORED,)))
}
"""Backbone of each, and how its activations are restored."""


def detector(name: str, way: str, *, rngs: nnx.Rngs) -> FasterRCNN:
    """One of `DETECTORS`.

    Raises:
      UserError: There is none of that name, or it cannot be trained in that way.
    """
    backbone, ways = DETECTORS.get(name, ("", ()))
    if way not in ways:
        known = ", ".join(f"{n} {' or '.join(w)}" for n, (_, w) in DETECTORS.items())
        raise UserError(
            f"{name!r} {way} is no detector of this comparison; choose one of {known}."
        )
    if backbone in HRNET:
        config = replace(HRNET[backbone], num_classes=None)
        neck: Any = Pyramid(config.channels, dtype=None, rngs=rngs)
        return FasterRCNN(HRNet(config, rngs=rngs), neck, rngs=rngs)
    published = replace(REVBIFPN[backbone], num_classes=None, neck=False)
    streams = RevBiFPN(published, rngs=rngs, reversible=way == INVERTED)
    neck = FeaturePyramid(published.channels, rngs=rngs)
    return FasterRCNN(streams, neck, rngs=rngs)


def detection_step(name: str, way: str, batch: int) -> Step:
    """The gradient of a detector's loss."""
    model = nnx.eval_shape(lambda: detector(name, way, rngs=nnx.Rngs(0)))
    images = jax.ShapeDtypeStruct((batch, HEIGHT, WIDTH, 3), jnp.float32)
    levels = nnx.eval_shape(lambda m, x: m.neck(m.backbone(x)), model, images)
    anchors = ANCHORS * sum(level.shape[1] * level.shape[2] for level in levels)
    of: Any = lambda *shape: jax.ShapeDtypeStruct((batch, *shape), jnp.float32)
    classes: Any = jax.ShapeDtypeStruct((batch, PROPOSALS), jnp.int32)
    boxes = of(PROPOSALS, 4)
    targets = Targets(boxes, classes, boxes, of(anchors), of(anchors, 4))
    return gradient_step(model, lambda model, *given: model(*given), (images, targets))
