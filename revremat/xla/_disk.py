"""Compiles on disk, each under a hash of everything that it depends on."""

import contextlib
import functools
import hashlib
import json
import os
import platform
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from revremat._compat import compile_settings
from revremat.xla._artifact import Artifact, versions
from revremat.xla._identity import module_digest
from revremat.xla._targets import Target, gpu_target_config

_FORMAT = 2
_CACHE_LIMIT_BYTES = 4 << 30
_ABANDONED_S = 24 * 60 * 60


def cache_folder() -> Path:
    """Where compiles are kept: `$REVREMAT_CACHE`, or the user's cache folder."""
    default = Path.home() / ".cache" / "revremat" / "compiles"
    return Path(os.environ.get("REVREMAT_CACHE", default))


def fingerprint(
    lowered: Any, target: Target, options: Mapping[str, Any], placed: Any
) -> str:
    """A hash of everything that a compile depends on, or that is told of it."""
    leaves = jax.tree.leaves(placed)
    match target.platform:
        case "cuda":
            machine = gpu_target_config(target.card)
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


def read(path: Path, key: str) -> Artifact | None:
    """A compile that was kept under this key; None where there is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            about = json.loads(archive.read("about.json"))
            if about["key"] != key:
                return None
            path.touch()  # recently used ones are kept longest
            return Artifact(
                archive.read("hlo.pb"),
                about["stats"],
                about["seconds"],
                True,
                about["versions"],
                tuple(about.get("remarks", ())),
            )
    except (OSError, LookupError, ValueError, TypeError, RuntimeError, EOFError):
        return None  # absent or damaged: compiled again and replaced
    except (zipfile.BadZipFile, zlib.error):
        return None


def write(path: Path, key: str, artifact: Artifact) -> None:
    """Keeps a compile, and lets the oldest ones go where there are too many."""
    about = {
        "key": key,
        "stats": dict(artifact.stats),
        "seconds": artifact.seconds,
        "versions": artifact.versions,
        "remarks": artifact.remarks,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        try:
            with (
                os.fdopen(handle, "wb") as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as z,
            ):
                z.writestr("about.json", json.dumps(about))
                z.writestr("hlo.pb", artifact.hlo)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        _prune(path.parent)
    except OSError:
        return  # a cache that cannot be written only costs time


def _prune(folder: Path) -> None:
    files: list[tuple[float, int, Path]] = []
    for path in folder.glob("*.zip"):
        with contextlib.suppress(FileNotFoundError):  # another process prunes, too
            found = path.stat()
            files.append((found.st_mtime, found.st_size, path))
    excess = sum(size for _, size, _ in files) - _CACHE_LIMIT_BYTES
    for _, size, oldest in sorted(files):
        if excess <= 0:
            break
        excess -= size
        oldest.unlink(missing_ok=True)
    for path in left_behind(folder, ".new-*"):
        path.unlink(missing_ok=True)


def left_behind(folder: Path, pattern: str) -> Iterator[Path]:
    """What has not been touched for longer than any compile takes."""
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                yield path
