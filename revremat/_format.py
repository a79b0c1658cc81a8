"""Bytes as people write and read them."""

import operator
import re
from typing import Any

from revremat._errors import UserError

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_MOST_BYTES = 2**63 - 1
"""XLA counts them in 64 bits, with a sign."""


def parse_bytes(text: int | str, *, usable_bytes: int | None = None) -> int:
    """A number of bytes from an int, `"60GiB"`, or a share of what is usable.

    Args:
      text: An int is bytes; text is a number with a unit, or `"75%"`.
      usable_bytes: What a percentage is of.

    Returns:
      Bytes.

    Raises:
      UserError: The text is no such thing.

    >>> parse_bytes("1.5 GiB")
    1610612736
    >>> parse_bytes("50%", usable_bytes=1000)
    500
    """
    if (size := _integer(text)) is not None:
        if size <= 0:
            raise UserError(
                f"a budget of {size} bytes is not above zero: write a positive one"
            )
        return size
    match = re.fullmatch(r"\s*(-?\d+(?:\.\d+)?)\s*([a-zA-Z%]*)\s*", str(text))
    number, unit = (float(match[1]), match[2].lower()) if match else (1.0, "?")
    share = usable_bytes if unit == "%" else None
    size = number * _UNITS.get(unit, 1) if share is None else share * number / 100
    wrong = ""
    if share is None and unit not in _UNITS:
        wrong = "has no unit" if unit == "" else "is no number of bytes"
    elif number <= 0:
        wrong = "is not above zero"
    elif share is not None and number > 100:
        wrong = "is more than there is"
    elif not 1 <= size <= _MOST_BYTES:
        wrong = "is less than a byte" if size < 1 else "is beyond 64 bits"
    if wrong:
        raise UserError(
            f"{text!r} {wrong}: write one like '60GiB', '512MiB' or '75%' (of the "
            "usable memory)"
        )
    return int(size)


def _integer(number: Any) -> int | None:
    """An int of Python's, NumPy's or JAX's; None for all else."""
    if isinstance(number, bool):
        return None
    try:
        return operator.index(number)
    except TypeError:
        return None


def format_bytes(number: int | float) -> str:
    """Bytes for people: three or four figures and a binary unit.

    Args:
      number: Bytes.

    Example:
      >>> format_bytes(1610612736)
      '1.50 GiB'
    """
    sign, size = ("-" if number < 0 else ""), float(abs(number))
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1000 or unit == "TiB":
            shown = f"{size:.0f}" if unit == "B" else _three_figures(size)
            return f"{sign}{shown} {unit}"
        size /= 1024
    raise AssertionError


def format_us(microseconds: float) -> str:
    """Microseconds for people.

    Args:
      microseconds: A duration.

    Example:
      >>> format_us(43_200)
      '43.2 ms'
    """
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= factor:
            return f"{_three_figures(microseconds / factor)} {unit}"
    return f"{microseconds:.0f} us"


def _three_figures(number: float) -> str:
    """Rounded first: 9.996 is 10.0, not 10.00."""
    shown = f"{number:.2f}"
    for digits, limit in ((1, 10), (0, 100)):
        if float(shown) >= limit:
            shown = f"{number:.{digits}f}"
    return shown
