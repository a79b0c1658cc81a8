"""The collectives of a program, equal ones together."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

from revremat._measurement import Collective
from revremat.xla.hlo._hlo import Computation, Module, size_of
from revremat.xla.hlo._loops import trip_count
from revremat.xla.hlo._opcodes import CALLS
from revremat.xla.hlo._origin import Origins
from revremat.xla.step_time._collectives import (
    collective,
    collective_us,
    groups_of,
    kind_of,
)
from revremat.xla.step_time._step_time import Clock
from revremat.xla.target._targets import Target

_LAYER = re.compile(r"\d+")


def collectives_of(
    module: Module, target: Target, origins: Origins | None = None
) -> tuple[Collective, ...]:
    """What devices exchange in a step, by kind, phase, scope, size and source.

    Args:
      module: The scheduled program.
      target: Card, devices and hosts.
      origins: Of the module, where they are at hand.

    Returns:
      In the order of the schedule.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> xla.collectives_of(xla.Module.from_bytes(artifact.hlo), target)
      ()
    """
    origins = origins or Origins(module)
    counts: dict[Collective, int] = {}
    clock = Clock(module, target)
    for i, iterations in _scheduled(clock, module.entry, 1):
        kind = kind_of(i, module)
        if not kind:
            continue
        inner = collective(i, module)
        made = origins.of(inner)
        given = module.operands(inner)
        arguments = {origins.argument_of(one) for one in given}
        groups = groups_of(inner, target.num_devices)
        one = Collective(
            kind=kind,
            phase=made.phase,
            scope=_LAYER.sub("*", made.scope),
            bytes=max(_received(inner), sum(size_of(o.shape) for o in given)),
            iterations=round(iterations) or int(iterations > 0),
            us=round(collective_us(i, module, target), 3),
            group=tuple(groups[0]) if groups else (),
            argument=arguments.pop() if len(arguments) == 1 else "",
            source=made.source,
        )
        if len(one.group) > 1:
            counts[one] = counts.get(one, 0) + 1
    return tuple(dataclasses.replace(one, count=n) for one, n in counts.items())


def _received(i: Any) -> int:
    """Bytes of what a collective gives; a start's type has what it was given first."""
    shapes = i.shape.tuple_shapes
    if i.opcode.endswith("-start") and i.opcode != "all-reduce-start" and shapes:
        return size_of(shapes[1])
    return size_of(i.shape)


def _scheduled(
    clock: Clock, computation: Computation, iterations: float
) -> Iterator[tuple[Any, float]]:
    """Every instruction that is run by itself, and how often.

    Branches of a conditional whose time does not count are run 0 times.
    """
    module = clock.module
    for i in computation.instructions:
        yield i, iterations
        if i.opcode not in CALLS:
            continue
        if i.opcode == "conditional":
            counting, _ = clock.branches(i)
            shares = {one.id: share for one, share in counting}
            called = [(one, shares.get(one.id, 0.0)) for one in module.called(i)]
        else:
            trips = trip_count(i, module) if i.opcode == "while" else 1
            called = [(one, trips) for one in module.called(i)]
        for one, times in called:
            yield from _scheduled(clock, one, iterations * times)
