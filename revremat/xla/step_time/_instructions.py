"""What every instruction that runs by itself takes, and how often a step runs it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from revremat.xla.hlo._hlo import Computation, Module
from revremat.xla.hlo._loops import trip_count
from revremat.xla.hlo._opcodes import CALLS, NO_EVENT
from revremat.xla.step_time._step_time import Clock
from revremat.xla.target._targets import Target


@dataclass(frozen=True)
class InstructionTime:
    """The estimate of one instruction.

    Attributes:
      instruction: One of the module's.
      stream: `compute`, `collective`, `transfer`, or `prefetch`.
      us: Of one run, whatever runs beside it.
      times: Runs in one step.

    Example:
      >>> from revremat import xla
      >>> xla.InstructionTime(instruction=None, stream="compute", us=2.0, times=24).us
      2.0
    """

    instruction: Any
    stream: str
    us: float
    times: int


def instruction_times(module: Module, target: Target) -> tuple[InstructionTime, ...]:
    """Estimates of all instructions that a step runs by themselves, in order.

    The sum is no step: streams run beside one another, which `estimate` plays.

    Args:
      module: The scheduled program.
      target: Card, devices and hosts.

    Returns:
      An entry for each instruction. What loops and calls run stands in their place;
      of a `conditional` all branches.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> [found.times for found in xla.instruction_times(module, target)]
      [1]
    """
    clock = Clock(module, target)
    return tuple(_times(module.entry, 1, clock))


def instruction_us(i: Any, module: Module, target: Target) -> float:
    """The estimate of one run of an instruction, whatever runs beside it.

    Args:
      i: One of the module's, that runs by itself.
      module: The scheduled program.
      target: Card, devices and hosts.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> xla.instruction_us(module.entry.root, module, target) > 0
      True
    """
    return Clock(module, target).cost(i).us


def _times(
    computation: Computation, runs: int, clock: Clock
) -> Iterator[InstructionTime]:
    module = clock.module
    for i in computation.instructions:
        if i.opcode in NO_EVENT:
            continue
        if i.opcode in CALLS and clock.measured_us(i) is None:
            trips = trip_count(i, module) if i.opcode == "while" else 1
            for called in clock.played(i):
                yield from _times(called, round(runs * trips), clock)
            continue
        cost = clock.cost(i)
        yield InstructionTime(i, cost.stream, cost.us, runs)
