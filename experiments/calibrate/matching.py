"""Which instructions of a module the kernels of a profiled step belong to.

A kernel is named after its instruction, and one kernel serves all instructions that do
the same. Libraries name their kernels themselves, and copies have one name for all of
them: those are held to the instructions that have no kernel of their own, all together.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.calibrate.records import Json
from experiments.calibrate.trace import is_copy
from revremat.xla import InstructionTime, Module, kernel_key

HOST, COPIES, LIBRARY = "host transfers", "copies", "library products"
ELEMENTWISE, REST = "elementwise", "other"

_FILLS = {"constant", "broadcast", "iota", "compare", "copy", "bitcast", "tuple"}


@dataclass
class Match:
    """Instructions that do the same, or share a pool, and their kernels.

    Attributes:
      kind: Of kernel.
      name: The first instruction's; the kind's where many share a pool.
      estimated_us: Of one step.
      measured_us: Of the profiled step.
      runs: That the estimate counts.
      seen: Kernels that the trace shows.
      instructions: Those that the estimate counts, and how often each runs; of equal
        ones the first.
    """

    kind: str
    name: str
    estimated_us: float = 0.0
    measured_us: float = 0.0
    runs: float = 0.0
    seen: float = 0.0
    instructions: tuple[tuple[Any, int], ...] = ()

    def add(self, other: "Match") -> None:
        """Counts another in."""
        self.estimated_us += other.estimated_us
        self.measured_us += other.measured_us
        self.runs += other.runs
        self.seen += other.seen
        self.instructions += other.instructions

    @property
    def off_us(self) -> float:
        """What the estimate has too much; negative where it has too little."""
        return self.estimated_us - self.measured_us


@dataclass
class _Names:
    """By what an instruction is found."""

    instructions: dict[str, str] = field(default_factory=dict)
    kernels: dict[str, str] = field(default_factory=dict)


def match(
    module: Module, times: Iterable[InstructionTime], kernels: Sequence[Json]
) -> list[Match]:
    """Every microsecond of both sides, in one match each.

    Args:
      module: The scheduled program.
      times: What its instructions are estimated to take.
      kernels: Rows of a profiled step: `kernel`, `instruction`, `number`, `seconds`.
    """
    found: dict[str, Match] = {}
    names = _Names()
    for time in times:
        if time.us == 0:
            continue
        i = time.instruction
        key = kernel_key(i, module)
        one = found.setdefault(key, Match(kind_of(i, module), i.name))
        one.add(Match("", "", time.us * time.times, 0.0, time.times))
        first, runs = (one.instructions or ((i, 0),))[0]
        one.instructions = ((first, runs + time.times),)
        names.instructions.setdefault(i.name, key)
        for name in _kernel_names(i, module):
            names.kernels.setdefault(name, key)
    pools: dict[str, Match] = {}
    for row in kernels:
        key = names.instructions.get(row["instruction"])
        if key is None:
            key = names.kernels.get(row["kernel"])
        seen = Match("", "", 0.0, 1e6 * row["seconds"], 0.0, row["number"])
        if key is not None:
            found[key].add(seen)
        else:
            kind = _pool_of(row["kernel"])
            pools.setdefault(kind, Match(kind, kind)).add(seen)
    matches: dict[str, Match] = {}
    for key, one in found.items():
        pool = one.kind
        if pool == "dynamic slices":  # of neighbours in memory: no more than a copy
            pool = COPIES
        if not one.seen and pool in pools:
            pools[pool].add(one)
        else:
            matches[key] = one
    return [*matches.values(), *pools.values()]


def _kernel_names(i: Any, module: Module) -> list[str]:
    """As an instruction's kernel may be called."""
    names = [i.name]
    if i.opcode == "async-start":
        for computation in module.called(i):
            for inner in computation.instructions:
                names += [c.name for c in module.called(inner)]
            names += [inner.name for inner in computation.instructions]
            names.append(computation.name)
    return [re.sub(r"\W", "_", name.replace("_computation", "")) for name in names]


def _pool_of(kernel: str) -> str:
    """The instructions that such a kernel may belong to."""
    if is_copy(kernel):
        return HOST
    if kernel.lower().startswith("memcpy"):
        return COPIES
    if re.match(r"nvjet|cutlass|sm\d\d_|ampere_|Memset|.*(gemm|splitK)", kernel):
        return LIBRARY
    return REST


def kind_of(i: Any, module: Module) -> str:
    """What sort of kernel an instruction runs."""
    host = 5  # XLA's number of the host's memory space
    shapes = [i.shape, *i.shape.tuple_shapes, *(o.shape for o in module.operands(i))]
    if any(s.layout.memory_space == host for s in shapes):
        return HOST
    if i.opcode == "custom-call":
        target = i.custom_call_target.lower()
        for part, kind in (
            ("fmha", "cuDNN attention"),
            ("conv", "convolutions"),
            ("gemm", LIBRARY),
            ("matmul", LIBRARY),
        ):
            if part in target:
                return kind
        return "other calls"
    if i.opcode == "async-start":
        inner = [x for c in module.called(i) for x in c.instructions]
        kinds = [kind_of(x, module) for x in inner if x.opcode != "parameter"]
        return kinds[-1] if kinds else REST
    if i.opcode != "fusion":
        return COPIES if i.opcode in ("copy", "copy-start") else REST
    inside = {x.opcode for c in module.called(i) for x in c.instructions}
    config = json.loads(i.backend_config or b"{}").get("fusion_backend_config", {})
    fused = config.get("kind", "")
    if "gemm" in fused:
        return "Triton products"
    sort = (
        "scatters" if "scatter" in inside
        else "softmaxes" if {"exponential", "reduce"} <= inside
        else "reductions" if "reduce" in inside
        else "dynamic slices" if {"dynamic-slice", "dynamic-update-slice"} & inside
        else "fills" if inside <= _FILLS
        else "transposes" if "transpose" in inside
        else ELEMENTWISE
    )  # fmt: skip
    return f"{sort}, by blocks" if fused == "__triton" else sort
