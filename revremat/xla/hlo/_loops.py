"""How often a loop runs: as the compiler notes it, or read off its counter."""

import re
from typing import Any

from revremat._primitives import ITERATIONS
from revremat.xla.hlo._hlo import Computation, Module, backend_config
from revremat.xla.hlo._opcodes import COUNTER

_MEAN = re.compile(rf"{ITERATIONS}(\d+)/while$")


def trip_count(loop: Any, module: Module) -> float:
    """Iterations of a `while`.

    XLA notes them for CPUs and GPUs (`known_trip_count`). Its TPU compiler does not:
    there the loop's counter is looked for, an element of the loop's state that starts
    at a constant, grows by a constant, and is compared with a constant. A loop that
    runs as often as a table says has the mean of that in the name of its scope.

    Returns:
      The number, or 1 where nothing says it.
    """
    noted = backend_config(loop).get("known_trip_count", {}).get("n")
    if noted is not None:
        return int(noted)
    if mean := _MEAN.search(loop.metadata.op_name):
        return int(mean[1]) / 1000
    called = module.called(loop)
    if len(called) != 2 or not loop.operand_ids:
        return 1
    body, condition = called
    counted = _compared(condition, module)
    if counted is None:
        return 1
    index, direction, bound = counted
    start = _constant(element_of(module.operands(loop)[0], index, module), module)
    step = step_of(body, index, module)
    if start is None or not step:
        return 1
    # Iterations i = 0, 1, ... run while start + i * step compares so with the bound.
    distance = bound - start
    match direction:
        case "LT" if step > 0:
            count = -(-distance // step)
        case "LE" if step > 0:
            count = distance // step + 1
        case "GT" if step < 0:
            count = -(-distance // step)
        case "GE" if step < 0:
            count = distance // step + 1
        case "NE" if distance % step == 0:
            count = distance // step
        case _:
            return 1
    return max(0, count)


_MIRRORED = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE", "EQ": "EQ"}


def _compared(condition: Computation, module: Module) -> tuple[int, str, int] | None:
    """Which element of the state is compared how with which constant."""
    root, arguments = _unfused(condition.root, module)
    if root.opcode != "compare":
        return None
    one, two = (_resolve(o, arguments, module) for o in module.operands(root))
    for counter, limit, direction in (
        (one, two, root.comparison_direction),
        (two, one, _MIRRORED.get(root.comparison_direction, "")),
    ):
        bound = _constant(limit, module)
        if counter.opcode == "get-tuple-element" and bound is not None:
            return counter.tuple_index, direction, bound
    return None


def step_of(body: Computation, index: int, module: Module) -> int | None:
    """By how much a pass through the body changes an element of the state."""
    found = element_of(body.root, index, module)
    if found is None:
        return None
    made, arguments = _unfused(found, module)
    if made.opcode not in ("add", "subtract"):
        return None
    one, two = (_resolve(o, arguments, module) for o in module.operands(made))
    for counter, other in ((one, two), (two, one)):
        by = _constant(other, module)
        if by is None or counter.opcode != "get-tuple-element":
            continue
        if counter.tuple_index == index:
            if made.opcode == "add":
                return by
            return -by if counter is one else None
    return None


def _unfused(i: Any, module: Module) -> tuple[Any, list[Any]]:
    """The instruction that makes a value, and what its fusion's parameters are."""
    while i.opcode in COUNTER and i.operand_ids:
        i = module.operands(i)[0]
    if i.opcode in ("fusion", "call") and i.called_computation_ids:
        inner = module.called(i)[0].root
        while inner.opcode in COUNTER and inner.operand_ids:
            inner = module.operands(inner)[0]
        return inner, module.operands(i)
    return i, []


def _resolve(i: Any, arguments: list[Any], module: Module) -> Any:
    """Through moves, and from a fusion's parameter to what it stands for."""
    for _ in range(100):
        if i.opcode in COUNTER and i.operand_ids:
            i = module.operands(i)[0]
        elif i.opcode == "parameter" and i.parameter_number < len(arguments):
            i, arguments = arguments[i.parameter_number], []
        else:
            break
    return i


def element_of(value: Any, index: int, module: Module) -> Any | None:
    """An element of a tuple, where one instruction makes the tuple."""
    if value.opcode == "tuple" and index < len(value.operand_ids):
        return _resolve(module.operands(value)[index], [], module)
    return None


def _constant(i: Any, module: Module) -> int | None:
    if i is None:
        return None
    if i.opcode == "broadcast" and i.operand_ids:
        i = module.operands(i)[0]
    if i.opcode != "constant":
        return None
    numbers = i.literal
    for values in (numbers.s32s, numbers.s64s, numbers.u32s, numbers.u64s):
        if len(values) == 1:
            return int(values[0])
    return None
