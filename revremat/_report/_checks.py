"""What tables and pages are made of: measurements, and at least one."""

from typing import Any

from revremat._errors import UserError
from revremat._measurement import Measurement


def check_measurements(result: Any, form: str) -> None:
    """Refuses all but a list of measurements.

    Args:
      result: What was handed over.
      form: What is to be made of it, such as `a page`.

    Raises:
      UserError: It is something else, or an empty list.
    """
    listed = isinstance(result, list | tuple)
    if listed and not result:
        raise UserError(f"the list is empty: {form} needs a measurement")
    others = [one for one in (result if listed else [result]) if not _is_one(one)]
    if others:
        kind = type(others[0]).__name__
        raise UserError(
            f"{form} is made of measurements, and this is a {kind}: write each "
            f"{kind} by itself, to *.txt or *.json"
        )


def _is_one(result: Any) -> bool:
    return isinstance(result, Measurement)
