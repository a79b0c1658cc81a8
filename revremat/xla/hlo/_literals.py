"""The numbers of large constants, left out: nothing that is read depends on them."""

from revremat.xla.hlo._schema import HloProto

_LARGE_BYTES = 1 << 20
"""A module below that is kept as it is."""
_MOST_BYTES = 4096
"""Of a constant's numbers; how often a loop runs is one of them."""


def without_literals(hlo: bytes) -> bytes:
    """A serialized `HloProto` without the numbers of its large constants.

    A program may close over hundreds of megabytes. Shapes and buffers stay, so that
    sizes are the same; only compressing and reading the numbers would take seconds.
    """
    if len(hlo) < _LARGE_BYTES:
        return hlo
    proto = HloProto.FromString(hlo)
    for computation in proto.hlo_module.computations:
        for instruction in computation.instructions:
            is_constant = instruction.opcode == "constant"
            if is_constant and instruction.literal.ByteSize() > _MOST_BYTES:
                instruction.ClearField("literal")
    return proto.SerializeToString()
