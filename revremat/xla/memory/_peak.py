"""The buffers alive at a step's peak, each with who made it."""

from collections.abc import Iterable
from dataclasses import replace

from revremat._measurement import Buffer
from revremat.xla.hlo._hlo import Module, kind_of, leaves
from revremat.xla.hlo._origin import Origin, Origins
from revremat.xla.memory._liveness import HOST_SPACE, Fixed, Liveness, Region, Value
from revremat.xla.memory._occupants import occupant_at


def peak_buffers(
    module: Module, memory: Liveness, origins: Origins | None = None
) -> tuple[Buffer, ...]:
    """Every buffer alive at the peak, largest first, on the device and on the host.

    Args:
      module: The scheduled program.
      memory: Its liveness.
      origins: Of the same module, where they are at hand.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> [one.phase for one in xla.peak_buffers(module, xla.liveness(module))]
      ['argument', 'output']
    """
    origins = origins or Origins(module)
    found = list(fixed_buffers(module, memory, origins))
    for heap in memory.heaps:
        if heap.space not in (0, HOST_SPACE):
            continue  # on-chip memories are no part of the device's total
        for region in heap.alive_at_peak():
            if region.size_bytes:
                found.append(
                    replace(
                        _region_buffer(region, heap.peak_event, heap.space, origins),
                        offset_bytes=region.offset,
                        start=region.start,
                        end=min(region.end, len(heap.live_bytes)),
                        padding_bytes=region.padding_bytes,
                    )
                )
    return tuple(sorted(found, key=lambda b: (-b.bytes, b.phase, b.scope)))


def fixed_buffers(
    module: Module, memory: Liveness, origins: Origins
) -> tuple[Buffer, ...]:
    """Arguments, results and constants: there for the whole step."""
    last = max((len(h.live_bytes) for h in memory.heaps if h.space == 0), default=0)
    return tuple(
        replace(
            _fixed_buffer(f, module, origins),
            end=last,
            padding_bytes=_padding_bytes(f),
            aliased=f.aliased,
        )
        for f in memory.fixed
        if f.size_bytes
    )


def _space(number: int) -> str:
    return "host" if number == HOST_SPACE else "device"


def _fixed_buffer(fixed: Fixed, module: Module, origins: Origins) -> Buffer:
    space = _space(fixed.space)
    if fixed.kind == "argument":
        parameter = module.entry.parameters.get(fixed.parameter)
        path = parameter.metadata.op_name if parameter is not None else ""
        value = next((v for v in fixed.values if v.instruction is parameter), None)
        value = value or next(iter(fixed.values), None)
        return Buffer(
            fixed.size_bytes,
            *_shape(value),
            "argument",
            path or f"argument {fixed.parameter}",
            space=space,
        )
    if fixed.is_table:
        return Buffer(fixed.size_bytes, (), "", fixed.kind, "pointers", space=space)
    # Other values take turns in a result's memory before it is there.
    results = {kind_of(shape) for shape in leaves(module.entry.root.shape)}
    results = [v for v in fixed.values if kind_of(v.shape) in results]
    value, origin = _best(results or fixed.values, origins)
    return Buffer(
        fixed.size_bytes,
        *_shape(value),
        fixed.kind,
        origin.scope,
        origin.op,
        origin.source,
        space,
    )


def _region_buffer(region: Region, event: int, space: int, origins: Origins) -> Buffer:
    occupant = occupant_at(region, event, origins)
    return Buffer(
        region.size_bytes,
        *_shape(occupant.value),
        occupant.phase,
        occupant.origin.scope,
        occupant.origin.op,
        occupant.origin.source,
        _space(space),
    )


def _padding_bytes(fixed: Fixed) -> int:
    unpadded = next((v.unpadded_bytes for v in fixed.values), fixed.size_bytes)
    return max(0, fixed.size_bytes - unpadded)


def _best(values: Iterable[Value], origins: Origins) -> tuple[Value | None, Origin]:
    """The value that says most about a region: one that is computed, not filled in."""
    first: tuple[Value | None, Origin] = (None, Origin())
    for value in values:
        origin = origins.of(value.instruction, value.index)
        if not origin.fills and origin.phase != "argument":
            return value, origin
        if first[0] is None:
            first = value, origin
    return first


def _shape(value: Value | None) -> tuple[tuple[int, ...], str]:
    if value is None:
        return (), ""
    return kind_of(value.shape)
