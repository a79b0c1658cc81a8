"""What would fall: without a residual, with a donation, by a checkpoint that frees."""

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from revremat._measurement._what_if import Checkpoint, Donation, Residual, WhatIf
from revremat.xla.hlo._hlo import Module, kind_of, leaves
from revremat.xla.hlo._origin import Origin, Origins, phase_of
from revremat.xla.memory._liveness import Heap, Liveness
from revremat.xla.memory._occupants import Occupant, occupants

_IN_REGION = re.compile(r"\bcheckpoint\b")
_MOST_TRIED = 60
_MOST_RESIDUALS = 10


def what_if(module: Module, memory: Liveness, origins: Origins | None = None) -> WhatIf:
    """What of a step's device memory would go if one thing changed.

    Nothing is compiled: residuals are taken out of the compiler's own heap trace, and
    the highest moment of what is left is looked for, wherever it is then.

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
      >>> type(xla.what_if(module, xla.liveness(module))).__name__
      'WhatIf'
    """
    origins = origins or Origins(module)
    donations = _donations(module, memory, origins)
    heap = memory.heap()
    if heap is None or not heap.traced:
        return WhatIf((), donations, ())
    kept = [
        (region.size_bytes, occupant)
        for region in heap.regions
        for occupant in occupants(region, origins)
        if region.size_bytes and occupant.origin.phase == "forward"
    ]
    return WhatIf(
        _residuals(heap, kept), donations, _checkpoints(module, heap, kept, origins)
    )


def over_layers(scope: str) -> str:
    """A scope with its numbers left out, so that layers are one.

    >>> over_layers("layer_12/attn")
    'layer_*/attn'
    """
    return re.sub(r"\d+", "*", scope)


def _residuals(heap: Heap, kept: list[tuple[int, Occupant]]) -> tuple[Residual, ...]:
    live = np.asarray(heap.live_bytes)
    groups: dict[tuple[str, str], list[tuple[int, Occupant]]] = defaultdict(list)
    for size, occupant in kept:
        key = (over_layers(occupant.origin.scope), occupant.origin.op)
        groups[key].append((size, occupant))
    at_peak = {
        key: [size for size, t in group if t.start <= heap.peak_event < t.end]
        for key, group in groups.items()
    }
    order = sorted((k for k in groups if at_peak[k]), key=lambda k: -sum(at_peak[k]))
    found = []
    for scope, op in order[:_MOST_TRIED]:
        change = np.zeros(len(live) + 1, np.int64)
        for size, occupant in groups[scope, op]:
            change[min(occupant.start, len(live))] += size
            change[min(occupant.end, len(live))] -= size
        left = live - np.cumsum(change)[:-1]
        sizes = at_peak[scope, op]
        saves = heap.peak_bytes - int(left.max())
        found.append(Residual(scope, op, len(sizes), sum(sizes), saves))
    found.sort(key=lambda r: (-r.saves_bytes, -r.bytes, r.scope, r.op))
    return tuple(found[:_MOST_RESIDUALS])


def _donations(
    module: Module, memory: Liveness, origins: Origins
) -> tuple[Donation, ...]:
    """Arguments and results that are alike on one device, each at most once."""
    shapes = {kind_of(shape) for shape in leaves(module.entry.root.shape)}
    results: dict[Any, list[tuple[str, bool]]] = defaultdict(list)
    for fixed in memory.fixed:
        if fixed.kind != "output" or fixed.is_table or not fixed.size_bytes:
            continue
        # The result is the last of what takes turns in its memory.
        for value in reversed(fixed.values):
            if kind_of(value.shape) in shapes:
                origin = origins.of(value.instruction, value.index)
                name = "/".join(filter(None, (origin.scope, origin.op)))
                key = (fixed.size_bytes, fixed.space, kind_of(value.shape))
                results[key].append((name, len(fixed.values) > 1))
                break
    found = []
    for fixed in memory.fixed:
        if fixed.kind != "argument" or fixed.aliased or not fixed.size_bytes:
            continue
        parameter = module.entry.parameters.get(fixed.parameter)
        value = next((v for v in fixed.values if v.instruction is parameter), None)
        if parameter is None or value is None:
            continue
        key = (fixed.size_bytes, fixed.space, kind_of(value.shape))
        results[key].sort(key=lambda result: result[1])  # the surer ones first
        if results[key]:
            name = parameter.metadata.op_name or f"argument {fixed.parameter}"
            result, scratch = results[key].pop(0)
            found.append(Donation(name, result, fixed.size_bytes, scratch))
    return tuple(sorted(found, key=lambda d: (-d.saves_bytes, d.argument)))


def _checkpoints(
    module: Module, heap: Heap, kept: list[tuple[int, Occupant]], origins: Origins
) -> tuple[Checkpoint, ...]:
    recomputed, regions = _regions(module, origins)
    backward = [
        at
        for at, name in enumerate(heap.events)
        if (i := module.by_name.get(name)) is not None
        and phase_of(i.metadata.op_name) in ("backward", "recompute")
    ]
    begins = np.asarray(backward)
    twice: dict[str, int] = defaultdict(int)
    others: dict[str, int] = defaultdict(int)
    for size, occupant in kept:
        if not occupant.start <= heap.peak_event < occupant.end:
            continue
        # What the forward pass uses up by itself was never kept.
        first = int(np.searchsorted(begins, occupant.start))
        if first == len(begins) or begins[first] >= occupant.end:
            continue
        sums = twice if _mark(occupant.origin) in recomputed else others
        sums[over_layers(occupant.origin.scope)] += size
    again = {over_layers(scope) for scope, _, _ in recomputed}
    found = [
        Checkpoint(scope, scope in again, twice[scope], others[scope])
        for scope in regions
        if scope in again or others[scope]
    ]
    return tuple(
        sorted(found, key=lambda c: (-c.twice_bytes, c.again, -c.kept_bytes, c.scope))
    )


def _regions(
    module: Module, origins: Origins
) -> tuple[set[tuple[str, str, str]], set[str]]:
    """Everything that is made a second time; scopes of checkpointed regions."""
    again: set[tuple[str, str, str]] = set()
    regions: set[str] = set()
    for i in _instructions(module):
        op_name = i.metadata.op_name
        if "rematted_computation" in op_name:
            origin = origins.own(i)
            again.add(_mark(origin))
            regions.add(over_layers(origin.scope))
        elif _IN_REGION.search(op_name) and phase_of(op_name) == "backward":
            regions.add(over_layers(origins.own(i).scope))
    return again, regions


def _instructions(module: Module) -> Iterator[Any]:
    for computation in module.computations.values():
        yield from computation.instructions


def _mark(origin: Origin) -> tuple[str, str, str]:
    return origin.scope, origin.op, origin.source
