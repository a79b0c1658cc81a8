"""Memory over the schedule, by the phase that made what is in it."""

import itertools
from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Int

from revremat._measurement import PHASES, categories
from revremat._measurement._history import Curve
from revremat.xla.hlo._hlo import Module
from revremat.xla.hlo._origin import Origins
from revremat.xla.memory._liveness import Heap, Liveness
from revremat.xla.memory._occupants import occupants
from revremat.xla.memory._peak import fixed_buffers

_POSITIONS = 400


def memory_curve(
    module: Module,
    memory: Liveness,
    origins: Origins | None = None,
    *,
    positions: int = _POSITIONS,
    rules: Mapping[str, str] | None = None,
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
      rules: Categories in place of phases, as for `Memory.by_rule`.

    Returns:
      A `Curve`, or None for a program without temporaries on the device.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> step = lambda x: (x @ x) @ x
      >>> artifact = xla.compile_step(step, (jnp.ones((64, 64)),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> curve = xla.memory_curve(module, xla.liveness(module))
      >>> len(curve.positions) > 0
      True
    """
    origins = origins or Origins(module)
    heaps = [h for h in memory.heaps if h.space == 0]
    if not heaps:
        return None
    # Arenas beside the largest have schedules of their own: they count in full.
    heap = max(heaps, key=lambda h: len(h.live_bytes))
    aside = sum(h.size_bytes for h in heaps if h is not heap)
    category_of = categories(rules) if rules else _phase
    names = (*rules, "other") if rules else PHASES
    lasting: dict[str, int] = {name: 0 for name in names}
    for b in fixed_buffers(module, memory, origins):
        if b.space == "device":
            lasting[category_of(b.phase, b.scope, b.op, b.source)] += b.bytes
    lasting[category_of("forward", "", "", "")] += aside
    by_name = {name: np.zeros(len(heap.live_bytes) + 1, np.int64) for name in names}
    _add_regions(by_name, heap, origins, category_of)
    live = np.asarray(heap.live_bytes)
    places = _highest_of_stretches(live, positions)
    return Curve(
        tuple(places.tolist()),
        tuple(
            (name, tuple((by_name[name][places] + lasting[name]).tolist()))
            for name in names
            if lasting[name] or by_name[name].any()
        ),
        tuple((heap.size_bytes - live[places]).tolist()),
        tuple(_label(module, origins, heap, int(p)) for p in places),
    )


def _phase(phase: str, scope: str, op: str, source: str) -> str:
    return phase


def _add_regions(
    sums: dict[str, Int[np.ndarray, " _"]],
    heap: Heap,
    origins: Origins,
    category_of: Callable[[str, str, str, str], str],
) -> None:
    """Makes of zeros the bytes in use after each event, by category."""
    events = len(heap.live_bytes)
    for region in heap.regions:
        for occupant in occupants(region, origins):
            o = occupant.origin
            change = sums[category_of(occupant.phase, o.scope, o.op, o.source)]
            change[min(occupant.start, events)] += region.size_bytes
            change[min(occupant.end, events)] -= region.size_bytes
    for change in sums.values():
        np.cumsum(change, out=change)


def _highest_of_stretches(
    live: Int[np.ndarray, " events"], count: int
) -> Int[np.ndarray, " stretches"]:
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
