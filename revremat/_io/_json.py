"""JSON that somebody hands over: parsed within bounds, or refused with a reason."""

import json
import re
from collections.abc import Mapping
from typing import Any

MOST_BYTES = 2**63 - 1
"""The largest number of bytes there is: XLA counts them in 64 bits, with a sign."""

_MOST_DIGITS = 19  # of such a number
_LONG = re.compile(r"\d{19}")


def parse_json(text: str) -> Any:
    """What JSON text says, if its numbers are finite and of 64 bits.

    Raises:
      ValueError: It is no JSON, is nested too deeply, or holds another number; a short
        reason that can follow "it is not JSON:".

    >>> parse_json('{"schema": 1}')
    {'schema': 1}
    >>> parse_json("[NaN]")
    Traceback (most recent call last):
    ...
    ValueError: it holds the number NaN, which is none
    """
    # The check of every number is a good part of the time, and few texts need it.
    integer = _integer if _LONG.search(text) else None
    try:
        return json.loads(
            text, parse_int=integer, parse_float=_float, parse_constant=_constant
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def schema_of(data: Any, newest: int) -> int:
    """The schema version of a JSON object.

    Raises:
      ValueError: There is none, or this revremat does not know it.
    """
    schema = data.get("schema") if isinstance(data, dict) else None
    if type(schema) is not int:
        raise ValueError("it has no schema version")
    if schema > newest:
        raise ValueError(
            f"it has schema version {schema} and this revremat reads versions up to "
            f"{newest}; install a newer revremat"
        )
    if schema < 1:
        raise ValueError(
            f"it has schema version {schema}, which there is not; versions are 1 to "
            f"{newest}"
        )
    return schema


def renamed_keys(data: Any, names: Mapping[str, str]) -> Any:
    """JSON with new names for the keys of an older schema, at every depth.

    >>> renamed_keys({"units": [{"dear": True}]}, {"dear": "compute_intensive"})
    {'units': [{'compute_intensive': True}]}
    """
    if isinstance(data, dict):
        return {names.get(k, k): renamed_keys(v, names) for k, v in data.items()}
    if isinstance(data, list):
        return [renamed_keys(one, names) for one in data]
    return data


def _integer(digits: str) -> int:
    if len(digits.lstrip("-")) <= _MOST_DIGITS and abs(found := int(digits)) <= (
        MOST_BYTES
    ):
        return found
    raise ValueError(
        f"it holds a number of {len(digits.lstrip('-'))} digits, which is beyond 64 "
        "bits"
    )


def _float(digits: str) -> float:
    if abs(found := float(digits)) < float("inf"):
        return found
    raise ValueError(f"it holds the number {digits[:20]}, which is beyond 64 bits")


def _constant(name: str) -> float:
    raise ValueError(f"it holds the number {name}, which is none")


def typed(data: dict[str, Any], key: str, kind: Any) -> Any:
    """The value of a key, which is there and of a kind; numbers are not negative.

    Raises:
      ValueError: What is wrong with it.
    """
    if not isinstance(data, dict) or key not in data:
        raise ValueError(f"{key!r} is missing")
    value = data[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{key!r} is {value!r}")
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{key!r} is {value!r}")
    return value


def flag(data: dict[str, Any], key: str) -> bool:
    """True or False; False where there is no such key.

    Raises:
      ValueError: It is something else.
    """
    value = data.get(key, False)  # Older schemas have fewer of them.
    if not isinstance(value, bool):
        raise ValueError(f"{key!r} is {value!r}")
    return value


def names(data: dict[str, Any], key: str) -> tuple[str, ...]:
    """A list of strings.

    Raises:
      ValueError: It is missing, or something else.
    """
    found = typed(data, key, list)
    if not all(isinstance(name, str) for name in found):
        raise ValueError(f"{key!r} is {found!r}")
    return tuple(found)
