"""Files: read within bounds, written whole or not at all."""

import errno
import os
import stat
import tempfile
from pathlib import Path
from typing import BinaryIO

from revremat._errors import UserError

MOST_TEXT_BYTES = 128 << 20
"""Of a text file that somebody hands over: ten times the largest report known."""


def _known(*names: str) -> int:
    """Flags of these names, those that the system has."""
    return sum(getattr(os, name, 0) for name in names)


# A pipe that nobody writes to is opened at once.
_FLAGS = os.O_RDONLY | _known("O_CLOEXEC", "O_BINARY", "O_NOCTTY", "O_NONBLOCK")
_NO_LINKS = _known("O_NOFOLLOW")


class NotRegularError(OSError):
    """A folder, a pipe or a device where a file is to be."""


def open_regular(path: str | os.PathLike, *, follow: bool = True) -> BinaryIO:
    """Opens a file to read its bytes, if it is a regular one; never waits for others.

    Args:
      path: Where it is.
      follow: Whether the last part of the path may be a link.

    Raises:
      OSError: It cannot be opened, or is a folder, a pipe or a device.
    """
    handle = os.open(path, _FLAGS | (0 if follow else _NO_LINKS))
    try:
        kind = os.fstat(handle).st_mode
        if stat.S_ISDIR(kind):
            raise NotRegularError(errno.EISDIR, "it is a folder")
        if not stat.S_ISREG(kind):
            raise NotRegularError(errno.EINVAL, "it is a pipe or a device, not a file")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: str | os.PathLike, *, most: int, follow: bool = True) -> bytes:
    """The bytes of a regular file, if they are few enough.

    Args:
      path: Where it is.
      most: Bytes that are read at most; a larger file is not read at all.
      follow: Whether the last part of the path may be a link.

    Raises:
      OSError: It cannot be read, is no file, or is larger.
    """
    with open_regular(path, follow=follow) as file:
        # A file may grow, and those of /proc say that they are empty.
        found = file.read(most + 1) if _size(file) <= most else None
    if found is None or len(found) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes")
    return found


def read_text(path: str | os.PathLike, *, most: int = MOST_TEXT_BYTES) -> str:
    """The UTF-8 text of a regular file that somebody hands over.

    Args:
      path: Where it is; links are followed.
      most: Bytes that are read at most.

    Raises:
      OSError: It cannot be read, is no file, or is larger.
      UnicodeDecodeError: It is not text.
    """
    return read_bytes(path, most=most).decode("utf-8-sig")


def _size(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def folder_of(variable: str, default: str) -> Path:
    """A folder that an environment variable names; an empty one names none.

    Args:
      variable: Its name.
      default: The folder under `~/.cache/revremat` that is taken instead.
    """
    if named := os.environ.get(variable, "").strip():
        return Path(named)
    home = os.path.expanduser("~")
    if home == "~":  # a user without a home: a place where nothing can be kept
        home = os.devnull
    return Path(home, ".cache", "revremat", default)


def write_text(path: str | os.PathLike, text: str) -> Path:
    """Writes a text file; a reader sees the old file or the new one, nothing between.

    A link is followed: the file that it names is written, and the link stays.

    Args:
      path: Where; its folder must exist.
      text: What.

    Returns:
      The path.

    Raises:
      UserError: The place cannot be written; nothing is left behind.
    """
    try:
        place = _place(path)
        handle, name = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name[:99]}-")
        try:
            # A half of a surrogate pair, as in names that are no text, has no UTF-8.
            with os.fdopen(
                handle, "w", encoding="utf-8", errors="backslashreplace"
            ) as file:
                file.write(text)
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(name, 0o666 & ~mask)
            os.replace(name, place)
        except BaseException:
            os.unlink(name)
            raise
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from None
    return Path(path)


def check_place(path: str | os.PathLike) -> None:
    """Finds out early whether `write_text` could write here.

    Raises:
      UserError: As `write_text` would; nothing is left behind.
    """
    try:
        with tempfile.TemporaryFile(dir=_place(path).parent):
            pass
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from None


def _place(path: str | os.PathLike) -> Path:
    """Where a path leads, if there is a regular file or nothing yet.

    Raises:
      OSError: There is a folder, or a device or a pipe that a file would take away.
      ValueError: No path has zero bytes.
    """
    place = Path(os.path.realpath(path))
    try:
        kind = os.stat(place).st_mode
    except FileNotFoundError:
        return place
    if stat.S_ISDIR(kind):
        raise NotRegularError(errno.EISDIR, "Is a directory")
    if not stat.S_ISREG(kind):
        raise NotRegularError(errno.EINVAL, "it is a pipe or a device, not a file")
    return place


def _cannot_write(path: str | os.PathLike, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or str(error)
    return UserError(f"cannot write {str(path)!r}: {reason}")
