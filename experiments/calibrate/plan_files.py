"""What was compiled ahead of time, without a card: `plans/NAME.json`.

Its bytes and times are predictions, and are called so wherever they are written. Of the
standard library alone.
"""

import json
from pathlib import Path
from typing import Any

PLANS = Path(__file__).parent / "plans"

Json = dict[str, Any]


def read(program: str, scale: str, folder: Path = PLANS) -> Json | None:
    """What was made beforehand of a program in a scale; None where nothing was.

    Returns:
      `target`, `jax`, `fingerprint` (None where there are no plans) and `variants`,
      each of which has `name`, `bytes`, `estimate_us` and `plan` (None for the
      baseline).
    """
    try:
        text = (folder / f"{program}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return json.loads(text)["scales"].get(scale)


def to_fit(made: Json | None) -> Json | None:
    """The variant that is run with no more memory than it takes.

    The searched one; without one that of least bytes, None where nothing is planned.
    """
    planned = [v for v in (made or {}).get("variants", ()) if v["plan"] is not None]
    searched = [v for v in planned if is_searched(v["name"])]
    least = sorted(planned, key=lambda v: v["bytes"])[:1]
    return (searched or least or [None])[-1]


def is_searched(variant: str) -> bool:
    """Whether a variant's plan was searched, by its name."""
    return variant.startswith("searched")
