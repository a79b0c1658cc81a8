"""How one program is run in several ways: plans made beforehand, held to the program.

What `plans/NAME.json` holds was compiled ahead of time for another device or this one.
Its bytes and times are predictions, and are called so wherever they are written.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import revremat as rr
from experiments.calibrate.programs import Scale

PLANS = Path(__file__).parent / "plans"

Json = dict[str, Any]


class Mismatch(ValueError):
    """A plan made beforehand is of another program than the one that is here."""


@dataclass(frozen=True)
class Variant:
    """One way to run a program.

    Attributes:
      name: What tables call it.
      loss: The program's loss with the plan applied.
      predicted: Of the file: `bytes` and `estimate_us`; empty without one.
    """

    name: str
    loss: Callable[..., Any]
    predicted: Json


def read(program: str, scale: Scale, folder: Path = PLANS) -> Json | None:
    """What was made beforehand of a program in a scale; None where nothing was.

    Returns:
      `target`, `jax`, `fingerprint` and `variants`, each of which has `name`, `bytes`,
      `estimate_us` and `plan` (None for the baseline).
    """
    try:
        text = (folder / f"{program}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    return json.loads(text)["scales"].get(scale)


def fingerprint(problem: rr.Problem) -> str:
    """The program's fingerprint here, as plans hold it."""
    return rr.trace(problem).fingerprint


def variants(
    problem: rr.Problem, made: Json | None, names: tuple[str, ...] = ()
) -> list[Variant]:
    """The ways to run a program that were made beforehand.

    Args:
      problem: The program.
      made: What `read` found; None gives the baseline alone.
      names: Which; all by default.

    Raises:
      Mismatch: The program here is another one: what both fingerprints are.
    """
    if made is None:
        return [Variant("baseline", problem.loss, {})]
    # Without a plan there is nothing to hold to the program but its bytes.
    here = fingerprint(problem) if made["fingerprint"] else None
    if here != made["fingerprint"]:
        raise Mismatch(
            f"the plans are of a program with the fingerprint {made['fingerprint']}, "
            f"this one has {here}: make them anew"
        )
    found = []
    for one in made["variants"]:
        if names and one["name"] not in names:
            continue
        loss = problem.loss
        if one["plan"] is not None:
            loss = rr.apply(loss, rr.Plan.from_json(json.dumps(one["plan"])))
        predicted = {key: one[key] for key in ("bytes", "estimate_us")}
        found.append(Variant(one["name"], loss, predicted))
    return found


def bytes_of(compiled: Any) -> int:
    """What a compiled step takes, by its own account."""
    stated = compiled.memory_analysis()
    return (
        stated.argument_size_in_bytes
        + stated.output_size_in_bytes
        - stated.alias_size_in_bytes
        + stated.temp_size_in_bytes
    )
