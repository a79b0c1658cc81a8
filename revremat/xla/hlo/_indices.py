"""Indices: small numbers that loops' counters and a device's number alone decide."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from revremat.xla.hlo._hlo import Module, dtype_of
from revremat.xla.hlo._loops import element_of, step_of, trip_count

Grid = np.ndarray
"""A value for each device, each iteration of the loops around it (the outermost first),
and each element of its own; 1 stands for all of a device's or a loop's."""

_MOST = 1 << 20
"""Numbers of one value: a table of ticks and devices is far smaller."""


class UndecidedError(Exception):
    """A number depends on data, or on what is not known here."""


@dataclass(frozen=True)
class _Frame:
    """A computation as one instruction runs it.

    Attributes:
      caller: The instruction; None for the program itself.
      outer: The computation that the caller belongs to.
      sizes: Devices, and iterations of the loops around.
    """

    caller: Any
    outer: "_Frame | None"
    sizes: tuple[int, ...]


class Indices:
    """What integers of a program are, without running it.

    Args:
      module: The program.
      num_devices: That run it.
    """

    def __init__(self, module: Module, num_devices: int):
        self.module, self.num_devices = module, num_devices
        self._known: dict[tuple[int, int], Grid] = {}

    def of(self, i: Any) -> Grid:
        """The values of an instruction.

        Args:
          i: One that makes an integer or a boolean, outside of fusions.

        Returns:
          For each device and each iteration of the loops around it.

        Raises:
          UndecidedError: Data decide.
        """
        return self._value(i, self._frame(self.module.home[i.id]))

    def _frame(self, computation: int) -> _Frame:
        if computation == self.module.entry.id:
            return _Frame(None, None, (self.num_devices,))
        callers = self.module.callers.get(computation, ())
        if len(callers) != 1:
            raise UndecidedError
        (caller,) = callers
        outer = self._frame(self.module.home[caller.id])
        sizes = outer.sizes
        if caller.opcode == "while":
            trips = trip_count(caller, self.module)
            if trips < 1 or trips != int(trips):
                raise UndecidedError
            sizes = (*sizes, int(trips))
        return _Frame(caller, outer, sizes)

    def _value(self, i: Any, frame: _Frame) -> Grid:
        key = i.id, frame.caller.id if frame.caller else 0
        if key not in self._known:
            found = self._compute(i, frame)
            if found.size > _MOST:
                raise UndecidedError
            self._known[key] = found
        return self._known[key]

    def _compute(self, i: Any, frame: _Frame) -> Grid:
        depth = len(frame.sizes)
        of = lambda n: self._value(self.module.operands(i)[n], frame)
        match i.opcode:
            case "constant":
                return _constant(i).reshape(*[1] * depth, *i.shape.dimensions)
            case "partition-id":
                devices = np.arange(self.num_devices)
                return devices.reshape(-1, *[1] * (depth - 1))
            case "replica-id":
                return np.zeros([1] * depth, int)
            case "parameter":
                given = self._given(i, frame)
                assert frame.outer is not None
                return self._value(given, frame.outer)
            case "get-tuple-element":
                return self._element(self.module.operands(i)[0], i.tuple_index, frame)
            case "fusion" | "call":
                (inner,) = self.module.called(i)
                return self._value(inner.root, _Frame(i, frame, frame.sizes))
            case "copy" | "copy-start" | "copy-done" | "optimization-barrier":
                return of(0)
            case "convert":
                return _converted(of(0), dtype_of(i.shape))
            case "iota":
                shape = tuple(i.shape.dimensions)
                found = np.indices(shape)[i.dimensions[0] if i.dimensions else 0]
                return found.reshape(*[1] * depth, *shape)
            case "broadcast":
                return _broadcast(of(0), i, depth)
            case "reshape" | "bitcast":
                return _reshaped(of(0), i, depth)
            case "slice":
                cut = [slice(s.start, s.limit, s.stride) for s in i.slices]
                return of(0)[(..., *cut)]
            case "dynamic-slice":
                return self._dynamic_slice(i, frame)
            case "compare":
                return _COMPARED[i.comparison_direction](of(0), of(1))
            case "select":
                return np.where(of(0), of(1), of(2))
            case "clamp":
                return np.clip(of(1), of(0), of(2))
        if (one := _OF_ONE.get(i.opcode)) is not None:
            return one(of(0))
        if (two := _OF_TWO.get(i.opcode)) is not None:
            return two(of(0), of(1))
        raise UndecidedError

    def _given(self, parameter: Any, frame: _Frame) -> Any:
        """What the caller of a computation, no loop, gives it."""
        caller = frame.caller
        if caller is None or caller.opcode == "while":
            raise UndecidedError
        operands = self.module.operands(caller)
        if caller.opcode == "conditional":
            ways = list(caller.called_computation_ids)
            return operands[1 + ways.index(self.module.home[parameter.id])]
        return operands[parameter.parameter_number]

    def _element(self, whole: Any, index: int, frame: _Frame) -> Grid:
        """One element of a tuple."""
        match whole.opcode:
            case "tuple":
                return self._value(self.module.operands(whole)[index], frame)
            case "copy" | "optimization-barrier":
                return self._element(self.module.operands(whole)[0], index, frame)
            case "while":  # after it; what it does not change is what it was given
                if self._changes(whole, index):
                    raise UndecidedError
                return self._element(self.module.operands(whole)[0], index, frame)
            case "parameter" if frame.outer is not None:
                if frame.caller.opcode == "while":
                    return self._of_a_loop(frame, index)
                return self._element(self._given(whole, frame), index, frame.outer)
        raise UndecidedError

    def _of_a_loop(self, frame: _Frame, index: int) -> Grid:
        """An element of a loop's state at the beginning of each iteration."""
        loop, outer = frame.caller, frame.outer
        assert outer is not None
        start = self._element(self.module.operands(loop)[0], index, outer)
        start = np.expand_dims(start, len(outer.sizes))
        if not self._changes(loop, index):
            return start
        by = step_of(self.module.called(loop)[0], index, self.module)
        if by is None or start.ndim > len(frame.sizes):
            raise UndecidedError
        return start + by * np.arange(frame.sizes[-1])

    def _changes(self, loop: Any, index: int) -> bool:
        """Whether an iteration gives the next one another value."""
        body = self.module.called(loop)[0]
        made = element_of(body.root, index, self.module)
        if made is None or made.opcode != "get-tuple-element":
            return True
        whole = self.module.operands(made)[0]
        return whole.opcode != "parameter" or made.tuple_index != index

    def _dynamic_slice(self, i: Any, frame: _Frame) -> Grid:
        whole, *starts = self.module.operands(i)
        found, depth = self._value(whole, frame), len(frame.sizes)
        for n, (start, size) in enumerate(
            zip(starts, i.dynamic_slice_sizes, strict=True)
        ):
            first = self._value(start, frame)
            last = found.shape[depth + n] - size
            rank = found.ndim - depth
            at = np.clip(first, 0, last).reshape(*first.shape, *[1] * rank)
            steps = np.arange(size).reshape([-1 if k == n else 1 for k in range(rank)])
            found = np.take_along_axis(found, at + steps, axis=depth + n)
        return found


def _constant(i: Any) -> Grid:
    numbers, count = i.literal, int(np.prod(i.shape.dimensions, dtype=int))
    for values in (
        numbers.preds,
        numbers.s32s,
        numbers.s64s,
        numbers.u32s,
        numbers.u64s,
    ):
        if len(values) == count:
            return np.array(values, bool if values is numbers.preds else np.int64)
    raise UndecidedError  # a float, or left out


def _converted(value: Grid, dtype: str) -> Grid:
    if dtype == "bool":
        return value != 0
    if dtype.startswith(("int", "uint")):
        return value.astype(np.int64)
    raise UndecidedError


def _broadcast(value: Grid, i: Any, depth: int) -> Grid:
    grid, shape = value.shape[:depth], tuple(i.shape.dimensions)
    own = [1] * len(shape)
    for at, size in zip(i.dimensions, value.shape[depth:], strict=True):
        own[at] = size
    return np.broadcast_to(value.reshape(*grid, *own), (*grid, *shape))


def _reshaped(value: Grid, i: Any, depth: int) -> Grid:
    shape = tuple(i.shape.dimensions)
    if sum(size > 1 for size in value.shape[depth:]) > 1:
        raise UndecidedError  # it may be a transpose
    return value.reshape(*value.shape[:depth], *shape)


def _divided(a: Grid, b: Grid) -> Grid:
    if not np.all(b):
        raise UndecidedError
    return (np.abs(a) // np.abs(b)) * np.sign(a) * np.sign(b)


def _rest(a: Grid, b: Grid) -> Grid:
    return a - _divided(a, b) * b


def _not(a: Grid) -> Grid:
    return np.logical_not(a) if a.dtype == bool else np.invert(a)


_COMPARED: dict[str, Callable[[Grid, Grid], Grid]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_OF_ONE: dict[str, Callable[[Grid], Grid]] = {
    "abs": np.abs,
    "negate": np.negative,
    "not": _not,
    "sign": np.sign,
}
_OF_TWO: dict[str, Callable[[Grid, Grid], Grid]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": _divided,
    "remainder": _rest,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
