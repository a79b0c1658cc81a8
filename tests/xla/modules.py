"""Small HLO modules written by hand, and a card of round numbers to time them on."""

import json
from typing import Any

from revremat.xla import Card, Module, Target
from revremat.xla.hlo._schema import HloProto
from revremat.xla.memory._liveness import HOST_SPACE

# XLA's PrimitiveType.
F32, BF16, S32, TUPLE = 11, 16, 4, 13

CARD = Card(
    key="round",
    platform="cuda",
    name="a card of round numbers",
    device_memory_size=10**10,
    memory_bandwidth=1e12,
    peak_flops={"bfloat16": 1e15, "tf32": 5e14, "float32": 1e13, "float64": 1e12},
    link_bandwidth=1e11,
    network_bandwidth=1e10,
    pcie_bandwidth=2e10,
    launch_us=0.0,
    matmul_efficiency=1.0,
    memory_efficiency=1.0,
    link_efficiency=1.0,
    transfer_efficiency=1.0,
    collective_latency_us=0.0,
    reserve_bytes=0,
)
"""A microsecond is 1e6 bytes of memory, 1e5 of links, 1e4 of network, 2e4 of host."""


def machine(devices: int = 1, hosts: int = 1, card: Card = CARD) -> Target:
    """So many devices of the card, in all, on so many hosts."""
    return Target("round", card, hosts, devices // hosts)


class Code:
    """One computation under construction."""

    def __init__(self, program: "Program", number: int, name: str):
        self._program = program
        self.proto = program.proto.hlo_module.computations.add(id=number, name=name)

    def add(
        self,
        opcode: str,
        shape: Any = (),
        *operands: Any,
        dtype: int = F32,
        op_name: str = "",
        calls: Any = (),
        config: dict | None = None,
        host: bool = False,
        **fields: Any,
    ) -> Any:
        """One instruction; the last one added is the root.

        Args:
          opcode: As XLA writes it.
          shape: Sizes; a list of shapes is a tuple.
          *operands: Instructions.
          dtype: XLA's number of the element type.
          op_name: JAX's path of the operation.
          calls: Computations it calls.
          config: The backend's notes.
          host: The result lies in host memory.
          **fields: More fields of the instruction.
        """
        number = self._program.next_id()
        i = self.proto.instructions.add(id=number, name=f"{opcode}.{number}", **fields)
        i.opcode = opcode
        _fill(i.shape, shape, dtype, host)
        i.operand_ids.extend(o.id for o in operands)
        i.called_computation_ids.extend(c.proto.id for c in calls)
        i.metadata.op_name = op_name
        if config is not None:
            i.backend_config = json.dumps(config).encode()
        self.proto.root_id = number
        return i

    def kernel(self, us: float, op_name: str = "", *after: Any) -> Any:
        """An instruction that takes so long on the card: a fill of memory."""
        return self.add("broadcast", (round(us * 1e6 / 4),), *after, op_name=op_name)


class Program:
    """A module under construction; its first computation is the entry."""

    def __init__(self):
        self.proto = HloProto()
        self.proto.hlo_module.name = "by_hand"
        self._ids = 0
        self.entry = self.computation("main")
        self.proto.hlo_module.entry_computation_id = self.entry.proto.id

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def computation(self, name: str) -> Code:
        return Code(self, self.next_id(), name)

    def module(self) -> Module:
        """What was written, as the readers of dumps see it."""
        return Module.from_bytes(self.proto.SerializeToString())


def _fill(proto: Any, shape: Any, dtype: int, host: bool) -> None:
    if isinstance(shape, list):
        proto.element_type = TUPLE
        for part in shape:
            _fill(proto.tuple_shapes.add(), part, dtype, host)
        return
    proto.element_type = dtype
    proto.dimensions.extend(shape)
    proto.layout.memory_space = HOST_SPACE if host else 0
