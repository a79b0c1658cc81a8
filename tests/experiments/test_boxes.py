"""Overlaps by hand and by counting pixels; suppression against its definition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.boxes import giou, iou, nms


@st.composite
def a_box(draw):
    x, y = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    return x, y, x + draw(st.integers(1, 6)), y + draw(st.integers(1, 6))


def pixels(box):
    x0, y0, x1, y1 = box
    return {(x, y) for x in range(x0, x1) for y in range(y0, y1)}


@settings(max_examples=50, deadline=None)
@given(a_box(), a_box())
def test_overlaps_are_those_of_pixels(a, b):
    shared, either = len(pixels(a) & pixels(b)), len(pixels(a) | pixels(b))
    x0, y0 = np.minimum(a, b)[:2]
    x1, y1 = np.maximum(a, b)[2:]
    around = (x1 - x0) * (y1 - y0)
    boxes = jnp.array([a, b], jnp.float32)
    assert float(iou(*boxes)) == pytest.approx(shared / either, abs=1e-6)
    expected = shared / either - (around - either) / around
    assert float(giou(*boxes)) == pytest.approx(expected, abs=1e-6)


def test_boxes_that_do_not_touch_are_still_drawn_together():
    gradient = jax.grad(giou)(jnp.array([0.0, 0, 2, 2]), jnp.array([5.0, 0, 7, 2]))
    assert float(gradient[2]) > 0, "the right side should move to the right"


def brute_force(boxes, scores, labels, threshold):
    """Keep a box unless a better one that was kept overlaps it."""
    kept = []
    for i in sorted(range(len(boxes)), key=lambda i: (-scores[i], i)):
        if all(
            labels[i] != labels[k] or float(iou(boxes[i], boxes[k])) <= threshold
            for k in kept
        ):
            kept.append(i)
    return kept


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(a_box(), st.integers(0, 4), st.integers(0, 1)), max_size=7))
def test_suppression_is_its_definition(found):
    boxes = np.array([box for box, _, _ in found], np.float32).reshape(-1, 4)
    scores = np.array([score for _, score, _ in found], np.float32)
    labels = np.array([label for _, _, label in found], np.int32)
    # Not at a ratio of small whole numbers, where rounding would decide.
    expected = brute_force(boxes, scores, labels, 0.4321)
    assert nms(boxes, scores, labels, 0.4321).tolist() == expected
