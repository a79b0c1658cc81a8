"""Module: a scheduled HLO program, indexed for the questions we ask of it."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from google.protobuf.message import DecodeError
from jax.errors import JaxRuntimeError

from revremat._compat import serialized_hlo
from revremat._errors import UserError
from revremat.xla.hlo._schema import HloProto

# XLA's PrimitiveType: JAX's name and bits.
_DTYPES = {
    1: ("bool", 8),
    2: ("int8", 8),
    3: ("int16", 16),
    4: ("int32", 32),
    5: ("int64", 64),
    6: ("uint8", 8),
    7: ("uint16", 16),
    8: ("uint32", 32),
    9: ("uint64", 64),
    10: ("float16", 16),
    11: ("float32", 32),
    12: ("float64", 64),
    15: ("complex64", 64),
    16: ("bfloat16", 16),
    18: ("complex128", 128),
    19: ("float8_e5m2", 8),
    20: ("float8_e4m3fn", 8),
    21: ("int4", 4),
    22: ("uint4", 4),
    23: ("float8_e4m3b11fnuz", 8),
    24: ("float8_e5m2fnuz", 8),
    25: ("float8_e4m3fnuz", 8),
    26: ("int2", 2),
    27: ("uint2", 2),
    28: ("float8_e4m3", 8),
    29: ("float8_e3m4", 8),
    32: ("float4_e2m1fn", 4),
    33: ("float8_e8m0fnu", 8),
}
_TUPLE = 13


def dtype_of(shape: Any) -> str:
    """JAX's name of an array shape's dtype, `""` for tuples and tokens."""
    return _DTYPES.get(shape.element_type, ("", 0))[0]


def size_of(shape: Any) -> int:
    """Bytes of a shape, all of a tuple's parts added up; padding left out."""
    if shape.element_type == _TUPLE:
        return sum(size_of(part) for part in shape.tuple_shapes)
    bits = _DTYPES.get(shape.element_type, ("", 0))[1]
    return (elements_of(shape) * bits + 7) // 8


def is_tuple(shape: Any) -> bool:
    """Whether a shape is several shapes."""
    return shape.element_type == _TUPLE


def leaves(shape: Any) -> Iterator[Any]:
    """The array shapes in a shape, in order."""
    if is_tuple(shape):
        for part in shape.tuple_shapes:
            yield from leaves(part)
    else:
        yield shape


def kind_of(shape: Any) -> tuple[tuple[int, ...], str]:
    """Dimensions and dtype of an array shape."""
    return tuple(shape.dimensions), dtype_of(shape)


def elements_of(shape: Any) -> int:
    """Elements of an array shape."""
    return math.prod(shape.dimensions)


def subshape(shape: Any, index: tuple[int, ...]) -> Any:
    """The part of a tuple shape at `index`."""
    for i in index:
        if i >= len(shape.tuple_shapes):
            break
        shape = shape.tuple_shapes[i]
    return shape


@dataclass(frozen=True)
class Computation:
    """One computation of a module, in the order it runs.

    Attributes:
      name: As XLA names it.
      id: As instructions call it.
      instructions: In schedule order; in dependency order inside fusions.
      root: The instruction whose value is the result.
      parameters: By number.
    """

    name: str
    id: int
    instructions: tuple[Any, ...]
    root: Any
    parameters: dict[int, Any]


class Module:
    """A scheduled HLO module and its buffer assignment.

    Attributes:
      proto: The `HloProto`.
      computations: By id.
      instructions: By id; ids are unique in a module.
      home: The computation each instruction belongs to, by instruction id.
      callers: The instructions that call each computation, by computation id.

    Args:
      proto: The `HloProto`; `Module.from_bytes` reads one.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> module.name
      'jit_sin'
    """

    def __init__(self, proto: Any):
        self.proto = proto
        module = proto.hlo_module
        self.name: str = module.name
        schedule = {
            entry.key: list(entry.value.instruction_ids)
            for entry in module.schedule.sequences
        }
        self.computations: dict[int, Computation] = {}
        self.instructions: dict[int, Any] = {}
        self.home: dict[int, int] = {}
        self.callers: dict[int, list[Any]] = {}
        self._frames: dict[int, list[tuple[str, str, int]]] = {}
        for computation in module.computations:
            by_id = {i.id: i for i in computation.instructions}
            order = schedule.get(computation.id, list(by_id))
            if not set(order) <= by_id.keys() or computation.root_id not in by_id:
                raise UserError(
                    f"the dump of module {self.name!r} is damaged: computation "
                    f"{computation.name!r} schedules instructions it does not have"
                )
            self.computations[computation.id] = Computation(
                computation.name,
                computation.id,
                tuple(by_id[i] for i in order),
                by_id[computation.root_id],
                {
                    i.parameter_number: i
                    for i in by_id.values()
                    if i.opcode == "parameter"
                },
            )
            self.instructions.update(by_id)
            self.home.update(dict.fromkeys(by_id, computation.id))
            for i in by_id.values():
                for called in i.called_computation_ids:
                    self.callers.setdefault(called, []).append(i)
        if module.entry_computation_id not in self.computations:
            raise UserError(f"module {self.name!r} has no entry computation")

    @staticmethod
    def from_bytes(data: bytes) -> "Module":
        """Reads a serialized `HloProto`.

        Raises:
          UserError: It is damaged, or something else.
        """
        try:
            proto = HloProto.FromString(data)
        except DecodeError:
            raise UserError(
                "this is no HLO module of XLA's, or a damaged one: write the path of "
                "an '*after_optimizations.hlo.pb' file, made with "
                "--xla_dump_hlo_as_proto"
            ) from None
        if not proto.hlo_module.computations:
            raise UserError("the HLO dump holds no computation")
        return Module(proto)

    @staticmethod
    def from_text(text: str) -> "Module":
        """Reads a module as XLA prints it: `jax.stages.Compiled.as_text()`.

        A text has no buffer assignment: nothing can be asked of it about memory. What
        our schema does not name is left out, so instructions that differ in it alone,
        such as the compiler's notes to itself, are alike.

        Raises:
          UserError: It is damaged, or something else.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> from revremat import xla
          >>> compiled = jax.jit(jnp.sin).lower(jnp.ones(256)).compile()
          >>> xla.Module.from_text(compiled.as_text()).name
          'jit_sin'
        """
        try:
            parsed = serialized_hlo(text)
        except JaxRuntimeError as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(
                f"this is no text of an HLO module that XLA reads ({reason}): write "
                "what `jax.stages.Compiled.as_text()` gives"
            ) from None
        proto = HloProto()
        proto.hlo_module.MergeFromString(parsed)
        proto.DiscardUnknownFields()
        return Module(proto)

    @property
    def entry(self) -> Computation:
        """The computation that a step runs."""
        return self.computations[self.proto.hlo_module.entry_computation_id]

    @cached_property
    def by_name(self) -> dict[tuple[str, str], Any]:
        """Instructions by names of computation and instruction."""
        return {
            (c.name, i.name): i
            for c in self.computations.values()
            for i in c.instructions
        }

    @cached_property
    def temp_bytes(self) -> float:
        """Of all allocations that are neither arguments nor constants."""
        allocations = self.proto.buffer_assignment.buffer_allocations
        return float(
            sum(
                a.size
                for a in allocations
                if not (a.is_entry_computation_parameter or a.is_constant)
                and not a.is_thread_local
            )
        )

    @cached_property
    def places(self) -> dict[tuple[int, tuple[int, ...]], tuple[int, int]]:
        """Allocation and offset of the values that instructions make.

        By the instruction's id and the index into its tuple.
        """
        assignment = self.proto.buffer_assignment
        where = {
            assigned.logical_buffer_id: (allocation.index, assigned.offset)
            for allocation in assignment.buffer_allocations
            for assigned in allocation.assigned
        }
        return {
            (b.defined_at.instruction_id, tuple(b.defined_at.shape_index)): where[b.id]
            for b in assignment.logical_buffers
            if b.id in where
        }

    def operands(self, instruction: Any) -> list[Any]:
        """The instructions whose values `instruction` reads."""
        return [self.instructions[i] for i in instruction.operand_ids]

    def called(self, instruction: Any) -> list[Computation]:
        """The computations that `instruction` calls."""
        return [self.computations[i] for i in instruction.called_computation_ids]

    def trip_count(self, loop: Any) -> int:
        """Iterations of a `while`; 1 where the compiler does not know it."""
        count = backend_config(loop).get("known_trip_count", {}).get("n")
        return int(count) if count is not None else 1

    def frames(self, instruction: Any) -> list[tuple[str, str, int]]:
        """Where the user's program asked for an instruction, innermost frame first.

        Returns:
          `(file, function, line)` of each frame.
        """
        found = self._frames_from(instruction.metadata.stack_frame_id)
        if not found and instruction.metadata.source_file:
            meta = instruction.metadata
            return [(meta.source_file, "", meta.source_line)]
        return found

    def _frames_from(self, frame_id: int) -> list[tuple[str, str, int]]:
        if frame_id in self._frames:  # thousands of instructions share a line
            return self._frames[frame_id]
        index = self.proto.hlo_module.stack_frame_index
        frames, found, at = index.stack_frames, [], frame_id
        while 0 < at <= len(frames) and len(found) < 100:
            frame = frames[at - 1]
            if 0 < frame.file_location_id <= len(index.file_locations):
                place = index.file_locations[frame.file_location_id - 1]
                file = _name(index.file_names, place.file_name_id)
                function = _name(index.function_names, place.function_name_id)
                found.append((file, function, place.line))
            at = frame.parent_frame_id
        self._frames[frame_id] = found
        return found


def _name(names: Any, one_based: int) -> str:
    return names[one_based - 1] if 0 < one_based <= len(names) else ""


def backend_config(instruction: Any) -> dict[str, Any]:
    """What the backend noted on an instruction; empty where that is not JSON."""
    try:
        found = json.loads(instruction.backend_config or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
