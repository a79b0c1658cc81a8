"""Folders that XLA dumps a compile to, and what killed processes left of them."""

import contextlib
import functools
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from revremat._io._files import read_bytes

ABANDONED_S = 24 * 60 * 60
"""Longer than any compile takes."""

_PREFIX = "revremat-dump-"
_NAME = re.compile(re.escape(_PREFIX) + r"[a-z0-9_]{8}")
_MARKER = ".revremat"
_SIGNATURE = b"Made by revremat for one compile; it may go when that has ended.\n"


@contextlib.contextmanager
def scratch_folder() -> Iterator[str]:
    """A folder for the dumps of one compile; it goes with all that is in it."""
    _sweep()
    folder = tempfile.mkdtemp(prefix=_PREFIX)
    try:
        Path(folder, _MARKER).write_bytes(_SIGNATURE)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _sweep() -> None:
    """Removes the folders of processes that were killed, once in a process's life."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _NAME.fullmatch(folder.name) and _is_abandoned(folder):
            shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Whether it is ours, as its marker says, and nobody has used it for long."""
    try:
        found = os.lstat(folder)
        return (
            stat.S_ISDIR(found.st_mode)
            and time.time() - found.st_mtime > ABANDONED_S
            and read_bytes(folder / _MARKER, most=4096, follow=False) == _SIGNATURE
        )
    except OSError:
        return False
