"""Files that people hand over: no waiting, no endless reading, nothing taken away."""

import gzip
import os
import signal
from pathlib import Path

import pytest

import revremat as rr
from revremat import Plan, UserError
from revremat._cli import main
from revremat._io._files import (
    check_place,
    folder_of,
    open_regular,
    read_bytes,
    read_text,
    write_text,
)
from revremat._report._lock import read_lock
from revremat.allocation._csv import read_problem
from revremat.xla.compile import _dumps


@pytest.fixture(autouse=True)
def _no_hang():
    def stop(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


READERS = {
    "plan": Plan.load,
    "report": rr.load,
    "lock": read_lock,
    "buffers": read_problem,
    "dump": lambda path: rr.read(path, target="h100:1"),
    "dump in a folder": lambda path: rr.read(_folder(path), target="h100:1"),
    "card": lambda path: _measured(path),
}


def _folder(path: Path) -> Path:
    folder = path.with_name("dumps")
    folder.mkdir()
    path.rename(folder / "m.after_optimizations.hlo.pb")
    return folder


def _measured(path: Path):
    path.rename(path.with_name("a100.json"))
    return rr.target("a100:1")


def make(path: Path, kind: str) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "folder":
            path.mkdir()
        case "huge":
            with path.open("wb") as file:
                file.truncate(1 << 40)
        case "no text":
            path.write_bytes(b"\xff\xfe\x00")
        case "deep":
            path.write_text("[" * 200_000)


@pytest.mark.parametrize(
    "kind", ["pipe", "device", "loop", "folder", "huge", "no text", "deep"]
)
@pytest.mark.parametrize("reader", READERS)
def test_what_cannot_be_read_is_one_sentence_at_once(
    reader, kind, tmp_path, monkeypatch
):
    monkeypatch.setenv("REVREMAT_CARDS", str(tmp_path))
    path = tmp_path / "given"
    make(path, kind)
    with pytest.raises(UserError) as caught:
        READERS[reader](path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 400


def test_a_link_to_a_file_is_read(tmp_path):
    (tmp_path / "file").write_text("\ufeffßtext", encoding="utf-8")
    (tmp_path / "link").symlink_to("file")
    assert read_text(tmp_path / "link") == "ßtext"


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_what_is_no_file_is_never_written_over(kind, tmp_path):
    path = tmp_path / "out.json"
    make(path, kind)
    before = os.lstat(path)
    for write in (check_place, lambda place: write_text(place, "text")):
        with pytest.raises(UserError, match="cannot write"):
            write(path)
    assert os.lstat(path) == before
    assert list(tmp_path.iterdir()) == [path]


def test_through_a_link_the_file_is_written_that_it_names(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out.json").symlink_to("real/file.json")
    for text in ("first", "second"):
        write_text(tmp_path / "out.json", text)
    assert (tmp_path / "out.json").is_symlink()
    assert (tmp_path / "real" / "file.json").read_text() == "second"


def test_names_that_are_no_text_are_written_as_escapes(tmp_path):
    write_text(tmp_path / "out.html", "a\ud800b ß")
    assert (tmp_path / "out.html").read_text(encoding="utf-8") == "a\\ud800b ß"


def test_a_file_name_of_255_letters_can_be_written(tmp_path):
    path = tmp_path / ("x" * 250 + ".json")
    write_text(path, "text")
    assert path.read_text() == "text"


# Compressed dumps ------------------------------------------------------------------


def gzipped(data):
    """Without the time of day, which would be in the names of the tests."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (gzipped(b"x" * 1000)[:-20], "is a damaged gzip file"),
        (b"\x1f\x8b" + b"\0" * 50, "is a damaged gzip file"),
        (gzipped(b""), "is empty"),
        (gzipped(b"\x89PNG nothing of the kind"), "no HLO module"),
        (gzipped(bytes(2 << 20)), "larger than 1,048,576 bytes when it is"),
    ],
)
def test_a_compressed_dump_that_is_none(tmp_path, monkeypatch, data, message):
    monkeypatch.setattr(_dumps, "_MOST_BYTES", 1 << 20)
    (tmp_path / "m.after_optimizations.hlo.pb.gz").write_bytes(data)
    with pytest.raises(UserError, match=message):
        rr.read(tmp_path, target="h100:1")


def test_a_folder_of_unfinished_compressed_dumps_is_told_apart(tmp_path):
    (tmp_path / "m.before_optimizations.hlo.pb.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(UserError, match="the compile did not end"):
        rr.read(tmp_path, target="h100:1")


def test_the_name_of_a_dump_does_not_reach_the_terminal(tmp_path, capsys):
    (tmp_path / "\x1b[2Jm.after_optimizations.hlo.pb").write_bytes(b"\x89PNG")
    assert main(["report", str(tmp_path), "--target", "h100:1"]) == 2
    assert capsys.readouterr().err.rstrip("\n").isprintable()


@pytest.mark.parametrize(
    ("named", "home", "found"),
    [
        ("/a/b", "/home/u", "/a/b"),
        (" /a/b ", "/home/u", "/a/b"),
        ("", "/home/u", "/home/u/.cache/revremat/kept"),
        ("  ", "/home/u", "/home/u/.cache/revremat/kept"),
        (None, "/home/u", "/home/u/.cache/revremat/kept"),
        # A user without a home: nothing can be kept there.
        (None, "~", f"{os.devnull}/.cache/revremat/kept"),
    ],
)
def test_a_folder_is_the_one_that_is_named_or_under_the_home(
    monkeypatch, named, home, found
):
    monkeypatch.delenv("REVREMAT_KEPT", raising=False)
    if named is not None:
        monkeypatch.setenv("REVREMAT_KEPT", named)
    monkeypatch.setattr(os.path, "expanduser", lambda path: home)
    assert folder_of("REVREMAT_KEPT", "kept") == Path(found)


@pytest.mark.parametrize(
    ("size", "most", "fits"), [(5, 5, True), (5, 6, True), (5, 4, False)]
)
def test_a_file_is_read_up_to_the_byte(tmp_path, size, most, fits):
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    if fits:
        assert read_bytes(path, most=most) == b"x" * size
    else:
        with pytest.raises(OSError, match=f"larger than {most} bytes"):
            read_bytes(path, most=most)


def test_a_file_that_says_it_is_empty_is_read_within_bounds():
    """As those of /proc do."""
    path = Path("/proc/self/status")
    assert path.stat().st_size == 0
    assert b"Pid:" in read_bytes(path, most=100_000)
    with pytest.raises(OSError, match="larger than 3 bytes"):
        read_bytes(path, most=3)


@pytest.mark.parametrize("follow", [True, False])
def test_links_are_followed_where_that_is_asked(tmp_path, follow):
    (tmp_path / "file").write_text("text")
    (tmp_path / "link").symlink_to("file")
    if follow:
        assert read_bytes(tmp_path / "link", most=9, follow=True) == b"text"
    else:
        with pytest.raises(OSError, match=r"[Ll]ink"):
            open_regular(tmp_path / "link", follow=False)
    assert read_bytes(tmp_path / "file", most=9, follow=follow) == b"text"


@pytest.mark.parametrize(("mask", "mode"), [(0, 0o666), (0o022, 0o644), (0o077, 0o600)])
def test_a_file_is_as_open_to_others_as_any_that_the_user_makes(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        path = write_text(tmp_path / "file", "text")
        assert os.umask(mask) == mask  # is as it was
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode
