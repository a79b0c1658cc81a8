"""Files that are there in whole or not at all, and folders that one run holds.

Of the standard library alone.
"""

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has none, nor is anything held there
    fcntl = None


def write_whole(file: Path, text: str) -> Path:
    """Replace a file by a whole new one, or leave it as it was; returns the file."""
    temporary = file.with_name(file.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)
    return file


class Hold:
    """A folder that this run is at work in, until it is closed or its process ends.

    Args:
      folder: Is there; a file `.lock` is made in it.

    Raises:
      OSError: Somebody else is at work in it. Where the file system cannot tell, nobody
        is.
    """

    _file = -1

    def __init__(self, folder: Path):
        self._file = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return  # NFS without locks, for one
            self.close()
            raise OSError(
                error.errno,
                "another run is at work in this folder: wait for its end, or choose "
                "another --train.dir",
            ) from None

    def close(self) -> None:
        """Lets go of it; the file stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()
