"""Problems and answers as CSV files, in minimalloc's columns."""

import csv
import io
import os
import re
from collections.abc import Sequence

from revremat._errors import UserError
from revremat._io._files import read_text, write_text
from revremat.allocation._problem import AllocationProblem, Buffer

_NEEDED = ("id", "lower", "upper", "size")
_OPTIONAL = ("alignment", "group", "stream", "offset")
_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")


def read_problem(path: str | os.PathLike) -> AllocationProblem:
    """Reads buffers from a CSV file.

    The columns are `id`, `lower`, `upper` (exclusive) and `size`, and optionally
    `alignment`, `group` and `stream`; an `offset` column is ignored. An `end` column
    in place of `upper` is inclusive, as in minimalloc.

    Args:
      path: The file.

    Raises:
      UserError: A file, a column or a cell that cannot be read, or buffers that make no
        problem; the message names the line.

    Example:
      >>> import os, tempfile
      >>> from revremat.allocation import read_problem
      >>> path = os.path.join(tempfile.mkdtemp(), "buffers.csv")
      >>> with open(path, "w") as file:
      ...     print("id,lower,upper,size", "a,0,2,4", "b,1,3,8", sep=chr(10), file=file)
      >>> [buffer.size_bytes for buffer in read_problem(path).buffers]
      [4, 8]
    """
    rows = read_rows(path, "buffers", _NEEDED, _OPTIONAL, {"end": "upper"})
    buffers = []
    for line, row in rows:
        where = f"{path}, line {line}"
        upper = (
            parse_integer(row["upper"], "upper", where)
            if "upper" in row
            else parse_integer(row["end"], "end", where) + 1
        )
        try:
            buffers.append(
                Buffer(
                    row["id"],
                    parse_integer(row["lower"], "lower", where),
                    upper,
                    parse_integer(row["size"], "size", where),
                    parse_integer(row.get("alignment") or "1", "alignment", where),
                    row.get("group", ""),
                    row.get("stream", ""),
                )
            )
        except UserError as error:
            message = str(error)
            raise UserError(
                message if message.startswith(where) else f"{where}: {message}"
            ) from None
    try:
        return AllocationProblem(tuple(buffers))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_rows(
    path: str | os.PathLike,
    what: str,
    needed: Sequence[str],
    optional: Sequence[str],
    instead: dict[str, str],
) -> list[tuple[int, dict[str, str]]]:
    """Rows of a CSV file with their line numbers, once its columns are known to fit.

    Args:
      path: The file.
      what: What its rows are, for messages.
      needed: Columns that must be there.
      optional: Columns that may be there.
      instead: Columns that may stand for a needed one.

    Raises:
      UserError: What cannot be read, in one sentence.
    """
    try:
        text = read_text(path)
    except UnicodeDecodeError:
        raise UserError(f"{path} is no UTF-8 text; give a CSV file") from None
    except OSError as error:
        raise UserError(
            f"{path} cannot be read ({error.strerror}); give a CSV file of {what}"
        ) from None
    if "\0" in text:
        raise UserError(f"{path} holds zero bytes; give a CSV file of {what}")
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    rows = []
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header, what, needed, optional, instead)
        for cells in reader:
            if not cells:
                continue
            if len(cells) != len(header):
                raise UserError(
                    f"{path}, line {reader.line_num}: {len(cells)} cells under "
                    f"{len(header)} columns; fill in all of them"
                )
            cells = [cell.strip() for cell in cells]
            rows.append((reader.line_num, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num}: {error}") from None
    return rows


def _check_header(path, header, what, needed, optional, instead):
    repeated = {name for name in header if header.count(name) > 1}
    if repeated:
        raise UserError(f"{path} has the column {min(repeated)!r} twice; keep one")
    known = (*needed, *optional, *instead)
    for name in header:
        if name not in known:
            raise UserError(
                f"{path} has a column {name!r} that is not known for {what}; "
                f"use {', '.join(known)}"
            )
    for name in needed:
        stand_ins = [other for other, meant in instead.items() if meant == name]
        present = [n for n in (name, *stand_ins) if n in header]
        if not present:
            raise UserError(
                f"{path} has no column {name!r}; {what} need {', '.join(needed)}"
            )
        if len(present) > 1:
            raise UserError(f"{path} has both {present[0]!r} and {present[1]!r}")


def parse_integer(cell: str, column: str, where: str) -> int:
    """A whole number from a cell; `where` names the place for the message."""
    if not _INTEGER.fullmatch(cell):
        shown = cell if len(cell) <= 40 else cell[:37] + "..."
        raise UserError(
            f"{where}: {shown!r} under {column!r} is not a whole number of at most 30 "
            "digits"
        )
    return int(cell)


def write_offsets(
    path: str | os.PathLike, source: str | os.PathLike, offsets: Sequence[int]
) -> None:
    """Writes the rows of `source` with an `offset` column, or none of them.

    Args:
      path: What is written.
      source: The file that the problem came from.
      offsets: In bytes, in the order of the rows.

    Raises:
      UserError: A file that cannot be written.

    Example:
      >>> import os, tempfile
      >>> from revremat.allocation import write_offsets
      >>> path = os.path.join(tempfile.mkdtemp(), "buffers.csv")
      >>> with open(path, "w") as file:
      ...     print("id,lower,upper,size", "a,0,2,4", "b,1,3,8", sep=chr(10), file=file)
      >>> write_offsets(path, path, [8, 0])
      >>> print(open(path).read().split()[0])
      id,lower,upper,size,offset
    """
    text = read_text(source)
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader)
    old = [i for i, name in enumerate(header) if name.strip() == "offset"]
    rows = [[c for i, c in enumerate(row) if i not in old] for row in reader if row]
    kept = [name for i, name in enumerate(header) if i not in old]
    lines = [[*kept, "offset"]]
    lines += [[*row, str(offset)] for row, offset in zip(rows, offsets, strict=True)]
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator="\n").writerows(lines)
    write_text(path, written.getvalue())
