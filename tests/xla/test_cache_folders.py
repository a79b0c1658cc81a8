"""The cache's folder among files of others: theirs stay, ours are right or missed."""

import io
import json
import os
import random
import signal
import stat
import zipfile
from pathlib import Path

import pytest

import revremat as rr
from revremat.xla.compile import _disk
from revremat.xla.compile._artifact import Artifact
from revremat.xla.compile._disk import cache_folder, read, write
from tests.xla.programs import spec

HLO = bytes(range(256)) * 8
STATS = {"argument": 16, "output": 4, "alias": 0, "temp": 128, "generated_code": 0}
ARTIFACT = Artifact(HLO, STATS, 0.25, False, "jax 0", ("a remark",))
NUM_CASES = 300


@pytest.fixture(autouse=True)
def named(tmp_path, monkeypatch):
    """The folder that the variable names; ours is made in it by the first write."""
    monkeypatch.setenv("REVREMAT_CACHE", str(tmp_path / "named"))
    return tmp_path / "named"


@pytest.fixture(autouse=True)
def _no_hang():
    def stop(*_):
        raise TimeoutError("it hangs")

    before = signal.signal(signal.SIGALRM, stop)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def square(x):
    return x @ x


def key_of(number: int) -> str:
    return f"{number:064x}"


def kept(key: str) -> Path:
    return cache_folder() / f"{key}.zip"


def is_right(found: Artifact | None) -> bool:
    return found is None or (found.hlo, found.stats, found.remarks) == (
        HLO,
        STATS,
        ("a remark",),
    )


# Damage ----------------------------------------------------------------------------


def rewritten(data: bytes, change) -> bytes:
    """The same archive with another `about.json` or `hlo.pb`."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        about, hlo = json.loads(archive.read("about.json")), archive.read("hlo.pb")
    about, hlo = change(about, hlo)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("about.json", json.dumps(about))
        archive.writestr("hlo.pb", hlo)
    return made.getvalue()


def with_stat(value):
    return lambda about, hlo: (about | {"stats": about["stats"] | {"temp": value}}, hlo)


CHANGES = {
    "statistic null": with_stat(None),
    "statistic negative": with_stat(-5),
    "statistic not a number": with_stat(float("nan")),
    "statistic huge": with_stat(10**300),
    "statistic of another program": with_stat(64),
    "statistics missing": lambda about, hlo: (about | {"stats": {}}, hlo),
    "no statistics": lambda about, hlo: (about | {"stats": None}, hlo),
    "seconds infinite": lambda about, hlo: (about | {"seconds": float("inf")}, hlo),
    "remarks no list": lambda about, hlo: (about | {"remarks": 7}, hlo),
    "remarks of others": lambda about, hlo: (about | {"remarks": ["\x1b[2J"]}, hlo),
    "about a list": lambda about, hlo: ([about], hlo),
    "versions of another type": lambda about, hlo: (about | {"versions": [[]]}, hlo),
    "no digest": lambda about, hlo: (
        {k: v for k, v in about.items() if k != "digest"},
        hlo,
    ),
    "another key": lambda about, hlo: (about | {"key": key_of(9)}, hlo),
    "program empty": lambda about, hlo: (about, b""),
    "program of something else": lambda about, hlo: (about, b"\x89PNG"),
    "program cut": lambda about, hlo: (about, hlo[:-1]),
    "program longer": lambda about, hlo: (about, hlo + b"\0"),
}
BYTES = {
    "empty": lambda data, rng: b"",
    "cut": lambda data, rng: data[: rng.randrange(len(data))],
    "longer": lambda data, rng: data + rng.randbytes(50),
    "in front": lambda data, rng: rng.randbytes(50) + data,
    "zeros": lambda data, rng: bytes(len(data)),
    "no zip": lambda data, rng: rng.randbytes(500),
    "bits": lambda data, rng: flipped(data, rng),
    "twice": lambda data, rng: data + data,
}
KINDS = ("link", "link to a device", "loop", "pipe", "folder", "link to a folder")


def flipped(data: bytes, rng: random.Random) -> bytes:
    bad = bytearray(data)
    for _ in range(rng.randint(1, 8)):
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
    return bytes(bad)


def put(path: Path, kind: str, outside: Path) -> None:
    """Something that is no file; links lead out of the folder."""
    match kind:
        case "link":
            (outside / path.name).write_bytes(b"somebody's")
            path.symlink_to(outside / path.name)
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "loop":
            path.symlink_to(path)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
            (path / "notes.txt").write_bytes(b"somebody's")
        case "link to a folder":
            (outside / f"of {path.name}").mkdir()
            path.symlink_to(outside / f"of {path.name}")


@pytest.mark.parametrize("change", CHANGES)
def test_an_entry_that_says_something_else_is_missed_and_removed(change):
    write(key_of(1), ARTIFACT)
    assert is_right(read(key_of(1)))
    path = kept(key_of(1))
    path.write_bytes(rewritten(path.read_bytes(), CHANGES[change]))
    assert read(key_of(1)) is None
    assert not path.exists()
    write(key_of(1), ARTIFACT)
    assert read(key_of(1)) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_missed_at_once(kind, tmp_path):
    write(key_of(1), ARTIFACT)
    kept(key_of(1)).unlink()
    put(kept(key_of(1)), kind, tmp_path)
    signal.setitimer(signal.ITIMER_REAL, 10)
    assert read(key_of(1)) is None
    write(key_of(1), ARTIFACT)
    assert (read(key_of(1)) is None) == (kind == "folder")


@pytest.mark.parametrize("change", ["statistic null", "program of something else"])
def test_a_measurement_from_a_damaged_entry_is_made_anew(change):
    def ask():
        return rr.measure(square, spec(8, 8), target="cpu:1")

    first = ask()
    (path,) = cache_folder().glob("*.zip")
    path.write_bytes(rewritten(path.read_bytes(), CHANGES[change]))
    again = ask()
    assert not again.cached
    assert again.memory == first.memory
    assert ask().cached


def test_an_entry_that_unpacks_to_more_than_there_can_be_is_missed(monkeypatch):
    write(key_of(1), ARTIFACT)
    monkeypatch.setattr(_disk, "_MOST_ENTRY_BYTES", 1 << 20)
    with zipfile.ZipFile(kept(key_of(1)), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("about.json", "{}")
        archive.writestr("hlo.pb", bytes(1 << 20))
    assert read(key_of(1)) is None
    assert not kept(key_of(1)).exists()


# The folder ------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_variable_names_no_folder(value, tmp_path, monkeypatch):
    """As if it were not set; the folder we are in is somebody's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("REVREMAT_CACHE", "REVREMAT_CARDS"):
        monkeypatch.setenv(name, value)
    own = tmp_path / "home" / ".cache" / "revremat"
    assert cache_folder().parent == own
    assert rr.xla.measured_folder() == own / "cards"
    write(key_of(1), ARTIFACT)
    assert [p.name for p in tmp_path.iterdir()] == ["home"]


def test_a_user_without_a_home_keeps_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REVREMAT_CACHE")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    write(key_of(1), ARTIFACT)
    assert read(key_of(1)) is None
    assert list(tmp_path.iterdir()) == []


def test_the_named_folder_may_be_a_link(named, tmp_path):
    (tmp_path / "scratch").mkdir()
    named.symlink_to(tmp_path / "scratch")
    write(key_of(1), ARTIFACT)
    assert read(key_of(1)) is not None


@pytest.mark.parametrize("case", ["link", "file", "others", "marker", "marker pipe"])
def test_a_folder_that_is_not_ours_is_not_touched(case, named, tmp_path):
    write(key_of(1), ARTIFACT)
    folder = cache_folder()
    match case:
        case "link":
            folder.rename(tmp_path / "elsewhere")
            folder.symlink_to(tmp_path / "elsewhere")
        case "file":
            folder.rename(tmp_path / "elsewhere")
            folder.write_bytes(b"somebody's")
        case "others":
            (folder / "CACHEDIR.TAG").unlink()
        case "marker":
            (folder / "CACHEDIR.TAG").write_bytes(b"Signature: of another program\n")
        case "marker pipe":
            (folder / "CACHEDIR.TAG").unlink()
            os.mkfifo(folder / "CACHEDIR.TAG")
    before = snapshot(tmp_path)
    signal.setitimer(signal.ITIMER_REAL, 10)
    assert read(key_of(1)) is None
    write(key_of(2), ARTIFACT)
    assert snapshot(tmp_path) == before


def test_files_of_others_are_never_pruned(named, monkeypatch):
    """However old, and whatever they are called."""
    named.mkdir()
    write(key_of(1), ARTIFACT)
    names = (
        "data.zip",
        f"{key_of(7)}.zip",
        ".new-abcdefgh",
        "tiled-0123456789abcdef.txt",
    )
    theirs = [folder / name for folder in (named, cache_folder()) for name in names]
    for path in theirs:
        path.write_bytes(b"somebody's")
        os.utime(path, (1, 1))
    size = kept(key_of(1)).stat().st_size
    monkeypatch.setattr(_disk, "_CACHE_LIMIT_BYTES", 2 * size)
    for number in range(2, 6):
        os.utime(kept(key_of(number - 1)), (number, number))
        write(key_of(number), ARTIFACT)
    assert [path.read_bytes() for path in theirs] == [b"somebody's"] * 8
    assert [read(key_of(n)) is not None for n in range(1, 6)] == [False] * 4 + [True]


# Everything together ---------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, tuple]:
    """All that lies in a folder: its kind, and its bytes or where it leads."""
    found = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(root, name)
            mode = os.lstat(path).st_mode
            what = b""
            if stat.S_ISREG(mode):
                what = path.read_bytes()
            elif stat.S_ISLNK(mode):
                what = os.readlink(path)
            found[str(path)] = (stat.S_IFMT(mode), what)
    return found


def foreign(folder: Path, outside: Path, rng: random.Random) -> None:
    """A few things of somebody else's, some of them under names like ours."""
    for number in range(rng.randint(0, 5)):
        names = [
            f"{rng.randrange(1000)}.zip",
            f"{rng.getrandbits(256):064x}.zip",
            f".new-{rng.getrandbits(40):08x}"[:13],
            f"tiled-{rng.getrandbits(64):016x}.txt",
            f"notes {number}.txt",
        ]
        path = folder / rng.choice(names)
        if os.path.lexists(path):
            continue
        if rng.random() < 0.5:
            path.write_bytes(rng.choice([b"", b"PK\x03\x04", HLO, rng.randbytes(2000)]))
        else:
            put(path, rng.choice(KINDS), outside)
        if rng.random() < 0.7:
            os.utime(path, (1, 1), follow_symlinks=False)


@pytest.mark.parametrize("part", range(3))
def test_among_files_of_others_nothing_changes_and_no_figure_is_wrong(
    part, tmp_path, monkeypatch
):
    """Of 300 folders, each with entries that are damaged and things of others."""
    for seed in range(part, NUM_CASES, 3):
        rng = random.Random(seed)
        base = tmp_path / str(seed)
        (base / "named").mkdir(parents=True)
        (base / "outside").mkdir()
        monkeypatch.setenv("REVREMAT_CACHE", str(base / "named"))
        monkeypatch.setattr(_disk, "_CACHE_LIMIT_BYTES", rng.choice([1000, 4 << 30]))
        numbers = range(1, rng.randint(2, 5))
        for number in numbers:
            write(key_of(number), ARTIFACT)
        there = [kept(key_of(n)) for n in numbers if kept(key_of(n)).exists()]
        for folder in (base / "named", cache_folder()):
            foreign(folder, base / "outside", rng)
        theirs = snapshot(base)
        for path in there:
            del theirs[str(path)]
        for path in there:
            data = path.read_bytes()
            match rng.randrange(4):
                case 0:
                    change = rng.choice(list(CHANGES.values()))
                    path.write_bytes(rewritten(data, change))
                case 1:
                    path.write_bytes(rng.choice(list(BYTES.values()))(data, rng))
                case 2:
                    path.unlink()
                    put(path, rng.choice(KINDS[:4]), base / "outside")
        signal.setitimer(signal.ITIMER_REAL, 10)
        for number in rng.sample(range(1, 8), 7):
            assert is_right(read(key_of(number))), seed
            if rng.random() < 0.5:
                write(key_of(number), ARTIFACT)
                assert is_right(read(key_of(number))), seed
        signal.setitimer(signal.ITIMER_REAL, 0)
        now = snapshot(base)
        assert {path: now.get(path) for path in theirs} == theirs, seed
