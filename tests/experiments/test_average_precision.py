"""What is found as it is scores 1; what is found a little off scores less."""

import numpy as np
import pytest

from experiments.average_precision import Detections, average_precision

pytest.importorskip("pycocotools")

BOXES = np.array([[2, 2, 22, 22], [30, 10, 50, 40], [5, 40, 25, 60]], np.float32)
LABELS = np.array([3, 1, 3])
TRUTH = [Detections(BOXES, LABELS), Detections(BOXES[:1] + 20, LABELS[:1])]


def found(shift=0.0, labels=LABELS):
    scores = np.array([0.9, 0.8, 0.7])
    return [
        Detections(BOXES + shift, labels, scores),
        Detections(BOXES[:1] + 20 + shift, labels[:1], scores[:1]),
    ]


def score(detections):
    return average_precision(TRUTH, detections, 64)


def test_perfect_predictions_score_one():
    assert score(found()) == pytest.approx({"AP": 1.0, "AP50": 1.0, "AP75": 1.0})


def test_a_shift_costs_precision_at_strict_overlaps_first():
    near, far = score(found(2.0)), score(found(12.0))
    # 2 pixels off, the IoU of a 20-pixel square is 324 / 476 = 0.68.
    assert near["AP50"] == pytest.approx(1.0)
    assert near["AP75"] < 1.0
    assert 0.0 < near["AP"] < 1.0
    assert far["AP"] < near["AP"]


def test_a_wrong_class_counts_as_nothing():
    assert score(found(labels=np.array([1, 3, 1])))["AP"] == 0.0


def test_finding_nothing_scores_nothing():
    nothing = Detections(np.zeros((0, 4)), np.zeros(0, int), np.zeros(0))
    assert score([nothing, nothing])["AP"] == 0.0
