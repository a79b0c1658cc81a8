"""A card's tuning in compiles where the card is not.

On a card XLA times several kernels for each product, convolution and attention, and
takes the fastest: its own, or a library's, whose operands are laid out in memory. So
the bytes of a program depend on it. Where a run on a card has brought its choices back,
a compile reads them and makes what the card's own compile makes, to the byte.
"""

import functools
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from revremat._errors import UserError
from revremat.xla.compile._tiling import says_how
from revremat.xla.target._cards import measured_folder
from revremat.xla.target._targets import Target

_MISSED = re.compile(r"Failed to get configs for: (\d+) out of (\d+) instructions")
_MISSED_ONE = "No cached config found for HLO instr"

_kept_by_xla: dict[str, str] = {}
"""By card the digest of the tuning that XLA has read in this process and cannot drop:
it takes what it has read in later compiles as well, asked or not."""


@dataclass(frozen=True)
class Tuning:
    """Choices of a card's autotuning, as files that XLA wrote.

    Attributes:
      folder: Where they lie: `<device>/<kernel>.pb`.
      digest: A hash of all of them.
    """

    folder: Path
    digest: str

    @property
    def options(self) -> dict[str, Any]:
        """Compiler options with which XLA takes what is in the folder."""
        return {
            "xla_gpu_autotune_level": 4,
            "xla_gpu_per_fusion_autotune_cache_dir": str(self.folder),
            "xla_gpu_experimental_autotune_cache_mode": "AUTOTUNE_CACHE_MODE_READ",
            # Fusions without a product have no choice that changes bytes, and XLA puts
            # their operands in another order from compile to compile.
            "xla_gpu_experimental_enable_fusion_autotuner": False,
        }

    @property
    def whole(self) -> dict[str, Any]:
        """The same, and a compile fails where a kernel is not among them."""
        return {**self.options, "xla_gpu_require_complete_aot_autotune_results": True}


def tuning_of(target: Target, options: Mapping[str, Any]) -> Tuning | None:
    """The tuning that a compile for a target is made with.

    It lies beside the card's measured figures, in the folder `KEY.tuning`.

    Args:
      target: What is compiled for.
      options: Compiler options; where they, or $XLA_FLAGS, say how products are made,
        there is none.
    """
    if not _is_absent_card(target) or says_how(options):
        return None
    folder = measured_folder() / f"{target.card.key}.tuning"
    files = tuple(_files(folder))
    return Tuning(folder, _digest(folder, files)) if files else None


def hand_to_xla(tuning: Tuning | None, target: Target) -> None:
    """Has to be called before a compile with this tuning, or without one.

    Raises:
      UserError: XLA has read another one in this process.
    """
    if not _is_absent_card(target):
        return
    key = target.card.key
    kept = _kept_by_xla.get(key)
    if kept and (tuning is None or tuning.digest != kept):
        raise UserError(
            f"this process has compiled for {key} with another tuning, which XLA keeps "
            "as long as the process runs: start a new process for "
            f"{'this one' if tuning else 'compiles without it'}"
        )
    if tuning:
        _kept_by_xla[key] = tuning.digest


def _is_absent_card(target: Target) -> bool:
    return target.platform == "cuda" and not target.present


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Names, sizes and times of what is there."""
    found = []
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            stat = os.stat(path)
            relative = os.path.relpath(path, folder)
            found.append((relative, stat.st_size, stat.st_mtime_ns))
    return sorted(found)


@functools.lru_cache(maxsize=4)
def _digest(folder: Path, files: tuple[tuple[str, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for name, *_ in files:
        content = hashlib.sha256((folder / name).read_bytes()).digest()
        digest.update(name.encode() + b"\0" + content)
    return digest.hexdigest()


def not_tuned(error: Exception, target: Target) -> str:
    """A remark on what a compile did not find in the tuning; "" for other errors."""
    missed = _MISSED.search(str(error))
    if not missed and _MISSED_ONE not in str(error):
        return ""
    told = f"{missed[1]} of {missed[2]}" if missed else "some"
    return (
        f"{told} kernels that XLA tunes are not in the tuning of {target.card.key} and "
        "were compiled without: bytes may differ from a compile on the card"
    )
