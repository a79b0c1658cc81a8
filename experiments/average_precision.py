"""Average precision of detected boxes, by COCO's own tool."""

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.records import INSTALL
from revremat import UserError


@dataclass(frozen=True)
class Detections:
    """What is in an image, or what was found there, best first or not.

    Attributes:
      boxes: `[n, 4]`, `(x0, y0, x1, y1)` in pixels.
      labels: `[n]` classes.
      scores: `[n]`; of what was found.
    """

    boxes: np.ndarray
    labels: np.ndarray
    scores: np.ndarray | None = None


def check_installed() -> None:
    """Before hours of training: whether what judges its result is there.

    Raises:
      UserError: If pycocotools is not installed.
    """
    try:
        import pycocotools.cocoeval  # noqa: F401
    except ImportError:
        raise UserError(
            f"average precision needs pycocotools: run `{INSTALL}`"
        ) from None


def average_precision(
    truth: Sequence[Detections], found: Sequence[Detections], image_size: int
) -> dict[str, float]:
    """COCO's averages over IoU 0.5 to 0.95, and at 0.5 and 0.75.

    Args:
      truth: Of each image.
      found: Of each image, with scores; the best 100 of an image count.
      image_size: Height and width in pixels.

    Returns:
      `AP`, `AP50`, `AP75`, each in [0, 1].

    Raises:
      UserError: If pycocotools is not installed.
    """
    check_installed()
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    classes = sorted({int(label) for one in truth for label in one.labels})
    size = {"height": image_size, "width": image_size}
    coco: Any = COCO()
    coco.dataset = {
        "info": {},
        "images": [{"id": i, **size} for i in range(len(truth))],
        "categories": [{"id": label, "name": str(label)} for label in classes],
        "annotations": [
            {**row, "id": number, "iscrowd": 0}
            for number, row in enumerate(_rows(truth), 1)
        ],
    }
    results = _rows(found)
    if not results:
        return {"AP": 0.0, "AP50": 0.0, "AP75": 0.0}
    with contextlib.redirect_stdout(io.StringIO()):
        coco.createIndex()
        judge = COCOeval(coco, coco.loadRes(results), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return {
        name: float(value)
        for name, value in zip(("AP", "AP50", "AP75"), judge.stats[:3], strict=True)
    }


def _rows(images: Sequence[Detections]) -> list[dict]:
    rows = []
    for image, one in enumerate(images):
        for k, (x0, y0, x1, y1) in enumerate(one.boxes.astype(float)):
            width, height = x1 - x0, y1 - y0
            row = {
                "image_id": image,
                "category_id": int(one.labels[k]),
                "bbox": [x0, y0, width, height],
                "area": width * height,
            }
            if one.scores is not None:
                row["score"] = float(one.scores[k])
            rows.append(row)
    return rows
