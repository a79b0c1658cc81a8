"""Frontier: what less memory costs in time, point by point."""

import dataclasses
import json
from dataclasses import dataclass

from revremat._io._json import parse_json, schema_of
from revremat._io._notebook import InNotebooks
from revremat._io._types import check_types

SCHEMA_VERSION = 2
_FIRST_BASELINE = "as written"
"""What the first schema called the baseline."""
KINDS = ("baseline", "preset", "searched", "compiled")


@dataclass(frozen=True)
class Point:
    """One whole program that was compiled.

    Attributes:
      name: What it does, layers counted: `12 x save all, 12 x recompute all`.
      kind: `"baseline"`, `"preset"`, `"searched"` (what a search returned for a
        budget), or `"compiled"` for all else that was compiled on the way.
      bytes: Per device.
      step_us: Estimated time of a step.
      budget_bytes: The largest budget it is the answer for; None if it is no answer.
      plan: The plan as `Plan.to_json` writes it; "" for the baseline, the program
        without a plan.
    """

    name: str
    kind: str
    bytes: int
    step_us: float
    budget_bytes: int | None = None
    plan: str = ""


@dataclass(frozen=True)
class Frontier(InNotebooks):
    """Time against memory of one program on one target.

    Attributes:
      program: What it is called.
      target: The target's name.
      usable_bytes: Of one device.
      points: Everything compiled whole, by bytes.
      num_compiles: Programs compiled or read from the cache.

    Example:
      >>> import revremat as rr
      >>> from revremat._frontier import Point
      >>> point = Point("dots", "preset", bytes=2**20, step_us=12.0, budget_bytes=None)
      >>> rr.Frontier("mlp", "cpu:1", 2**30, (point,), num_compiles=1).points[0].name
      'dots'
    """

    program: str
    target: str
    usable_bytes: int
    points: tuple[Point, ...]
    num_compiles: int

    @property
    def best(self) -> tuple[Point, ...]:
        """The points that no other beats in both bytes and time, by bytes.

        >>> slow, fast = Point("a", "preset", 1, 9.0), Point("b", "preset", 2, 5.0)
        >>> worse = Point("c", "preset", 3, 6.0)
        >>> [p.name for p in Frontier("", "", 9, (slow, fast, worse), 3).best]
        ['a', 'b']
        """
        found: list[Point] = []
        for point in sorted(self.points, key=lambda p: (p.bytes, p.step_us)):
            if not found or point.step_us < found[-1].step_us:
                found.append(point)
        return tuple(found)

    def to_json(self) -> str:
        """One JSON object with a schema version; `from_json` reads it back."""
        return json.dumps(
            {"schema": SCHEMA_VERSION, **dataclasses.asdict(self)}, indent=1
        )

    @staticmethod
    def from_json(text: str) -> "Frontier":
        """Reads what `to_json` wrote.

        Raises:
          ValueError: The text is no frontier, or one of a newer schema.
        """
        try:
            data = parse_json(text)
            schema = schema_of(data, SCHEMA_VERSION)
            del data["schema"]
            points = tuple(Point(**point) for point in data.pop("points"))
            if schema < 2:
                points = tuple(map(_of_first_schema, points))
            found = Frontier(**data, points=points)
            check_types(found)
            return found
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a frontier: {error}") from None


def _of_first_schema(point: Point) -> Point:
    if point.kind != _FIRST_BASELINE:
        return point
    return dataclasses.replace(point, name=KINDS[0], kind=KINDS[0])
