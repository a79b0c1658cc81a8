"""How one program is run in several ways, by plans that were made beforehand."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import revremat as rr
from experiments.calibrate import plan_files
from experiments.calibrate.plan_files import Json


class Mismatch(ValueError):
    """A plan made beforehand is of another program than the one that is here."""


@dataclass(frozen=True)
class Variant:
    """One way to run a program.

    Attributes:
      name: What tables call it.
      loss: The program's loss with the plan applied.
      predicted: Of the file: `bytes`, `estimate_us` and `tuning`, which says in words
        what the compile knew of it; empty without one.
    """

    name: str
    loss: Callable[..., Any]
    predicted: Json


def fingerprint(problem: rr.Problem) -> str:
    """The program's fingerprint here, as plans hold it."""
    return rr.trace(problem).fingerprint


def variants(
    problem: rr.Problem,
    made: Json | None,
    is_wanted: Callable[[str], bool] = lambda name: True,
) -> list[Variant]:
    """The ways to run a program that were made beforehand.

    Args:
      problem: The program.
      made: What `read` found; None gives the baseline alone.
      is_wanted: Which, by name; all by default.

    Raises:
      Mismatch: The program here is another one: what both fingerprints are.
    """
    if made is None:
        return [Variant("baseline", problem.loss, {})]
    here = fingerprint(problem)
    if here != made["fingerprint"]:
        raise Mismatch(
            f"the plans are of a program with the fingerprint {made['fingerprint']}, "
            f"this one has {here}: make them anew"
        )
    found = []
    for one in made["variants"]:
        if not is_wanted(one["name"]):
            continue
        loss = problem.loss
        if one["plan"] is not None:
            loss = rr.apply(loss, rr.Plan.from_json(json.dumps(one["plan"])))
        predicted = {key: one[key] for key in ("bytes", "estimate_us")}
        predicted["tuning"] = plan_files.how(made["tuning"], one["untuned"])
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
