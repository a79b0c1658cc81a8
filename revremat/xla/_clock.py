"""The clock: how long a scheduled program takes, as a sum over its instructions.

Every instruction is priced by a roofline, every collective by its bytes over its
links. The schedule is then played on three streams: compute, collectives, and copies
between host and device. What is started and finished with other work in between is
hidden under it; loops count their trips.
"""

from dataclasses import dataclass, fields
from typing import Any

from revremat._measurement import Time
from revremat.xla._cards import Card
from revremat.xla._collectives import KINDS, collective_us, kind_of
from revremat.xla._cost import Cost, cost_of
from revremat.xla._hlo import Computation, Module, backend_config, size_of
from revremat.xla._liveness import HOST_SPACE
from revremat.xla._origin import phase_of
from revremat.xla._targets import Target

_NOTHING = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "after-all",
    "optimization-barrier",
    "opt-barrier",
    "partition-id",
    "replica-id",
}


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

    def add(self, other: "_Sums", times: int = 1) -> None:
        for f in fields(self):
            value = getattr(self, f.name) + times * getattr(other, f.name)
            setattr(self, f.name, value)


def estimate(module: Module, target: Target) -> Time:
    """Estimated time of one step.

    Args:
      module: The scheduled program.
      target: Card, devices and hosts.

    Returns:
      A `Time`.
    """
    sums = _Clock(module, target).run(module.entry)
    return Time(
        step_us=sums.step,
        compute_us=sums.compute,
        recompute_us=sums.recompute,
        hidden_recompute_us=sums.hidden_recompute,
        collective_us=sums.collective,
        exposed_collective_us=sums.exposed_collective,
        transfer_us=sums.transfer,
        exposed_transfer_us=sums.exposed_transfer,
        flops=sums.flops,
        calibrated=target.card.measured,
    )


def roofline_us(cost: Cost, card: Card) -> float:
    """Time of one kernel: its arithmetic or its traffic, whichever is longer."""
    if cost.flops == 0 and cost.bytes == 0:
        return 0.0
    peak = card.peak_flops
    arithmetic = cost.other_flops / peak["float32"]
    for dtype, flops in cost.matmul_flops.items():
        arithmetic += flops / (matmul_peak(dtype, card) * card.matmul_efficiency)
    traffic = cost.bytes / (card.memory_bandwidth * card.memory_efficiency)
    return card.launch_us + 1e6 * max(arithmetic, traffic)


def matmul_peak(dtype: str, card: Card) -> float:
    """FLOP/s of the units that multiply matrices of this dtype."""
    peak = card.peak_flops
    if dtype == "float32":
        return peak.get("tf32", peak["float32"])
    if dtype.startswith(("float8", "int8")):
        return 2 * peak["bfloat16"]
    return peak.get(dtype, peak["float32"])


class _Clock:
    def __init__(self, module: Module, target: Target):
        self.module, self.target, self.card = module, target, target.card
        self._done: dict[int, _Sums] = {}

    def run(self, computation: Computation) -> _Sums:
        """One pass; every computation is timed once."""
        if computation.id not in self._done:
            self._done[computation.id] = _Sums()  # a cycle would be damage: cut it
            self._done[computation.id] = self._play(computation)
        return self._done[computation.id]

    def _play(self, computation: Computation) -> _Sums:
        sums = _Sums()
        now = 0.0
        free = {"collective": 0.0, "transfer": 0.0}
        ends: dict[int, tuple[str, float]] = {}
        for i in computation.instructions:
            if i.opcode in _NOTHING:
                continue
            if i.opcode in ("while", "conditional", "call"):
                inner = self._nested(i)
                sums.add(inner)
                now += inner.step
                continue
            stream, duration, flops = self._price(i)
            sums.flops += flops
            waits_for = [ends[o] for o in i.operand_ids if o in ends]
            if i.opcode.endswith(("-done", "-update")) and waits_for:
                for name, end in waits_for:
                    waited = max(0.0, end - now)
                    self._expose(sums, name, waited)
                    now += waited
                    if i.opcode.endswith("-update"):
                        ends[i.id] = (name, end)
                continue
            if stream == "compute":
                sums.compute += duration
                if phase_of(i.metadata.op_name) == "recompute":
                    sums.recompute += duration
                    in_flight = max(0.0, min(free["collective"], now + duration) - now)
                    sums.hidden_recompute += in_flight
                now += duration
                continue
            begin = max(now, free[stream])
            end = free[stream] = begin + duration
            setattr(sums, stream, getattr(sums, stream) + duration)
            if i.opcode.endswith("-start") and not _is_synchronous(i):
                ends[i.id] = (stream, end)
            else:
                self._expose(sums, stream, end - now)
                now = end
        sums.step = max([now, *free.values()])
        return sums

    def _nested(self, i: Any) -> _Sums:
        total = _Sums()
        called = self.module.called(i)
        if i.opcode == "while":
            trips = self.module.trip_count(i)
            for computation in called:
                total.add(self.run(computation), trips)
        elif i.opcode == "conditional":
            total.add(max((self.run(c) for c in called), key=lambda s: s.step))
        else:
            for computation in called:
                total.add(self.run(computation))
        return total

    def _price(self, i: Any) -> tuple[str, float, float]:
        """Stream, microseconds and FLOPs of an instruction that runs by itself."""
        if kind_of(i, self.module):
            duration = collective_us(
                i,
                self.module,
                self.card,
                self.target.num_devices,
                self.target.devices_per_host,
            )
            return "collective", duration, 0.0
        moved = self._host_bytes(i)
        if moved:
            rate = self.card.pcie_bandwidth * self.card.transfer_efficiency
            return "transfer", self.card.launch_us + 1e6 * moved / rate, 0.0
        if i.opcode == "async-start":
            inner = [x for c in self.module.called(i) for x in c.instructions]
            costs = [cost_of(x, self.module) for x in inner if x.opcode not in KINDS]
            duration = sum(roofline_us(c, self.card) for c in costs)
            return "compute", duration, sum(c.flops for c in costs)
        if i.opcode.endswith("-done"):
            return "compute", 0.0, 0.0
        cost = cost_of(i, self.module)
        return "compute", roofline_us(cost, self.card), cost.flops

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
        from_host = [o for o in sources if _in_host_memory(o.shape)]
        to_host = _in_host_memory(i.shape)
        if not from_host and not to_host:
            return 0
        if i.opcode in ("copy", "copy-start"):
            return size_of(sources[0].shape)
        sizes = [size_of(o.shape) for o in sources if not _in_host_memory(o.shape)]
        if to_host and sizes:
            return max(sizes)
        return size_of(i.shape) if not to_host else 0

    @staticmethod
    def _expose(sums: _Sums, stream: str, duration: float) -> None:
        name = f"exposed_{stream}"
        setattr(sums, name, getattr(sums, name) + duration)


def _in_host_memory(shape: Any) -> bool:
    if shape.tuple_shapes:
        return any(_in_host_memory(part) for part in shape.tuple_shapes)
    return shape.layout.memory_space == HOST_SPACE


def _is_synchronous(i: Any) -> bool:
    config = backend_config(i).get("collective_backend_config", {})
    return bool(config.get("is_sync", False))
