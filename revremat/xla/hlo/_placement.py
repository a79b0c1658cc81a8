"""Where a value lies: its allocation and offset, followed through tuples and loops."""

from typing import Any

from revremat.xla.hlo._hlo import Module

_MOST_STEPS = 200


def place_of(i: Any, module: Module) -> tuple[int, int] | None:
    """Where an instruction's value lies: allocation, and bytes from its start.

    What a loop carries lies where the loop was given it.

    Args:
      i: Its value is an array.
      module: Its module.

    Returns:
      None if that cannot be told.
    """
    index: tuple[int, ...] = ()
    for _ in range(_MOST_STEPS):
        if (i.id, index) in module.places:
            return module.places[i.id, index]
        operands = module.operands(i)
        match i.opcode:
            case "get-tuple-element":
                i, index = operands[0], (i.tuple_index, *index)
            case "tuple" if index and index[0] < len(operands):
                i, index = operands[index[0]], index[1:]
            case "bitcast" | "while" | "opt-barrier" if operands:
                i = operands[0]
            case "parameter":
                callers = module.callers.get(module.home[i.id], [])
                given = module.operands(callers[0]) if callers else []
                number = i.parameter_number
                looks = callers and callers[0].opcode in ("while", "call")
                if not looks or number >= len(given):
                    return None
                i = given[number]
            case _:
                return None
    return None
