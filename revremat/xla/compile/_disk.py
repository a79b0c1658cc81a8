"""Compiles on disk, each under a hash of everything that it depends on."""

import contextlib
import errno
import functools
import hashlib
import io
import json
import os
import platform
import re
import secrets
import stat
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import jax

from revremat._compat import compile_settings
from revremat._io._files import NotRegularError, folder_of, open_regular, read_bytes
from revremat.xla.compile._artifact import Artifact, versions
from revremat.xla.compile._identity import module_digest
from revremat.xla.compile._scratch import ABANDONED_S
from revremat.xla.target._targets import Target, gpu_target_config

_FORMAT = 4
_CACHE_LIMIT_BYTES = 4 << 30
_PRUNED_SHARE = 0.9  # of the limit is left, so that the next write need not look again
_MOST_ENTRY_BYTES = 1 << 30
_MOST_LIST_BYTES = 16 << 20

_FOLDER = "revremat-compiles"
_MARKER = "CACHEDIR.TAG"  # which backups know: bford.info/cachedir
_SIGNATURE = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# Made by revremat, which removes files of its own from this folder.\n"
)
_ENTRY = re.compile(r"[0-9a-f]{64}\.zip")
_NEW = ".new-"
_UNFINISHED = re.compile(re.escape(_NEW) + r"[a-z0-9_]{8}")
_ABOUT, _HLO = "about.json", "hlo.pb"


def cache_folder() -> Path:
    """Our own folder, in `$REVREMAT_CACHE` or else in the user's cache folder.

    Only in this folder is anything read, written or removed, and only if it holds the
    marker that it was made with: whatever else lies in the folder that the variable
    names is somebody's.

    Example:
      >>> from revremat import xla
      >>> xla.cache_folder().name
      'revremat-compiles'
    """
    return folder_of("REVREMAT_CACHE", "") / _FOLDER


def fingerprint(
    lowered: Any, target: Target, options: Mapping[str, Any], placed: Any
) -> str:
    """A hash of everything that a compile depends on, or that is told of it."""
    leaves = jax.tree.leaves(placed)
    match target.platform:
        case "cuda":
            machine = gpu_target_config(target)
        case "cpu":
            machine = _instruction_set()
        case _:
            machine = target.spec
    parts = {
        "format": _FORMAT,
        "target": [target.platform, target.num_hosts, target.devices_per_host],
        "present": target.present,
        "machine": machine,
        "devices": sorted({str(_device_ids(leaf)) for leaf in leaves}),
        "options": sorted((k, str(v)) for k, v in options.items()),
        "settings": compile_settings(lowered),
        "flags": [os.environ.get(n, "") for n in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")],
        "versions": versions(),
        "module": module_digest(lowered),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@functools.cache
def _instruction_set() -> str:
    """What this machine's CPU can do: its compiler makes use of all of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    kinds = ("model name", "flags", "Features", "CPU part")
    found = sorted({line for line in lines if line.startswith(kinds)})
    return "\n".join([platform.machine(), platform.processor(), *found])


def _device_ids(leaf: Any) -> tuple[int, ...]:
    sharding = leaf.sharding
    if hasattr(sharding, "mesh"):
        return tuple(d.id for d in sharding.mesh.devices.flat)
    return tuple(sorted(d.id for d in sharding.device_set))


def read(key: str) -> Artifact | None:
    """The compile that was kept under this key.

    Returns:
      None where there is none. What lies in its place and is damaged in any way, or is
      no file, is removed.
    """
    folder = cache_folder()
    if not _is_own_folder(folder):
        return None
    path = folder / _entry(key)
    try:
        data = read_bytes(path, most=_MOST_ENTRY_BYTES, follow=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        # A link, something that is no file, or larger than anything that is written;
        # whatever else is wrong may be right the next time.
        is_other = isinstance(error, NotRegularError)
        if is_other or error.errno in (errno.ELOOP, errno.EFBIG):
            _remove(path)
        return None
    try:
        found = _read_entry(data, key)
    except Exception:  # damaged: a zip file can be wrong in very many ways
        _remove(path)
        return None
    with contextlib.suppress(OSError):  # where nothing can be written
        os.utime(path)  # the latest used ones are kept longest
    return found


def _read_entry(data: bytes, key: str) -> Artifact:
    """Raises whatever there is to raise where anything is not as it was written."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        sizes = [archive.getinfo(name).file_size for name in (_ABOUT, _HLO)]
        if sum(sizes) > _MOST_ENTRY_BYTES:
            raise ValueError("nothing as large is ever written")
        about = json.loads(archive.read(_ABOUT))
        hlo = archive.read(_HLO)
    digest = about.pop("digest")
    if digest != _digest(about, hlo) or about["key"] != key:
        raise ValueError("it is not what was written")
    return Artifact(
        hlo,
        about["stats"],
        about["seconds"],
        True,
        about["versions"],
        tuple(about["remarks"]),
    )


def write(key: str, artifact: Artifact) -> None:
    """Keeps a compile, and lets the oldest ones go where there are too many."""
    about = {
        "key": key,
        "stats": dict(artifact.stats),
        "seconds": artifact.seconds,
        "versions": artifact.versions,
        "remarks": artifact.remarks,
    }
    about["digest"] = _digest(about, artifact.hlo)
    written = json.dumps(about)
    if len(written) + len(artifact.hlo) > _MOST_ENTRY_BYTES:
        return

    def fill(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            # Not compressed, so that a file of ours is known by how it begins.
            archive.writestr(_ABOUT, written, zipfile.ZIP_STORED)
            archive.writestr(_HLO, artifact.hlo, zipfile.ZIP_DEFLATED, 1)

    if _replace(_entry(key), fill):
        with contextlib.suppress(OSError):
            _prune(cache_folder())


def read_list(name: str) -> frozenset[str]:
    """The words of a list that was kept under this name; none where there is none."""
    folder = cache_folder()
    if not _is_own_folder(folder):
        return frozenset()
    try:
        data = read_bytes(folder / _list(name), most=_MOST_LIST_BYTES, follow=False)
        return frozenset(data.decode().split())
    except (OSError, UnicodeDecodeError):
        return frozenset()


def write_list(name: str, words: Iterable[str]) -> None:
    """Keeps a list of words in place of what was kept under this name."""
    data = "\n".join(sorted(words)).encode() + b"\n"
    if len(data) <= _MOST_LIST_BYTES:
        _replace(_list(name), lambda file: file.write(data))


def _entry(key: str) -> str:
    return f"{key}.zip"


def _list(name: str) -> str:
    return f"{name}.txt"


def _digest(about: Mapping[str, Any], hlo: bytes) -> str:
    text = json.dumps(about, sort_keys=True)
    return hashlib.sha256(text.encode() + b"\0" + hlo).hexdigest()


def _is_own_folder(folder: Path) -> bool:
    """Whether a folder is one that we made: no link, and with our marker in it."""
    try:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            return False
        return read_bytes(folder / _MARKER, most=4096, follow=False) == _SIGNATURE
    except OSError:
        return False


def _make_own_folder() -> Path:
    """Our folder; made with its marker, or not at all.

    Raises:
      OSError: It cannot be made, or there is something else in its place.
    """
    folder = cache_folder()
    if _is_own_folder(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = folder.parent / f".{folder.name}-{secrets.token_hex(8)}"
    made.mkdir()
    try:
        (made / _MARKER).write_bytes(_SIGNATURE)
        os.replace(made, folder)  # takes the place of an empty folder, of no other
    except OSError:
        (made / _MARKER).unlink(missing_ok=True)
        made.rmdir()
        if not _is_own_folder(folder):  # unless another process was faster
            raise
    return folder


def _replace(name: str, fill: Callable[[BinaryIO], Any]) -> bool:
    """Writes a file of our folder, whole or not at all; says whether it could."""
    try:
        folder = _make_own_folder()
        handle, new = tempfile.mkstemp(dir=folder, prefix=_NEW)
        try:
            with os.fdopen(handle, "wb") as file:
                fill(file)
            os.replace(new, folder / name)
        except BaseException:
            Path(new).unlink(missing_ok=True)
            raise
    except OSError:
        return False  # a cache that cannot be written only costs time
    return True


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # a folder stays, too
        path.unlink(missing_ok=True)


def _prune(folder: Path) -> None:
    entries: list[tuple[float, int, Path]] = []
    abandoned = time.time() - ABANDONED_S
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process prunes, too
            found = os.lstat(path)
            if not stat.S_ISREG(found.st_mode):
                continue
            if _ENTRY.fullmatch(path.name):
                entries.append((found.st_mtime, found.st_size, path))
            elif (
                _UNFINISHED.fullmatch(path.name)
                and found.st_mtime < abandoned
                and _begins_as_ours(path)
            ):
                _remove(path)
    if sum(size for _, size, _ in entries) <= _CACHE_LIMIT_BYTES:
        return
    own = [entry for entry in entries if _begins_as_ours(entry[2], entry[2].stem)]
    excess = sum(size for _, size, _ in own) - _PRUNED_SHARE * _CACHE_LIMIT_BYTES
    for _, size, oldest in sorted(own):
        if excess <= 0:
            break
        excess -= size
        _remove(oldest)


def _begins_as_ours(path: Path, key: str = "") -> bool:
    """Whether we wrote a file: a zip that begins with what it is, in plain text."""
    try:
        with open_regular(path, follow=False) as file:
            head = file.read(200)
    except OSError:
        return False
    start = f'{_ABOUT}{{"key": "{key}'.encode()
    return head.startswith(b"PK\x03\x04") and head[30 : 30 + len(start)] == start
