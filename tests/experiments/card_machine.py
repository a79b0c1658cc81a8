"""An environment like that of a machine with a card: few packages, and no network."""

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

HAS = (
    *("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt", "numpy", "scipy"),
    *("flax", "optax", "orbax-checkpoint", "chex", "jinja2", "markupsafe", "rich"),
)
"""What is installed there, with what these need."""

CARRIED = ("jaxtyping", "wadler_lindig")
"""What a run brings along, as wheels."""

LACKS = (
    *("tyro", "docstring_parser", "typeguard", "grain", "numba", "llvmlite", "libtpu"),
    *("xprof", "pycocotools", "nvidia_cuda_nvcc", "jaxtyping", "sklearn", "pytest"),
)

NO_NETWORK = """
import sys

def outside(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"):
        address = arguments[1]
        local = not isinstance(address, tuple) or address[0] in (
            "127.0.0.1", "::1", "localhost", ""
        )
        return "" if local else f"{event} to {address}"
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        if arguments[0] not in (None, "localhost", "127.0.0.1", "::1"):
            return f"{event} of {arguments[0]}"
    return ""
"""

_GUARD = """
def _guard(event, arguments):
    if told := outside(event, arguments):
        raise RuntimeError(f"{told}: there is no network")

sys.addaudithook(_guard)
"""

_watched: list[list[str]] = []


def watch_sockets() -> list[str]:
    """From now on, what this process tries to reach on other machines is noted here.

    It goes to the list of the last call. Of Python's sockets alone.
    """
    if not _watched:
        names: dict = {}
        exec(NO_NETWORK, names)

        def note(event: str, arguments: tuple) -> None:
            if event.startswith("socket.") and (
                it := names["outside"](event, arguments)
            ):
                _watched[-1].append(it)

        sys.addaudithook(note)
    _watched.append([])
    return _watched[-1]


def make(folder: Path) -> Path:
    """Makes the environment; returns its Python.

    Packages are links to those of the environment that runs this.
    """
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True
    )
    (site,) = folder.glob("lib/python3.*/site-packages")
    for name in sorted(_needed(HAS)):
        _link(metadata.distribution(name), site)
    (site / "sitecustomize.py").write_text(NO_NETWORK + _GUARD)
    return folder / "bin" / "python"


def alone() -> list[str]:
    """Words before a command that leave it no network, where the system can do that."""
    words = ["unshare", "--map-root-user", "--net"]
    try:
        done = subprocess.run([*words, "true"], capture_output=True)
    except FileNotFoundError:
        return []
    return [] if done.returncode else words


def wheels(folder: Path) -> Path:
    """A folder of wheels that are carried along."""
    folder.mkdir()
    for name in CARRIED:
        found = metadata.distribution(name)
        with zipfile.ZipFile(
            folder / f"{name}-{found.version}-py3-none-any.whl", "w"
        ) as z:
            for file in found.files or ():
                place = Path(str(found.locate_file(file)))
                if ".." not in file.parts and file.suffix != ".pyc":
                    z.write(place, str(file))
    return folder


def _needed(names: Iterable[str]) -> set[str]:
    """Those packages and what they need, except for what is known to lack."""
    found: set[str] = set()
    left = [*names]
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in found or name.replace("-", "_") in LACKS:
            continue
        try:
            requires = metadata.distribution(name).requires or []
        except metadata.PackageNotFoundError:
            continue  # of another platform
        found.add(name)
        left += [
            re.split(r"[\s\[<>=!~;(]", line)[0]
            for line in requires
            if "extra ==" not in line
        ]
    return found


def _link(found: metadata.Distribution, site: Path) -> None:
    for file in found.files or ():
        if ".." in file.parts or file.suffix == ".pth":
            continue
        # Folders that several packages share have links for each of their parts.
        depth = 1
        while depth < len(file.parts) - 1 and not _is_own(found, file.parts[:depth]):
            depth += 1
        place = site.joinpath(*file.parts[:depth])
        if os.path.lexists(place):
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(str(found.locate_file(Path(*file.parts[:depth]))))


def _is_own(found: metadata.Distribution, parts: tuple[str, ...]) -> bool:
    folder = Path(str(found.locate_file(Path(*parts))))
    return parts[0].endswith(".dist-info") or (folder / "__init__.py").exists()
