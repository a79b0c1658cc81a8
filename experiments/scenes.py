"""Scenes with boxes, composed as they are asked for from real handwriting.

Each is a canvas with a few of scikit-learn's 8 x 8 digits, enlarged. A scene is a
function of its seed and number, so that a run that goes on sees the same ones.
"""

import math
from collections.abc import Sequence

import numpy as np

CANVAS = 64
MOST = 5
SMALLEST, LARGEST = 14.0, 44.0
OVERLAP = 0.1
_INK = 0.2
_TRIES = 20


class Scenes(Sequence):
    """Grey images [Y, X, 1] with noise, the boxes of the ink of each digit, labels.

    Args:
      pixels: Digits `[n, 8, 8]` in [0, 1].
      labels: `[n]`.
      count: How many scenes there are.
      seed: Another seed, other scenes.
    """

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, count: int, seed: int):
        self._pixels, self._labels = pixels, labels
        self._count, self._seed = count, seed

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Image, `boxes` float32 [MOST, 4] and `labels` int32 [MOST], -1 for none."""
        if not 0 <= index < self._count:
            raise IndexError(index)
        rng = np.random.default_rng((self._seed, index))
        canvas = rng.uniform(0, 0.15, (CANVAS, CANVAS))
        boxes = np.zeros((MOST, 4), np.float32)
        labels = np.full(MOST, -1, np.int32)
        placed = 0
        for _ in range(rng.integers(1, MOST + 1)):
            chosen = rng.integers(len(self._labels))
            found = self._place(rng, self._pixels[chosen], boxes[:placed])
            if found is None:
                continue
            top, left, patch, box = found
            height, width = patch.shape
            region = canvas[top : top + height, left : left + width]
            np.maximum(region, patch, out=region)
            boxes[placed], labels[placed] = box, self._labels[chosen]
            placed += 1
        image = canvas.astype(np.float32)[:, :, None]
        return {"images": image, "boxes": boxes, "labels": labels}

    def _place(self, rng: np.random.Generator, digit: np.ndarray, others: np.ndarray):
        """A size and a place that overlap no other digit much, if there is one."""
        side = math.exp(rng.uniform(math.log(SMALLEST), math.log(LARGEST)))
        stretch = math.exp(rng.uniform(-0.2, 0.2))
        patch = enlarged(digit, round(side * stretch), round(side / stretch))
        height, width = patch.shape
        ink = patch > _INK
        down, across = np.flatnonzero(ink.any(1)), np.flatnonzero(ink.any(0))
        tight = np.array([across[0], down[0], across[-1] + 1, down[-1] + 1])
        for _ in range(_TRIES):
            top = int(rng.integers(CANVAS - height + 1))
            left = int(rng.integers(CANVAS - width + 1))
            box = tight + np.array([left, top, left, top])
            if all(_iou(box, other) <= OVERLAP for other in others):
                return top, left, patch, box
        return None


def enlarged(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """Bilinear, half-pixel centres."""
    return _weights(image.shape[0], height) @ image @ _weights(image.shape[1], width).T


def _weights(old: int, new: int) -> np.ndarray:
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(0, 1 - np.abs(at[:, None] - np.arange(old)))


def _iou(a: np.ndarray, b: np.ndarray) -> float:
    shared = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]), 0).prod()
    return shared / ((a[2:] - a[:2]).prod() + (b[2:] - b[:2]).prod() - shared)
