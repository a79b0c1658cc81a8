"""Files: written whole or not at all."""

import errno
import os
import tempfile
from pathlib import Path

from revremat._errors import UserError


def write_text(path: str | Path, text: str) -> Path:
    """Writes a text file; a reader sees the old file or the new one, nothing between.

    Args:
      path: Where; its folder must exist.
      text: What.

    Returns:
      The path.

    Raises:
      UserError: The place cannot be written; nothing is left behind.
    """
    path = Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror}") from None
    return path


def check_place(path: str | Path) -> None:
    """Finds out early whether `write_text` could write here.

    Raises:
      UserError: As `write_text` would; nothing is left behind.
    """
    path = Path(path)
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror}") from None
