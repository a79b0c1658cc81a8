"""Tables as text: columns side by side."""

from collections.abc import Iterable, Sequence


def columns(rows: Iterable[Sequence[str]]) -> str:
    """Rows of as many cells each, those of a column as wide as its widest.

    >>> print(columns([("plan", "bytes"), ("save all", "2 GiB")]))
    plan      bytes
    save all  2 GiB
    """
    listed = list(rows)
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    return "\n".join(
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in listed
    )
