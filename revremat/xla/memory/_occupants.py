"""Occupants: whose value a region of memory holds, moment by moment."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from revremat.xla.hlo._origin import Origin, Origins
from revremat.xla.memory._liveness import Region, Value


@dataclass(frozen=True)
class Occupant:
    """The value that says most about a region for a stretch of the schedule.

    Attributes:
      start: The first event of the stretch.
      end: The event after it.
      value: What the region holds; None where the dump defines nothing there.
      origin: What made the value.
    """

    start: int
    end: int
    value: Value | None
    origin: Origin

    @property
    def phase(self) -> str:
        """The part of the step that makes the value."""
        # A copy of an argument is made by the program itself.
        return {"argument": "forward", "": "forward"}.get(
            self.origin.phase, self.origin.phase
        )


def occupants(region: Region, origins: Origins) -> Iterator[Occupant]:
    """A region's occupants in the order of the schedule, without a gap.

    The latest value that is computed counts, not one that only fills memory or is an
    argument's; where there is none such just now, another of the region's values.
    """
    values = region.values
    if not values or region.end <= region.start:
        yield Occupant(region.start, region.end, None, Origin())
        return
    useful = next((v for v in values if _tells(v, origins)), None)
    times = {region.start, *(v.start for v in values), *(v.end for v in values)}
    times = sorted(t for t in times if region.start <= t < region.end)
    alive, coming = [], 0
    for start, end in itertools.pairwise([*times, region.end]):
        alive = [v for v in alive if v.end > start]
        while coming < len(values) and values[coming].start <= start:
            alive.append(values[coming])
            coming += 1
        latest = sorted(alive, key=lambda v: -v.start)
        value = next(
            (v for v in latest if _tells(v, origins)),
            useful or next(iter(latest), values[0]),
        )
        yield Occupant(start, end, value, origins.of(value.instruction, value.index))


def occupant_at(region: Region, event: int, origins: Origins) -> Occupant:
    """The occupant after an event, for a region that is in use then."""
    found = list(occupants(region, origins))
    return next((t for t in found if t.start <= event < t.end), found[-1])


def _tells(value: Value, origins: Origins) -> bool:
    origin = origins.of(value.instruction, value.index)
    return not origin.fills and origin.phase != "argument"
