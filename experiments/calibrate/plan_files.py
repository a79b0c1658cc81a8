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


def planned_bytes(made: Json | None) -> int | None:
    """What the searched plan takes, by its ahead-of-time compile; None without one."""
    found = [v for v in (made or {}).get("variants", ()) if is_searched(v["name"])]
    return found[-1]["bytes"] if found else None


def is_searched(variant: str) -> bool:
    """Whether a variant's plan was searched, by its name."""
    return variant.startswith("searched")
