"""Scenes: real digits, boxes around their ink, nothing that is in both splits."""

import numpy as np
import pytest

from experiments import data, scenes
from experiments.scenes import CANVAS, MOST, OVERLAP, Scenes, enlarged


@pytest.fixture(scope="module")
def splits():
    pytest.importorskip("sklearn")
    return data.load(data.DataConfig(name="scenes"))


def test_a_scene_is_always_the_same(splits):
    for name, value in splits.train[7].items():
        np.testing.assert_array_equal(value, splits.train[7][name])
    assert not np.array_equal(splits.train[7]["images"], splits.train[8]["images"])


def test_boxes_hold_ink_lie_inside_and_overlap_little(splits):
    counts = set()
    for number in range(60):
        scene = splits.train[number]
        image, labels = scene["images"][:, :, 0], scene["labels"]
        boxes = scene["boxes"][labels >= 0]
        counts.add(len(boxes))
        outside = np.ones_like(image, bool)
        for k, (x0, y0, x1, y1) in enumerate(boxes.astype(int)):
            assert 0 <= x0 < x1 <= CANVAS
            assert 0 <= y0 < y1 <= CANVAS
            inside = image[y0:y1, x0:x1] > scenes._INK
            # Tight: every side touches ink.
            assert inside[0].any()
            assert inside[-1].any()
            assert inside[:, 0].any()
            assert inside[:, -1].any()
            outside[y0:y1, x0:x1] = False
            for other in boxes[:k]:
                assert scenes._iou(boxes[k], other) <= OVERLAP
        assert (image[outside] <= scenes._INK).all(), "ink that no box is around"
    assert counts == set(range(1, MOST + 1))


def test_no_digit_is_in_both_splits(splits):
    train, valid = splits.train, splits.valid
    assert len(train._labels) + len(valid._labels) == 1797
    seen = {digit.tobytes() for digit in train._pixels}
    assert not any(digit.tobytes() in seen for digit in valid._pixels)


def test_labels_are_of_the_digits_in_the_boxes():
    pixels = np.zeros((2, 8, 8))
    pixels[0, :, 3:5] = 1.0  # a tall one
    pixels[1, 3:5] = 1.0  # a flat one
    for scene in (Scenes(pixels, np.array([0, 1]), 20, 0)[i] for i in range(20)):
        for (x0, y0, x1, y1), label in zip(
            scene["boxes"], scene["labels"], strict=True
        ):
            if label >= 0:
                assert label == int(x1 - x0 > y1 - y0)


def test_enlarging_is_bilinear_with_half_pixel_centres():
    import jax

    image = np.random.default_rng(0).uniform(size=(8, 8))
    expected = jax.image.resize(image, (21, 13), "bilinear")
    np.testing.assert_allclose(enlarged(image, 21, 13), expected, atol=1e-5)
