"""A detector on RevBiFPN's pyramid: its average precision on unseen digits.

    python -m experiments.papers.revbifpn.detection

Trains `configs/fcos_digits.py` (or goes on with it), then finds the boxes in 256 scenes
of digits that no training scene has, and has pycocotools judge them.

Writes results/revbifpn-detection.json.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments import data, step
from experiments.average_precision import (
    Detections,
    average_precision,
    check_installed,
)
from experiments.boxes import nms
from experiments.checkpoints import Checkpoints
from experiments.configs.common import Experiment
from experiments.configs.fcos_digits import EXPECTED_AP, config
from experiments.files import write_whole
from experiments.models import fcos
from experiments.train import train
from revremat import UserError, sharding

RESULTS = Path(__file__).parents[2] / "results"
SUPPRESSED_ABOVE = 0.5


@dataclass(frozen=True)
class Detection:
    """How long to train, and where to.

    Attributes:
      num_steps: Optimizer steps in all.
      runs: Folder of the run.
      out: Folder for the results.
    """

    num_steps: int = config.train.num_steps
    runs: Path = Path("runs/fcos_digits")
    out: Path = RESULTS


def last_state(config: Experiment) -> step.TrainState:
    """What a run's newest checkpoint holds."""
    mesh = sharding.make_mesh(step.mesh_axes(config, 1), jax.devices()[:1])
    program = step.build(config, mesh)
    examples = data.load(config.data).train
    batches = data.train_batches(examples, config.data.batch_size, config.train.seed)
    checkpoints = Checkpoints(Path(config.train.dir, "checkpoints"), config.train.keep)
    try:
        return checkpoints.load(program.state, batches)
    finally:
        checkpoints.close()


def detections(
    model: fcos.FCOSConfig, state: step.TrainState, batches: list[data.Example]
) -> Iterator[Detections]:
    """What is found in each image: the best boxes that do not overlap."""

    @jax.jit
    def look(images: jax.Array) -> Any:
        said, _ = fcos.stateful(model)(state.params, state.model, None, images)
        return fcos.best(model, said)

    for batch in batches:
        for one in zip(*jax.device_get(look(batch["images"])), strict=True):
            boxes, labels, scores = one
            kept = nms(boxes, scores, labels, SUPPRESSED_ABOVE)
            yield Detections(boxes[kept], labels[kept], scores[kept])


def judged(config: Experiment, state: step.TrainState) -> dict[str, float]:
    """AP, AP50 and AP75 on the held-out scenes."""
    size = config.data.batch_size
    scenes = data.load(config.data).valid
    batches = data.valid_batches(scenes, size, len(scenes) // size)
    truth = []
    for batch in batches:
        for boxes, labels in zip(batch["boxes"], batch["labels"], strict=True):
            there = labels >= 0
            truth.append(Detections(boxes[there], labels[there]))
    found = list(detections(config.model, state, batches))
    scores = average_precision(truth, found, config.model.image_size)
    objects = int(np.sum([len(one.labels) for one in truth]))
    return {
        "scenes": len(truth),
        "objects": objects,
        **{name: round(value, 4) for name, value in scores.items()},
    }


def main() -> int:
    """Train, judge, write."""
    paper = tyro.cli(Detection, description=__doc__)
    change = {"num_steps": paper.num_steps, "dir": str(paper.runs)}
    chosen = dataclasses.replace(
        config, train=dataclasses.replace(config.train, **change)
    )
    try:
        check_installed()
        train(chosen)
        state = last_state(chosen)
        found = judged(chosen, state)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    found = {"steps": int(state.step), **found, "expected_AP": EXPECTED_AP}
    write_whole(
        paper.out / "revbifpn-detection.json", json.dumps(found, indent=1) + "\n"
    )
    print(json.dumps(found))
    return 0 if found["AP"] >= EXPECTED_AP else 1


if __name__ == "__main__":
    sys.exit(main())
