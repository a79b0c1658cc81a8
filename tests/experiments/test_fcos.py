"""The detector: what locations should say, what that costs, what is read off."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.average_precision import Detections, average_precision
from experiments.boxes import nms
from experiments.models import fcos
from experiments.models.fcos import Predictions
from experiments.scenes import Scenes
from revremat import UserError

WHERE = fcos.locations(64)
LEVELS = np.split(np.arange(340), [256, 320, 336])


def boxes_of(*boxes):
    """Hand-made boxes, padded as the data's are."""
    labels = np.full(5, -1, np.int32)
    padded = np.zeros((5, 4), np.float32)
    for k, (label, box) in enumerate(boxes):
        labels[k], padded[k] = label, box
    return jnp.asarray(padded), jnp.asarray(labels)


def said_of(boxes, labels):
    """The predictions that are right about an image."""
    wanted, own = fcos.targets(WHERE, boxes, labels)
    there = (wanted >= 0)[:, None]
    distances = jnp.where(there, fcos.encode(WHERE.centers, own), 1.0)
    classes = jnp.where(jax.nn.one_hot(wanted, 10) > 0, 20.0, -20.0)
    near = jnp.where(there[:, 0], fcos.centerness(distances), 0.5)
    logits = jnp.log(near / (1 - near).clip(1e-6))
    return Predictions(classes[None], logits[None], distances[None])


def test_locations_are_the_centres_of_their_strides():
    assert [len(level) for level in LEVELS] == [16**2, 8**2, 4**2, 2**2]
    assert WHERE.centers[0].tolist() == [2, 2]
    assert WHERE.centers[1].tolist() == [6, 2], "x goes first"
    assert WHERE.centers[-1].tolist() == [48, 48]


@pytest.mark.parametrize(("side", "level"), [(12, 0), (24, 1), (44, 2)])
def test_the_size_of_an_object_says_whose_it_is(side, level):
    """Of the locations at its middle; ones farther off may see a longer side."""
    middle = WHERE.centers[LEVELS[level][len(LEVELS[level]) // 3]]
    box = (*(middle - side / 2), *(middle + side / 2))
    wanted, own = fcos.targets(WHERE, *boxes_of((7, box)))
    there = LEVELS[level][len(LEVELS[level]) // 3]
    assert wanted[there] == 7
    assert np.asarray(own)[there].tolist() == list(box)
    # A finer level never has it: whatever it sees of it is too far away.
    finer = [k for k in range(340) if WHERE.strides[k] < 4 * 2**level]
    assert all(wanted[k] == -1 for k in finer)


def by_definition(boxes, labels):
    """Every location and every object, one by one."""
    found = []
    for (x, y), stride, (low, high) in zip(
        WHERE.centers, WHERE.strides, WHERE.ranges, strict=True
    ):
        candidates = []
        for (x0, y0, x1, y1), label in zip(boxes, labels, strict=True):
            sides = (x - x0, y - y0, x1 - x, y1 - y)
            near = max(abs(x - (x0 + x1) / 2), abs(y - (y0 + y1) / 2)) < 1.5 * stride
            if label >= 0 and min(sides) > 0 and near and low < max(sides) <= high:
                candidates.append(((x1 - x0) * (y1 - y0), label))
        found.append(min(candidates)[1] if candidates else -1)
    return found


def test_targets_are_their_definition():
    scenes = Scenes(np.ones((10, 8, 8)), np.arange(10), 4, 0)
    for number in range(4):
        boxes, labels = scenes[number]["boxes"], scenes[number]["labels"]
        wanted, _ = fcos.targets(WHERE, jnp.asarray(boxes), jnp.asarray(labels))
        assert wanted.tolist() == by_definition(boxes, labels)


def test_only_locations_near_the_centre_of_an_object_are_its_own():
    wanted, _ = fcos.targets(WHERE, *boxes_of((4, (24, 24, 40, 40))))
    fine = LEVELS[0][np.asarray(wanted)[LEVELS[0]] >= 0]
    # Stride 4 about (32, 32): centres less than 6 pixels off, down and across.
    at = [[30, 30], [34, 30], [30, 34], [34, 34]]
    assert WHERE.centers[fine].tolist() == at


def test_of_two_objects_at_a_place_it_is_the_smaller_ones():
    large, small = (18, 18, 42, 42), (20, 20, 41, 41)
    wanted, _ = fcos.targets(WHERE, *boxes_of((1, large), (2, small)))
    assert set(np.asarray(wanted).tolist()) == {-1, 2}


def test_without_objects_all_is_background():
    assert (fcos.targets(WHERE, *boxes_of())[0] == -1).all()


def test_decoding_undoes_encoding():
    centers = jax.random.uniform(jax.random.key(0), (50, 2)) * 64
    boxes = jax.random.uniform(jax.random.key(1), (50, 4)) * 64
    again = fcos.decode(centers, fcos.encode(centers, boxes))
    np.testing.assert_allclose(again, boxes, atol=1e-5)


def test_centerness_is_one_in_the_middle_and_zero_at_a_side():
    sides = jnp.array([[3.0, 5, 3, 5], [0, 5, 6, 5], [1, 5, 4, 5]])
    assert fcos.centerness(sides).tolist() == pytest.approx([1.0, 0.0, 0.5])


SCENES = [
    boxes_of((7, (24, 20, 40, 44)), (3, (4, 4, 18, 17))),
    boxes_of((0, (8, 10, 52, 50))),
    boxes_of(),
]


def stacked():
    boxes, labels = map(jnp.stack, zip(*SCENES, strict=True))
    said = [said_of(*scene) for scene in SCENES]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *said), boxes, labels


@pytest.mark.slow
def test_being_right_costs_least_and_every_gradient_is_finite():
    right, boxes, labels = stacked()
    blank = jax.tree.map(jnp.zeros_like, right)
    blank = Predictions(blank.classes, blank.centerness, blank.distances + 4.0)
    cost = jax.jit(lambda said: fcos.losses(WHERE, said, boxes, labels)["loss"])
    each = fcos.losses(WHERE, right, boxes, labels)
    assert float(each["class_loss"]) < 1e-3
    assert float(each["box_loss"]) == pytest.approx(0.0, abs=1e-4)
    assert float(cost(right)) < float(cost(blank))
    slope = jax.jit(jax.grad(cost))
    for said in (right, blank):
        gradient = slope(said)
        assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradient))
        assert any(bool((g != 0).any()) for g in jax.tree.leaves(gradient))


def test_an_image_without_objects_has_a_loss_and_finite_gradients():
    boxes, labels = (part[None] for part in boxes_of())
    said = said_of(*boxes_of())
    blank = Predictions(said.classes * 0, said.centerness * 0, said.distances)
    cost = lambda said: fcos.losses(WHERE, said, boxes, labels)["loss"]
    value, gradient = jax.jit(jax.value_and_grad(cost))(blank)
    assert float(value) > 0
    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(gradient))


def judged(said, boxes, labels):
    truth = [
        Detections(np.asarray(b[n >= 0]), np.asarray(n[n >= 0]))
        for b, n in zip(boxes, labels, strict=True)
    ]
    found = []
    for one in zip(*map(np.asarray, fcos.best(fcos.FCOSConfig(), said)), strict=True):
        kept = nms(*(one[0], one[2], one[1]), 0.5)
        found.append(Detections(*(one[k][kept] for k in range(3))))
    return average_precision(truth, found, 64)["AP"]


def test_perfect_predictions_read_off_the_pyramid_score_one():
    pytest.importorskip("pycocotools")
    said, boxes, labels = stacked()
    assert judged(said, boxes, labels) == pytest.approx(1.0)
    shifted = said.distances + jnp.array([3.0, 3.0, -3.0, -3.0])
    off = Predictions(said.classes, said.centerness, shifted)
    assert judged(off, boxes, labels) < 0.6


def test_sizes_that_do_not_divide_are_named():
    with pytest.raises(UserError, match=r"image_size 48 is not a multiple of 32"):
        fcos.FCOSConfig(image_size=48)
    with pytest.raises(UserError, match=r"20 channels has no 8 groups"):
        fcos.FCOSConfig(width=20)
