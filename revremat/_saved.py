"""load: reads back what `write` wrote as JSON; what_is: says what a file is."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from revremat._errors import UserError
from revremat._frontier import Frontier
from revremat._graph import Graph
from revremat._io._files import read_text
from revremat._io._json import parse_json, schema_of
from revremat._io._notebook import InNotebooks
from revremat._io._types import check_types
from revremat._measurement import Measurement
from revremat._plan import Plan

FIT_SCHEMA = 2
"""Of a saved search; 2 has what was dropped and skipped."""


@dataclass(frozen=True)
class TrialRecord:
    """One whole program that a search compiled, as it was saved.

    Attributes:
      name: What it does, layers counted.
      bytes: Per device.
      step_us: Estimated time of a step.
    """

    name: str
    bytes: int
    step_us: float


@dataclass(frozen=True)
class FitRecord(InNotebooks):
    """A `Fit` as it was saved: everything but the loss, which is a function.

    `rr.apply(loss, record.plan)` makes the loss again.

    Attributes:
      plan: The plan.
      measurement: The chosen program on the target.
      rows: Every whole program compiled on the way.
      facts: What else the search knew, by the names of `Fit`'s attributes.

    Example:
      >>> import os, tempfile, jax.numpy as jnp, revremat as rr
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((64, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> fit = rr.fit(loss, w, x, budget="1MiB", target="cpu:1", most_compiles=6)
      >>> path = rr.write(fit, os.path.join(tempfile.mkdtemp(), "fit.json"))
      >>> record = rr.load(path)
      >>> record.plan == fit.plan, rr.apply(loss, record.plan)(w, x) == loss(w, x)
      (True, Array(True, dtype=bool))
    """

    plan: Plan
    measurement: Measurement
    rows: tuple[TrialRecord, ...]
    facts: Mapping[str, Any]

    def to_json(self) -> str:
        """The text that `Fit.to_json` wrote."""
        parts = {
            "schema": FIT_SCHEMA,
            "plan": json.loads(self.plan.to_json()),
            "measurement": json.loads(self.measurement.to_json()),
            "rows": [vars(row) for row in self.rows],
        }
        return json.dumps({**parts, **self.facts}, indent=1)

    @staticmethod
    def from_json(text: str) -> "FitRecord":
        """Reads what `Fit.to_json` wrote.

        Raises:
          ValueError: The text is no such record, or one of a newer schema.
        """
        try:
            data = parse_json(text)
            schema_of(data, FIT_SCHEMA)
            del data["schema"]
            plan, measurement = (
                json.dumps(data.pop(key)) for key in ("plan", "measurement")
            )
            rows = tuple(TrialRecord(**row) for row in data.pop("rows"))
            for row in rows:
                check_types(row)
            return FitRecord(
                Plan.from_json(plan), Measurement.from_json(measurement), rows, data
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a search's result: {error}") from None


@dataclass(frozen=True)
class _Kind:
    """What a JSON file may be.

    Attributes:
      told: What people call it.
      keys: Of its object; no other kind has all of them.
      read: Makes the result of the text; None for what cannot be read back.
    """

    told: str
    keys: frozenset[str]
    read: Callable[[str], Any] | None = None


_PLAN = "a plan"
_WRITES_A_PLAN = "'revremat search PROGRAM --budget BYTES --out FILE' writes one"
_KINDS = (
    _Kind("a search's result", frozenset({"plan", "measurement"}), FitRecord.from_json),
    _Kind(_PLAN, frozenset({"program", "units"}), Plan.from_json),
    _Kind("a report", frozenset({"program", "memory", "time"}), Measurement.from_json),
    _Kind("a frontier", frozenset({"points", "usable_bytes"}), Frontier.from_json),
    _Kind("a graph", frozenset({"units", "fingerprint"}), Graph.from_json),
    _Kind("a lock", frozenset({"entries", "tolerance"})),
    _Kind("a difference that 'revremat diff' wrote", frozenset({"before", "after"})),
)
_SEVERAL = "several reports"
Result = Plan | Measurement | Frontier | Graph | FitRecord


def load(path: str | Path) -> Result | list[Result]:
    """Reads back what `write` wrote as JSON; nothing in the file is executed.

    Args:
      path: A `*.json` file that `rr.write`, `Plan.save` or the command line wrote.

    Returns:
      A `Plan`, `Measurement`, `Graph` or `Frontier`, or a list of them, each equal to
      what was written. A `Fit` is read as a `FitRecord`: its loss is a function.

    Raises:
      UserError: The file cannot be read, is damaged, or is something else; says what.

    Example:
      >>> import tempfile, pathlib, revremat as rr
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     path = pathlib.Path(folder, "plan.json")
      ...     rr.Plan(units=(), program="4f1a").save(path)
      ...     rr.load(path).program
      '4f1a'
    """
    try:
        data = _parsed(path)
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        reason = " ".join(str(error).split())[:100]
        raise UserError(
            f"{str(path)!r} cannot be read as JSON ({reason}): rr.load reads what "
            "rr.write wrote to *.json, rr.read what a compile dumped"
        ) from None
    if isinstance(data, list):
        return [_result(one, path) for one in data]
    return _result(data, path)


def load_plan(path: str | Path) -> Plan:
    """The plan in a file.

    Raises:
      UserError: The file cannot be read, is damaged, or is something else; says what.
    """
    told = what_is(path)
    if told not in ("", _PLAN):
        raise UserError(f"{str(path)!r} is {told}, no plan: {_WRITES_A_PLAN}")
    try:
        return Plan.load(path)
    except UserError as error:
        raise UserError(f"{str(error).rstrip('.')}; {_WRITES_A_PLAN}") from None


def what_is(path: str | Path) -> str:
    """What a file is, such as `a plan`; "" for none of ours, or no file at all."""
    try:
        data = _parsed(path) if Path(path).is_file() else None
    except (OSError, ValueError):
        return ""
    if isinstance(data, list) and data:
        kinds = [_kind(one) for one in data]
        return _SEVERAL if all(k and k.told == "a report" for k in kinds) else ""
    kind = _kind(data)
    return kind.told if kind else ""


def _parsed(path: str | Path) -> Any:
    return parse_json(read_text(path))


def _kind(data: Any) -> _Kind | None:
    keys = data.keys() if isinstance(data, dict) else ()
    return next((kind for kind in _KINDS if kind.keys <= set(keys)), None)


def _result(data: Any, path: str | Path) -> Result:
    kind = _kind(data)
    if kind is None:
        raise UserError(f"{str(path)!r} holds nothing that rr.write writes")
    if kind.read is None:
        raise UserError(f"{str(path)!r} is {kind.told}: rr.load reads no such file")
    try:
        return kind.read(json.dumps(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).removeprefix("the text ").split())[:200]
        raise UserError(
            f"{str(path)!r} is {kind.told} that is damaged: {reason}"
        ) from None
