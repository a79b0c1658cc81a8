"""Liveness: which regions of memory a scheduled program uses, where and when.

XLA's buffer assignment comes with the trace of the heap simulation that laid it out:
one event per buffer that is made, shared in place, or freed, in schedule order and
through loops and calls. Replaying it gives every region's lifetime and the peak.
"""

from dataclasses import dataclass, field
from typing import Any

from revremat._errors import UserError
from revremat.xla.hlo._hlo import Module, is_tuple, size_of, subshape

DEVICE_SPACE, HOST_SPACE = 0, 5
_POINTER_BYTES = 8
_ALLOC, _FREE, _SHARE = 0, 1, 2


@dataclass(frozen=True)
class Value:
    """A logical buffer: what one instruction defines.

    Attributes:
      id: XLA's number for it.
      size_bytes: With the backend's padding.
      instruction: What defines it.
      index: Which part of the instruction's result.
      start: First event at which it is alive.
      end: The event that frees it.
    """

    id: int
    size_bytes: int
    instruction: Any
    index: tuple[int, ...]
    start: int = 0
    end: int = 0

    @property
    def shape(self) -> Any:
        """XLA's shape of the value."""
        return subshape(self.instruction.shape, self.index)

    @property
    def unpadded_bytes(self) -> int:
        """What its elements take without the backend's padding."""
        shape = self.shape
        if is_tuple(shape):  # a table of pointers
            return _POINTER_BYTES * len(shape.tuple_shapes)
        return size_of(shape)


@dataclass
class Region:
    """Bytes that values take turns in, or update in place.

    Attributes:
      size_bytes: Its size.
      offset: From the start of its heap.
      start: The event that takes it.
      end: The event that gives it back; the number of events if none does.
      values: What lies in it, in the order of appearance.
    """

    size_bytes: int
    offset: int
    start: int
    end: int
    values: list[Value] = field(default_factory=list)

    @property
    def padding_bytes(self) -> int:
        """Bytes the backend adds to the shape of the first value."""
        if not self.values:
            return 0
        return max(0, self.size_bytes - self.values[0].unpadded_bytes)


@dataclass(frozen=True)
class Heap:
    """One arena of temporaries, in one memory space.

    Attributes:
      space: XLA's number of the memory space: 0 is the device's, 5 the host's.
      size_bytes: Of the arena.
      regions: In the order they are taken.
      live_bytes: In use after each event.
      events: Names of the computation and the instruction at each event.
      peak_event: The first event after which most bytes are in use.
      traced: The dump says when its regions are taken and given back.

    Example:
      >>> from revremat import xla
      >>> parts = {"live_bytes": (0,), "events": (("", ""),), "peak_event": 0}
      >>> xla.Heap(0, 64, (), **parts).size_bytes
      64
    """

    space: int
    size_bytes: int
    regions: tuple[Region, ...]
    live_bytes: tuple[int, ...]
    events: tuple[tuple[str, str], ...]
    peak_event: int
    traced: bool = True

    @property
    def peak_bytes(self) -> int:
        """In use at the peak, fragmentation left out."""
        return self.live_bytes[self.peak_event] if self.live_bytes else 0

    @property
    def fragmentation_bytes(self) -> int:
        """Fragmentation at the peak."""
        return self.size_bytes - self.peak_bytes

    def alive_at_peak(self) -> list[Region]:
        """The regions in use at the peak, largest first."""
        alive = [r for r in self.regions if r.start <= self.peak_event < r.end]
        return sorted(alive, key=lambda r: -r.size_bytes)


@dataclass(frozen=True)
class Fixed:
    """An allocation that lasts for the whole step.

    Attributes:
      kind: `argument`, `output`, or `constant`.
      size_bytes: Its size.
      space: XLA's number of the memory space.
      parameter: Number of the argument, -1 if none.
      aliased: An argument whose buffer becomes a result's.
      values: What lies in it during the step, the defining one first.
      is_table: The table of pointers to the results.
    """

    kind: str
    size_bytes: int
    space: int
    parameter: int
    aliased: bool
    values: tuple[Value, ...]
    is_table: bool = False


@dataclass(frozen=True)
class Liveness:
    """All of a step's memory.

    Attributes:
      fixed: Arguments, results and constants.
      heaps: Arenas of temporaries; the device's first.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> [buffer.size_bytes for buffer in xla.liveness(module).fixed]
      [1024, 1024]
    """

    fixed: tuple[Fixed, ...]
    heaps: tuple[Heap, ...]

    def heap(self, space: int = DEVICE_SPACE) -> Heap | None:
        """The arena in a memory space, the largest if there are several."""
        found = [h for h in self.heaps if h.space == space]
        return max(found, key=lambda h: (h.traced, h.size_bytes), default=None)

    def lasting_bytes(self, space: int = DEVICE_SPACE) -> int:
        """What is taken from the first instruction to the last."""
        return sum(f.size_bytes for f in self.fixed if f.space == space)


def liveness(module: Module) -> Liveness:
    """Reads the buffer assignment of a compiled step.

    Args:
      module: The scheduled program.

    Raises:
      UserError: The dump has none, or contradicts itself.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> xla.liveness(module).heap() is None  # nothing lies in between
      True
    """
    assignment = module.proto.buffer_assignment
    if not assignment.buffer_allocations:
        raise UserError(
            "this HLO dump has no buffer assignment: dump with "
            "--xla_dump_hlo_as_proto and read '*after_optimizations.hlo.pb'"
        )
    values = _values(module, assignment)
    fixed, arenas, places = [], {}, {}
    for allocation in assignment.buffer_allocations:
        for assigned in allocation.assigned:
            places[assigned.logical_buffer_id] = (allocation.index, assigned.offset)
        if allocation.is_thread_local:
            continue
        kind = (
            "argument"
            if allocation.is_entry_computation_parameter
            else "output"
            if allocation.maybe_live_out
            else "constant"
            if allocation.is_constant
            else "temp"
        )
        if kind == "temp":
            arenas[allocation.index] = allocation
            continue
        held = [
            values[a.logical_buffer_id]
            for a in allocation.assigned
            if a.logical_buffer_id in values
        ]
        fixed.append(
            Fixed(
                kind,
                allocation.size,
                allocation.color,
                allocation.parameter_number if kind == "argument" else -1,
                kind == "argument" and allocation.maybe_live_out,
                tuple(held),
                allocation.is_tuple,
            )
        )
    heaps, seen = [], set()
    for trace in assignment.heap_simulator_traces:
        heap_index = next(
            (
                places[e.buffer_id][0]
                for e in trace.events
                if places.get(e.buffer_id, (None,))[0] in arenas
            ),
            None,
        )
        if heap_index is None or heap_index in seen:
            continue
        seen.add(heap_index)
        arena = arenas[heap_index]
        try:
            heaps.append(_replay(trace, arena, values, places))
        except UserError:
            if arena.color in (DEVICE_SPACE, HOST_SPACE):
                raise
            # A TPU's on-chip memory: what is fetched into it again and again has a
            # trace that does not say which of the times ends.
            heaps.append(_without_trace(arena, values, in_use=True))
    for index in arenas.keys() - seen:
        # Beside arenas with a trace it is scratch of single instructions (a TPU's
        # pointers for its copies), which the compiler's own totals leave out, too.
        heaps.append(_without_trace(arenas[index], values, in_use=not seen))
    heaps.sort(key=lambda h: (h.space, -h.size_bytes))
    return Liveness(tuple(fixed), tuple(heaps))


def _values(module: Module, assignment: Any) -> dict[int, Value]:
    found = {}
    for buffer in assignment.logical_buffers:
        instruction = module.instructions.get(buffer.defined_at.instruction_id)
        if instruction is None:
            continue
        index = tuple(buffer.defined_at.shape_index)
        found[buffer.id] = Value(buffer.id, buffer.size, instruction, index)
    return found


def _replay(trace: Any, arena: Any, values: dict[int, Value], places: Any) -> Heap:
    root: dict[int, int] = {}  # buffer -> the buffer whose region it is in
    open_regions: dict[int, Region] = {}
    references: dict[int, int] = {}
    born: dict[int, int] = {}
    regions: list[Region] = []
    live, curve, names = 0, [], []

    def open_region(buffer_id: int, at: int) -> None:
        nonlocal live
        value = values.get(buffer_id)
        if value is None:
            raise UserError("the dump's heap trace names a buffer it does not define")
        region = Region(
            value.size_bytes, places.get(buffer_id, (0, 0))[1], at, len(trace.events)
        )
        regions.append(region)
        open_regions[buffer_id] = region
        live += value.size_bytes

    for at, event in enumerate(trace.events):
        buffer_id: int = event.buffer_id
        if event.kind == _FREE:
            freed: int = root.get(buffer_id, -1)
            if freed not in references:
                raise UserError("the dump's heap trace frees a buffer twice")
            references[freed] -= 1
            region = open_regions[freed]
            value = values.get(buffer_id)
            if value is not None:
                region.values.append(
                    Value(
                        value.id,
                        value.size_bytes,
                        value.instruction,
                        value.index,
                        born.pop(buffer_id, region.start),
                        at,
                    )
                )
            if references[freed] == 0:
                region.end = at
                live -= region.size_bytes
                del references[freed], open_regions[freed]
        else:
            top = buffer_id
            if event.kind == _SHARE:
                shared: int = event.share_with_canonical_id
                top = root.get(shared, shared)
            root[buffer_id] = top
            born[buffer_id] = at
            if top not in references:
                open_region(top, at)
                references[top] = 0
            references[top] += 1
        curve.append(live)
        names.append((event.computation_name, event.instruction_name))
    for buffer_id, at in born.items():  # never freed: alive to the end
        last, value = root[buffer_id], values.get(buffer_id)
        if value is not None and last in open_regions:
            open_regions[last].values.append(
                Value(
                    value.id,
                    value.size_bytes,
                    value.instruction,
                    value.index,
                    at,
                    len(trace.events) + 1,
                )
            )
            open_regions[last].end = len(trace.events) + 1
    for region in regions:
        region.values.sort(key=lambda v: v.start)
    peak = max(range(len(curve)), key=curve.__getitem__, default=0)
    return Heap(
        arena.color, arena.size, tuple(regions), tuple(curve), tuple(names), peak
    )


def _without_trace(arena: Any, values: dict[int, Value], in_use: bool) -> Heap:
    """An arena of which nothing is known but what lies where.

    Args:
      arena: The allocation.
      values: By id.
      in_use: Whether all of it counts, for the whole step.
    """
    regions = tuple(
        Region(
            a.size,
            a.offset,
            0,
            1 if in_use else 0,
            [
                Value(v.id, v.size_bytes, v.instruction, v.index, 0, 1)
                for v in [values.get(a.logical_buffer_id)]
                if v is not None
            ],
        )
        for a in arena.assigned
    )
    live = (arena.size if in_use else 0,)
    return Heap(arena.color, arena.size, regions, live, (("", ""),), 0, traced=False)
