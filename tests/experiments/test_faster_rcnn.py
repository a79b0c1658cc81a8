"""Faster R-CNN: what its second stage reads, and the sizes of its parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from experiments.models.faster_rcnn import (
    ANCHORS,
    BoxHead,
    FasterRCNN,
    FeaturePyramid,
    ProposalHead,
    Targets,
    roi_align,
)
from experiments.papers.revbifpn.detectors import DETECTORS, detection_step, detector
from revremat import UserError

SIZES = [(56, 80), (28, 40), (14, 20), (7, 10)]  # of images of 224 x 320 pixels


def pixels(size, stride):
    """A level that holds, for every location, its x and y in the image."""
    y, x = np.meshgrid(*((np.arange(n) + 0.5) * stride for n in size), indexing="ij")
    return jnp.asarray(np.stack([x, y], -1)[None], jnp.float32)


LEVELS = [pixels(size, 4 * 2**k) for k, size in enumerate(SIZES)]


@pytest.mark.parametrize(
    "box", [(40, 30, 96, 65), (60, 50, 200, 180), (30, 30, 290, 195)]
)
def test_features_are_those_of_the_bins_centres(box):
    found = roi_align(LEVELS, jnp.asarray([[box]], jnp.float32))
    left, top, right, bottom = box
    share = (np.arange(7) + 0.5) / 7
    x, y = np.meshgrid(left + (right - left) * share, top + (bottom - top) * share)
    np.testing.assert_allclose(found[0, 0], np.stack([x, y], -1), rtol=1e-4)


@pytest.mark.parametrize(
    ("side", "level"), [(10, 0), (111, 0), (112, 1), (223, 1), (224, 2), (448, 3)]
)
def test_large_boxes_are_read_from_coarse_levels(side, level):
    levels = [jnp.full((1, *size, 1), float(k)) for k, size in enumerate(SIZES)]
    box = jnp.asarray([[[0, 0, side, side]]], jnp.float32)
    np.testing.assert_allclose(roi_align(levels, box), level, rtol=1e-6)


def test_heads_have_the_published_sizes():
    count = lambda make: sum(
        leaf.size
        for leaf in jax.tree.leaves(nnx.state(nnx.eval_shape(make), nnx.Param))
    )
    assert count(lambda: ProposalHead(rngs=nnx.Rngs(0))) == 593_935
    assert count(lambda: BoxHead(80, rngs=nnx.Rngs(0))) == 14_306_705


def test_a_pyramid_has_one_level_more_than_streams():
    streams = tuple(jnp.ones((1, *size, 3)) for size in SIZES)
    neck = FeaturePyramid([3] * 4, rngs=nnx.Rngs(0))
    shapes = [level.shape[1:] for level in neck(streams)]
    assert shapes == [(*size, 256) for size in [*SIZES, (4, 5)]]


@pytest.mark.slow
def test_proposals_without_an_object_teach_no_box():
    anchors = ANCHORS * (8 * 8 + 4 * 4 + 2 * 2 + 1 + 1)
    model = FasterRCNN(
        lambda images: [images[:, :: 2**k, :: 2**k] for k in range(4)],
        FeaturePyramid([3] * 4, rngs=nnx.Rngs(0)),
        num_classes=5,
        rngs=nnx.Rngs(1),
    )

    def loss(deltas, classes):
        boxes = jnp.asarray([[[0.0, 0, 20, 20], [4, 4, 30, 12]]])
        none = jnp.zeros((1, anchors))
        anchor_deltas = jnp.zeros((1, anchors, 4))
        taught = Targets(boxes, jnp.asarray([classes]), deltas, none, anchor_deltas)
        return model(jnp.ones((1, 8, 8, 3)), taught)

    slope = jax.jit(jax.grad(loss), static_argnums=1)(jnp.ones((1, 2, 4)), (0, 3))
    assert not np.any(slope[0, 0])
    assert np.all(slope[0, 1])


def test_a_detector_that_is_not_compared_is_refused():
    with pytest.raises(
        UserError, match="choose one of S3 detector inverted or stored, W18"
    ):
        detector("S9 detector", "stored", rngs=nnx.Rngs(0))


@pytest.mark.slow
@pytest.mark.parametrize("name", DETECTORS)
def test_the_step_of_a_detector_gives_gradients_of_its_parameters(name):
    step = detection_step(name, DETECTORS[name][1][0], 1)
    grads, _ = jax.eval_shape(step.function, *step.specs)
    shapes = lambda tree: [leaf.shape for leaf in jax.tree.leaves(tree)]
    assert shapes(grads) == shapes(step.specs[0])
