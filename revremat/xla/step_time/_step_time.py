"""Step time of a scheduled program, estimated as a sum over its instructions.

Every instruction is costed by a roofline, every collective by its bytes over its
links. The schedule is then played on three streams: compute, collectives, and copies
between host and device. What is started and finished with other work in between is
hidden under it; loops count their trips.
"""

import re
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

from revremat._measurement import Time
from revremat.xla.hlo._hlo import Computation, Module, backend_config, size_of
from revremat.xla.hlo._kernel_key import kernel_key
from revremat.xla.hlo._loops import trip_count
from revremat.xla.hlo._opcodes import CALLS, COLLECTIVES, NO_EVENT
from revremat.xla.hlo._origin import Origins, phase_of
from revremat.xla.memory._liveness import HOST_SPACE
from revremat.xla.step_time._branches import shares_of
from revremat.xla.step_time._collectives import collective_us, kind_of
from revremat.xla.step_time._cost import Cost, cost_of
from revremat.xla.step_time._cpu_kernels import cpu_kernel_us
from revremat.xla.step_time._gpu_kernels import gpu_kernel_us, lower_clock_us
from revremat.xla.step_time._roofline import arithmetic_us, first_touch_us, roofline_us
from revremat.xla.step_time._timeline import Event, spans
from revremat.xla.target._cards import Card
from revremat.xla.target._targets import Target

_NUMBER = re.compile(r"\.\d+$")
# Asynchronous copies within a device: they wait for nobody's stream and are no
# transfer, but what waits for them waits.
_PREFETCH = "prefetch"


@dataclass
class _Sums:
    """Microseconds on the streams of one pass through a computation."""

    step: float = 0.0
    compute: float = 0.0
    recompute: float = 0.0
    hidden_recompute: float = 0.0
    collective: float = 0.0
    exposed_collective: float = 0.0
    transfer: float = 0.0
    exposed_transfer: float = 0.0
    flops: float = 0.0
    path: float = 0.0
    compiler: float = 0.0
    products: float = 0.0
    undecided: float = 0.0

    def add(self, other: "_Sums", times: float = 1) -> None:
        for f in fields(self):
            value = getattr(self, f.name) + times * getattr(other, f.name)
            setattr(self, f.name, value)


class InstructionCost(NamedTuple):
    """What one run of an instruction costs.

    Attributes:
      stream: On which it runs.
      us: How long.
      flops: In all.
      products_us: Of the time, with matrix units busy.
    """

    stream: str
    us: float
    flops: float = 0.0
    products_us: float = 0.0


@dataclass
class _Pass:
    """One pass through a computation: sums, and what happened when."""

    sums: _Sums = field(default_factory=_Sums)
    events: list[Event] = field(default_factory=list)

    def then(self, other: "_Pass", trips: float = 1) -> None:
        """Appends another, so many times."""
        start = self.sums.step
        self.events += [e.repeated(start, trips) for e in other.events]
        self.sums.add(other.sums, trips)


def estimate(module: Module, target: Target) -> Time:
    """Estimated time of one step.

    Args:
      module: The scheduled program.
      target: Card, devices and hosts.

    Returns:
      A `Time`.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> xla.estimate(module, target).step_us > 0
      True
    """
    played = Clock(module, target).run(module.entry)
    sums = played.sums
    fresh = sum(first_touch_us(n, target.card) for n in _fresh_bytes(module))
    slower = lower_clock_us(sums.products, sums.compute, target.card)
    end, beside = sums.step, fresh + slower
    for op, us in (("page faults", fresh), ("lower clock", slower)):
        if us:
            played.events.append(Event("compute", "forward", "", op, end, us))
            end += us
    return Time(
        step_us=sums.step + beside,
        compute_us=sums.compute + beside,
        recompute_us=sums.recompute,
        hidden_recompute_us=sums.hidden_recompute,
        collective_us=sums.collective,
        exposed_collective_us=sums.exposed_collective,
        transfer_us=sums.transfer,
        exposed_transfer_us=sums.exposed_transfer,
        flops=sums.flops,
        calibrated=target.card.measured,
        spans=spans(played.events),
        critical_path_us=sums.path + beside,
        compiler_us=sums.compiler or None,
        undecided_us=sums.undecided,
    )


class Clock:
    """Costs the instructions of a module, and plays its computations.

    Args:
      module: The scheduled program.
      target: Card, devices and hosts.
    """

    def __init__(self, module: Module, target: Target):
        self.module, self.target, self.card = module, target, target.card
        self._done: dict[int, _Pass] = {}
        self._past_forward = False
        self._is_gpu = self.card.platform == "cuda"

    @cached_property
    def origins(self) -> Origins:
        """Where instructions come from; takes long, and costs do not ask."""
        return Origins(self.module)

    def run(self, computation: Computation) -> _Pass:
        """One pass; every computation is timed once."""
        if computation.id not in self._done:
            self._done[computation.id] = _Pass()  # a cycle would be damage: cut it
            self._done[computation.id] = self._play(computation)
        return self._done[computation.id]

    def _play(self, computation: Computation) -> _Pass:
        played = _Pass()
        sums, events = played.sums, played.events
        now = 0.0
        free = {"collective": 0.0, "transfer": 0.0, _PREFETCH: 0.0}
        flying: dict[int, Event] = {}
        path: dict[int, float] = {}
        for i in computation.instructions:
            before = [*i.operand_ids, *i.control_predecessor_ids]
            earliest = max((path.get(o, 0.0) for o in before), default=0.0)
            path[i.id] = earliest
            if i.opcode in NO_EVENT:
                continue
            if i.opcode in CALLS and self.measured_us(i) is None:
                inner = self._nested(i)
                sums.step = now
                longest = sums.path
                played.then(inner)
                sums.path = longest
                now += inner.sums.step
                path[i.id] = earliest + inner.sums.path
                continue
            waits_for = [flying[o] for o in i.operand_ids if o in flying]
            if i.opcode.endswith(("-done", "-update")) and waits_for:
                for event in waits_for:
                    if i.opcode.endswith("-update"):
                        flying[i.id] = event
                        continue
                    now += self._wait(played, event, now)
                continue
            stream, duration, flops, products = self.cost(i)
            sums.flops += flops
            sums.products += products
            sums.compiler += compilers_us(i, self.card)
            path[i.id] = earliest + duration
            if stream == "compute":
                in_flight = min(free["collective"], now + duration)
                self._compute(played, i, now, duration, in_flight)
                now += duration
                continue
            begin = max(now, free[stream])
            free[stream] = begin + duration
            phase, scope, _ = self._origin(i)
            op = kind_of(i, self.module) or "copy"
            event = Event(stream, phase, scope, op, begin, duration)
            if stream != _PREFETCH:
                setattr(sums, stream, getattr(sums, stream) + duration)
                events.append(event)
            awaited = self._is_awaited(i, stream, computation)
            if i.opcode.endswith("-start") and not awaited:
                flying[i.id] = event
            else:
                now += self._wait(played, event, now)
        sums.step = max([now, *free.values()])
        sums.path = max(path.values(), default=0.0)
        return played

    def _compute(
        self, played: _Pass, i: Any, now: float, duration: float, in_flight: float
    ) -> None:
        """A kernel; what it computes a second time is told apart, and drawn first."""
        if not duration:
            return
        sums = played.sums
        sums.compute += duration
        phase, scope, op = self._origin(i)
        share = self._recomputed_share(i)
        if share < 1 and phase == "recompute":
            phase = "backward"  # where all that is fused with recompute belongs
        for name, part in (("recompute", share), (phase, 1 - share)):
            if part <= 0:
                continue
            us = part * duration
            played.events.append(Event("compute", name, scope, op, now, us))
            now += us
            if name == "recompute":
                sums.recompute += us
                hidden = min(now, in_flight) - (now - us)
                sums.hidden_recompute += max(0.0, hidden)

    def _is_awaited(self, i: Any, stream: str, computation: Computation) -> bool:
        """Whether nothing else runs until what an instruction starts has ended.

        A GPU fetches a slice from host memory by a kernel, on the compute stream. And
        it runs a loop's body as a command buffer, one command after the other.
        """
        if stream == "transfer" and self._is_gpu:
            by_kernel = i.opcode == "async-start" and not _in_host_memory(_made(i))
            return by_kernel or self._is_of_a_loop(computation)
        return _is_synchronous(i)

    def _is_of_a_loop(self, computation: Computation) -> bool:
        callers = self.module.callers.get(computation.id, ())
        return any(caller.opcode == "while" for caller in callers)

    def _origin(self, i: Any) -> tuple[str, str, str]:
        """Phase, scope and operation of an instruction."""
        found = self.origins.of(i)
        phase, scope = found.phase, found.scope
        self._past_forward |= phase in ("backward", "recompute")
        if phase == "argument":  # a copy of one, before the step or after it
            phase, scope = "update" if self._past_forward else "forward", ""
        return phase, scope, _NUMBER.sub("", found.op or i.opcode)

    def _wait(self, played: _Pass, event: Event, now: float) -> float:
        """How long the compute stream waits for the end of something."""
        waited = max(0.0, event.start_us + event.duration_us - now)
        if event.stream == _PREFETCH:
            if waited:
                played.sums.compute += waited
                origin = event.phase, event.scope, event.op
                played.events.append(Event("compute", *origin, now, waited))
            return waited
        name = f"exposed_{event.stream}"
        setattr(played.sums, name, getattr(played.sums, name) + waited)
        event.exposed_us += waited
        return waited

    def _recomputed_share(self, i: Any) -> float:
        """The part of a kernel's arithmetic that is done a second time."""
        own = phase_of(i.metadata.op_name)
        if i.opcode != "fusion":
            return float(own == "recompute")
        again = others = 0.0
        for computation in self.module.called(i):
            for inner in computation.instructions:
                us = arithmetic_us(cost_of(inner, self.module), self.card)
                phase = phase_of(inner.metadata.op_name) or own
                again += us * (phase == "recompute")
                others += us * (phase != "recompute")
        if again + others == 0:
            return float(own == "recompute")
        return again / (again + others)

    def played(self, i: Any) -> list[Computation]:
        """What a loop, a call or a branch runs, in order."""
        called = self.module.called(i)
        if i.opcode != "while":
            return called
        # The condition is the second, but runs first. A GPU that knows how often
        # the body runs does not run the condition.
        known = self._is_gpu and backend_config(i).get("known_trip_count")
        return called[:1] if known else called[::-1]

    def _nested(self, i: Any) -> _Pass:
        total = _Pass()
        called = self.played(i)
        if i.opcode == "while":
            body = _Pass()
            for computation in called:
                body.then(self.run(computation))
            total.then(body, trip_count(i, self.module))
        elif i.opcode == "conditional":
            self._branch(i, total)
        else:
            for computation in called:
                total.then(self.run(computation))
        return total

    def _branch(self, i: Any, total: _Pass) -> None:
        """As often as each is taken."""
        branches, is_decided = self.branches(i)
        for branch, share in branches:
            total.then(self.run(branch), share)
        if not is_decided:
            all_us = [self.run(c).sums.step for c in self.module.called(i)]
            total.sums.undecided += max(all_us) - min(all_us)

    def branches(self, i: Any) -> tuple[list[tuple[Computation, float]], bool]:
        """Those of a conditional that count, and the part of its runs that each has.

        Returns:
          They, and whether that is known; where data decide, the longest counts alone.
        """
        called = self.module.called(i)
        if not called:
            return [], True
        all_us = [self.run(computation).sums.step for computation in called]
        shares = shares_of(i, self.module, self.target.num_devices, all_us)
        if shares is None:
            return [(called[all_us.index(max(all_us))], 1.0)], False
        return [(c, s) for c, s in zip(called, shares, strict=True) if s], True

    def cost(self, i: Any) -> InstructionCost:
        """What an instruction costs that runs by itself."""
        if kind_of(i, self.module):
            us = collective_us(i, self.module, self.target)
            return InstructionCost("collective", us)
        moved = self._host_bytes(i)
        if moved:
            rate = self.card.pcie_bandwidth * self.card.transfer_efficiency
            us = self.card.launch_us + 1e6 * moved / rate
            return InstructionCost("transfer", us)
        if i.opcode == "async-start":
            inner = [x for c in self.module.called(i) for x in c.instructions]
            kernels = [self._kernel(x) for x in inner if x.opcode not in COLLECTIVES]
            duration = sum(us for us, _ in kernels)
            flops = sum(cost.flops for _, cost in kernels)
            return InstructionCost("compute", duration, flops)
        if i.opcode.endswith("-done"):
            return InstructionCost("compute", 0.0)
        us, cost = self._kernel(i)
        if i.opcode == "copy-start":
            return InstructionCost(_PREFETCH, us)
        measured_us = self.measured_us(i)
        if measured_us is not None:
            is_call = i.opcode in CALLS  # all of what it calls was measured as one
            flops = self._nested(i).sums.flops if is_call else cost.flops
            us = self.card.launch_us + measured_us
            return InstructionCost("compute", us, flops)
        products = min(us, arithmetic_us(cost, self.card)) if cost.matmuls else 0.0
        return InstructionCost("compute", us, cost.flops, products)

    def _kernel(self, i: Any) -> tuple[float, Cost]:
        """Microseconds and work of an instruction that runs by itself."""
        if self.card.platform == "cuda":
            return gpu_kernel_us(i, self.module, self.card)
        if self.card.platform == "cpu":
            return cpu_kernel_us(i, self.module, self.card)
        cost = cost_of(i, self.module)
        return roofline_us(cost, self.card), cost

    def measured_us(self, i: Any) -> float | None:
        """What was measured of an instruction like it on this card."""
        kernels = self.card.kernels
        return kernels.get(kernel_key(i, self.module)) if kernels else None

    def _host_bytes(self, i: Any) -> int:
        """Bytes that cross between host and device in this instruction."""
        if i.opcode not in (
            "copy",
            "copy-start",
            "fusion",
            "async-start",
            "dynamic-slice",
            "dynamic-update-slice",
        ):
            return 0
        sources = self.module.operands(i)
        made = _made(i)
        from_host = [o for o in sources if _in_host_memory(o.shape)]
        to_host = _in_host_memory(i.shape)
        if not from_host and not to_host:
            return 0
        if i.opcode in ("copy", "copy-start"):
            return size_of(sources[0].shape)
        if not _in_host_memory(made):
            return size_of(made)
        sizes = [size_of(o.shape) for o in sources if not _in_host_memory(o.shape)]
        return max(sizes, default=0)


def _made(i: Any) -> Any:
    """The shape of what an instruction makes.

    An asynchronous start has what it was given in its type: given, made, ...
    """
    return i.shape.tuple_shapes[1] if i.opcode == "async-start" else i.shape


def _in_host_memory(shape: Any) -> bool:
    if shape.tuple_shapes:
        return any(_in_host_memory(part) for part in shape.tuple_shapes)
    return shape.layout.memory_space == HOST_SPACE


def compilers_us(i: Any, card: Card) -> float:
    """What XLA's own cost model notes on an instruction; 0 where it notes nothing.

    On GPUs, with `--xla_gpu_collect_cost_model_stats` and
    `--xla_gpu_enable_analytical_sol_latency_estimator`, the entry that its scheduler
    uses is called "sol"; on TPUs it notes cycles.
    """
    noted = backend_config(i)
    for entry in noted.get("reification_cost") or ():
        if entry.get("name") == "sol":
            return float(entry.get("exec_time_us", 0.0))
    cycles = float(noted.get("estimated_cycles") or 0)
    clock_ghz = float(card.description.get("clock_rate_ghz", 0))
    return cycles / (1e3 * clock_ghz) if clock_ghz else 0.0


def _fresh_bytes(module: Module) -> list[int]:
    """Temporaries and results that take over no argument's memory."""
    return [
        a.size
        for a in module.proto.buffer_assignment.buffer_allocations
        if not (a.is_thread_local or a.is_constant or a.is_entry_computation_parameter)
    ]


def _is_synchronous(i: Any) -> bool:
    config = backend_config(i).get("collective_backend_config", {})
    return bool(config.get("is_sync", False))
