"""Memory over the schedule, by the phase that made what is in it."""

import itertools

import numpy as np

from revremat._history import Curve
from revremat._measurement import PHASES
from revremat.xla._hlo import Module
from revremat.xla._liveness import Heap, Liveness
from revremat.xla._origin import Origins
from revremat.xla._tenants import tenants

_POSITIONS = 400


def memory_curve(
    module: Module,
    memory: Liveness,
    origins: Origins | None = None,
    *,
    positions: int = _POSITIONS,
) -> Curve | None:
    """Device memory over the schedule, in at most so many positions.

    Every position is the highest moment of the stretch it stands for, so that the peak
    is the step's own; at the peak the phases add up to the same bytes as the buffers
    of `peak_buffers`.

    Args:
      module: The scheduled program.
      memory: Its liveness.
      origins: Of the same module, where they are at hand.
      positions: How many stretches the schedule is cut into.

    Returns:
      A `Curve`, or None for a program without temporaries on the device.
    """
    origins = origins or Origins(module)
    heaps = [h for h in memory.heaps if h.space == 0]
    if not heaps:
        return None
    # Arenas beside the largest have schedules of their own: they count in full.
    heap = max(heaps, key=lambda h: len(h.live_bytes))
    aside = sum(h.size_bytes for h in heaps if h is not heap)
    lasting: dict[str, int] = {phase: 0 for phase in PHASES}
    for fixed in memory.fixed:
        if fixed.space == 0:
            lasting[fixed.kind] += fixed.size_bytes
    lasting["forward"] += aside
    by_phase = _phases_over_time(heap, origins)
    live = np.asarray(heap.live_bytes)
    places = _highest_of_stretches(live, positions)
    return Curve(
        tuple(places.tolist()),
        tuple(
            (phase, tuple((by_phase[phase][places] + lasting[phase]).tolist()))
            for phase in PHASES
            if lasting[phase] or by_phase[phase].any()
        ),
        tuple((heap.size_bytes - live[places]).tolist()),
        tuple(_label(module, origins, heap, int(p)) for p in places),
    )


def _phases_over_time(heap: Heap, origins: Origins) -> dict[str, np.ndarray]:
    """Bytes in use after each event, by phase."""
    events = len(heap.live_bytes)
    changes = {phase: np.zeros(events + 1, np.int64) for phase in PHASES}
    for region in heap.regions:
        for tenant in tenants(region, origins):
            change = changes[tenant.phase]
            change[min(tenant.start, events)] += region.size_bytes
            change[min(tenant.end, events)] -= region.size_bytes
    return {phase: np.cumsum(c)[:events] for phase, c in changes.items()}


def _highest_of_stretches(live: np.ndarray, count: int) -> np.ndarray:
    """The first highest event of each of `count` stretches of the schedule."""
    edges = np.linspace(0, len(live), min(count, len(live)) + 1).astype(int)
    return np.array(
        [a + int(live[a:b].argmax()) for a, b in itertools.pairwise(edges)], int
    )


def _label(module: Module, origins: Origins, heap: Heap, event: int) -> str:
    instruction = module.by_name.get(heap.events[event])
    if instruction is None:
        return heap.events[event][1]
    origin = origins.of(instruction)
    return origin.scope or origin.op or instruction.name
