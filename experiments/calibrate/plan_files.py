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
      `target`, `jax`, `tuning` (the run whose tuning the compiles took; None without),
      `fingerprint` and `variants`, each of which has `name`, `bytes`, `estimate_us`,
      `untuned` (how many kernels are not in the tuning, "" for none) and `plan` (None
      for the baseline).
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
    least = sorted(planned, key=lambda v: v["bytes"])[:1]
    return searched(made) or (least or [None])[0]


def searched(made: Json | None) -> Json | None:
    """The variant whose plan was searched; None without one."""
    found = [v for v in (made or {}).get("variants", ()) if is_searched(v["name"])]
    return (found or [None])[-1]


def how(tuning: str | None, untuned: str) -> str:
    """With which choices of kernels bytes were said ahead of time, in words.

    >>> how("h100", "2 of 30")
    'with the tuning of h100, which lacks 2 of 30 kernels'
    >>> how(None, "")
    'without tuning'
    """
    if tuning is None:
        return "without tuning"
    lacks = f", which lacks {untuned} kernels" if untuned else ""
    return f"with the tuning of {tuning}{lacks}"


def is_searched(variant: str) -> bool:
    """Whether a variant's plan was searched, by its name."""
    return variant.startswith("searched")
