"""Whether what was read from a file is what a record says it holds."""

import dataclasses
import types
import typing
from typing import Any


def check_types(record: Any, where: str = "") -> None:
    """Compares every field of a dataclass with its type, and so on inside.

    Raises:
      TypeError: One has another type; says which, and what it is.

    Example:
      >>> @dataclasses.dataclass
      ... class Size:
      ...     bytes: int
      >>> check_types(Size("x"))
      Traceback (most recent call last):
      ...
      TypeError: bytes is 'x', not int
    """
    hints = typing.get_type_hints(type(record))
    for field in dataclasses.fields(record):
        name, value = f"{where}{field.name}", getattr(record, field.name)
        if not _is(value, hints[field.name], name):
            wanted = getattr(hints[field.name], "__name__", str(hints[field.name]))
            raise TypeError(f"{name} is {value!r:.60}, not {wanted}")


def _is(value: Any, wanted: Any, name: str) -> bool:
    inside = typing.get_args(wanted)
    if isinstance(wanted, types.UnionType):
        return any(_is(value, one, name) for one in inside)
    if typing.get_origin(wanted) is tuple:
        if not isinstance(value, tuple):
            return False
        if inside[1:] == (...,):
            return all(
                _is(one, inside[0], f"{name}[{k}]") for k, one in enumerate(value)
            )
        pairs = zip(value, inside, strict=False)
        return len(value) == len(inside) and all(_is(*pair, name) for pair in pairs)
    if dataclasses.is_dataclass(wanted):
        if type(value) is not wanted:
            return False
        check_types(value, f"{name}.")
        return True
    if wanted is float:
        return type(value) in (int, float)
    return type(value) is wanted
