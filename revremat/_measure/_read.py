"""read_artifact: what a compile says, as a measurement."""

import math
from collections.abc import Mapping

from revremat import xla
from revremat._format import format_us
from revremat._measurement import Measurement, Memory, Packing, Time
from revremat.xla import Artifact, Heap, Target

_COARSEST_ALIGNMENT = 4096
REMAT_PASS_OFF = "XLA's own remat pass is off; by JAX's default it is on"
_REMAT_PASS_ON = "XLA's own remat pass is on, as by JAX's default"
_UNTUNED = (
    "compiled ahead of time without autotuning: workspaces of convolutions, products "
    "and attention are in the reserve, not in the total; compiles on an H100 differed "
    "by -2.6 % to +4.7 %"
)
_TUNED = (
    "compiled ahead of time with what autotuning chose on such a card: workspaces and "
    "operands of libraries are in the total"
)
_NOTES = {
    "cuda": (_UNTUNED, REMAT_PASS_OFF),
    "tpu": (REMAT_PASS_OFF,),
    "cpu": ("offloaded values count as device memory on CPU",),
}


def read_artifact(
    artifact: Artifact,
    target: Target,
    name: str,
    *,
    packing: bool = False,
    what_if: bool = False,
    rules: Mapping[str, str] | None = None,
) -> Measurement:
    """What a compile says, as a `Measurement`."""
    module = xla.Module.from_bytes(artifact.hlo)
    stats = artifact.stats
    origins = xla.Origins(module)
    buffers, fragmentation, packed, curve, changes = (), 0, None, None, None
    if module.proto.buffer_assignment.buffer_allocations:
        memory = xla.liveness(module)
        buffers = xla.peak_buffers(module, memory, origins)
        curve = xla.memory_curve(module, memory, origins, rules=rules)
        changes = xla.what_if(module, memory, origins) if what_if else None
        fragmentation = sum(
            heap.fragmentation_bytes
            for heap in memory.heaps
            if heap.space == 0 and heap.traced
        )
        heap = memory.heap()
        if packing and heap is not None:
            packed = _pack(heap)
    host = [stats.get(f"host_{k}", 0) for k in ("argument", "output", "temp")]
    time = xla.estimate(module, target)
    idle = target.num_devices > 1 and artifact.is_whole and not time.collective_us
    return Measurement(
        program=name or module.name,
        target=target.spec,
        device=target.card.name,
        num_devices=target.num_devices,
        device_bytes=target.memory_bytes,
        reserve_bytes=target.reserve_bytes,
        memory=Memory(
            argument_bytes=stats["argument"],
            output_bytes=stats["output"],
            alias_bytes=stats["alias"],
            temp_bytes=stats["temp"],
            host_bytes=sum(host) - stats.get("host_alias", 0),
            fragmentation_bytes=fragmentation,
            buffers=buffers,
            packing=packed,
            curve=curve,
            what_if=changes,
            rules=tuple((rules or {}).items()),
        ),
        time=time,
        compile_seconds=artifact.seconds,
        cached=artifact.cached,
        versions=artifact.versions,
        notes=(
            *_notes(target, artifact),
            *artifact.remarks,
            *(_SAME_WORK.format(target.num_devices),) * idle,
            *(_OPAQUE,) * xla.has_opaque_kernels(module),
            *_undecided(time),
            *_unmodeled(xla.unmodeled_calls(module, target.card)),
        ),
        collectives=xla.collectives_of(module, target, origins),
    )


def _notes(target: Target, artifact: Artifact) -> tuple[str, ...]:
    changes = {}
    if artifact.remat_pass:
        changes[REMAT_PASS_OFF] = _REMAT_PASS_ON
    if artifact.tuned:
        changes[_UNTUNED] = _TUNED
    return tuple(changes.get(note, note) for note in _NOTES[target.platform])


def remarks(measurement: Measurement) -> tuple[str, ...]:
    """Notes that are not of every compile: what was done differently than asked."""
    usual = {_REMAT_PASS_ON, _TUNED, *(n for notes in _NOTES.values() for n in notes)}
    return tuple(note for note in measurement.notes if note not in usual)


_PACKING_SECONDS = 5.0
_OPAQUE = (
    "some kernels of the program's own (Pallas) are timed by what they read and write: "
    "their arithmetic is not known"
)
_MOST_CALLS = 4
_SAME_WORK = (
    "no argument is split over the {0} devices and they exchange nothing: each does "
    "the whole step; give arguments a sharding, such as "
    "jax.NamedSharding(rr.target(...).mesh({{'data': {0}}}), jax.P('data')) for a batch"
)


_LEAST_UNDECIDED = 1e-3
"""Part of a step below which branches are not told."""


def _undecided(time: Time) -> tuple[str, ...]:
    """The note on branches that data decide; none where they make no difference."""
    if time.undecided_us <= _LEAST_UNDECIDED * time.step_us:
        return ()
    least = format_us(time.step_us - time.undecided_us)
    return (
        f"data decide which branches run: a step takes {least} to "
        f"{format_us(time.step_us)}, and the estimate has the longest of each",
    )


def _unmodeled(calls: Mapping[str, int]) -> tuple[str, ...]:
    """The note on what the estimate leaves out; none where it has everything."""
    if not calls:
        return ()
    told = [
        f"{count} call{'s' * (count > 1)} of {name[:60]}"
        for name, count in calls.items()
    ]
    if len(told) > _MOST_CALLS:
        told[_MOST_CALLS:] = [f"{len(told) - _MOST_CALLS} more kinds"]
    is_one = sum(calls.values()) == 1
    return (
        f"{', '.join(told)} {'has' if is_one else 'have'} no time model: of their time "
        "only reading operands and writing results once is in the estimate",
    )


def _pack(heap: Heap) -> Packing:
    """The same lifetimes packed anew, as one stream in the order of the schedule."""
    from revremat import allocation  # brings a compiler of its own: only when asked

    offsets = math.gcd(*(r.offset for r in heap.regions)) or _COARSEST_ALIGNMENT
    alignment = min(offsets & -offsets, _COARSEST_ALIGNMENT)
    problem = allocation.AllocationProblem(
        tuple(
            allocation.Buffer(str(number), r.start, r.end, r.size_bytes, alignment)
            for number, r in enumerate(heap.regions)
            if r.size_bytes
        )
    )
    found = allocation.allocate(problem, seconds=_PACKING_SECONDS)
    assert isinstance(found, allocation.Allocation)
    return Packing(heap.size_bytes, found.makespan_bytes, found.bound.size_bytes)
