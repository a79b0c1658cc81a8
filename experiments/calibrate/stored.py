"""Modules that a run on a card compiled, and the kernels of a step of each."""

import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.calibrate.records import Json, Record, latest, read
from experiments.calibrate.runner import HLO, RESULTS
from revremat.xla import Module

_KERNELS, _TEXT = ".kernels.jsonl.gz", ".txt.gz"


@dataclass(frozen=True)
class Stored:
    """One program as it was compiled on the card and ran there.

    Attributes:
      name: Of the job and the variant, as the files are called.
      module: What was compiled; without buffer assignment, which its text lacks.
      kernels: Of one profiled step: `kernel`, `instruction`, `number`, `seconds`; none
        where no step was profiled.
      step_us: The median of a step of the last round, without the profiler.
      is_finite: Whether the steps computed numbers; NaN and zeros run faster.
    """

    name: str
    module: Module
    kernels: tuple[Json, ...]
    step_us: float
    is_finite: bool

    @property
    def program(self) -> str:
        """The program, without its variant."""
        return self.name.split(" / ")[0]

    @property
    def busy_us(self) -> float:
        """Of all kernels of the profiled step."""
        return sum(1e6 * row["seconds"] for row in self.kernels)


def stored(folder: Path, only: str = "") -> Iterator[Stored]:
    """The programs of a run whose modules are there, in the order of their records.

    Args:
      folder: With the run's files.
      only: A part of the names of those that are wanted.
    """
    with tarfile.open(folder / HLO) as tar:
        names = set(tar.getnames())
        for job, records in latest(read(folder / RESULTS)).items():
            for variant, step in _steps(records).items():
                name = f"{job.split(maxsplit=1)[-1]} / {variant}"
                file = re.sub(r"[^A-Za-z0-9.]", "_", f"{job}-{variant}")
                if only not in name or file + _TEXT not in names:
                    continue
                profiled = file + _KERNELS in names
                rows = _unpacked(tar, file + _KERNELS).splitlines() if profiled else ()
                yield Stored(
                    name,
                    Module.from_text(_unpacked(tar, file + _TEXT)),
                    tuple(json.loads(row) for row in rows),
                    1e6 * step["median_s"],
                    not step.get("not_finite"),
                )


def _unpacked(tar: tarfile.TarFile, name: str) -> str:
    packed = tar.extractfile(name)
    assert packed is not None
    with gzip.open(io.BytesIO(packed.read()), "rt", encoding="utf-8") as file:
        return file.read()


def _steps(records: list[Record]) -> dict[str, Record]:
    """By variant the steps of the last round."""
    return {r["variant"]: r for r in records if r.get("what") == "steps"}
