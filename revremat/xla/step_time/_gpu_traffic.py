"""What a kernel on a GPU reads and writes, and how a block's part of it lies."""

import math
from typing import Any

from revremat.xla.hlo._hlo import Module, backend_config, elements_of, is_tuple, size_of
from revremat.xla.hlo._opcodes import SLICES

_PASSES = ("bitcast", "reshape", "convert", "copy", "transpose")
_PICKS = SLICES | {"gather"}
_IN_PLACE = ("dynamic-update-slice", "scatter")

FAR_BYTES = 1 << 16
"""Pieces of memory that lie so far apart are not fetched together."""


def moved_bytes(i: Any, module: Module) -> float:
    """Bytes of device memory that a fusion reads and writes.

    Of what it takes a slice of, the slice; of what it writes into, what it writes.

    Args:
      i: A fusion.
      module: Its module.
    """
    computation = module.called(i)[0]
    users: dict[int, list[Any]] = {}
    for inner in computation.instructions:
        for operand in inner.operand_ids:
            users.setdefault(operand, []).append(inner)
    total = sum(_read(p, users, module) for p in computation.parameters.values())
    return total + sum(_written(root, module) for root in roots(computation, module))


def roots(computation: Any, module: Module) -> list[Any]:
    """The instructions that make the results of a fused computation."""
    root = computation.root
    return module.operands(root) if root.opcode == "tuple" else [root]


def _read(value: Any, users: dict[int, list[Any]], module: Module) -> float:
    whole, read = float(size_of(value.shape)), 0.0
    for user in users.get(value.id, ()):
        if user.opcode in _PICKS and user.operand_ids[0] == value.id:
            read += size_of(user.shape)
        elif user.opcode in _IN_PLACE and user.operand_ids[0] == value.id:
            continue
        elif user.opcode in _PASSES and user.id in users:
            share = whole / max(1.0, size_of(user.shape))
            read += share * _read(user, users, module)
        elif user.opcode == "tuple":
            continue  # a result as it is
        else:
            return whole
    return min(whole, read)


def _written(root: Any, module: Module) -> float:
    inner = root
    while inner.opcode in ("bitcast", "convert", "copy") and inner.operand_ids:
        inner = module.operands(inner)[0]
    if inner.opcode == "dynamic-update-slice":
        return float(size_of(module.operands(inner)[1].shape))
    if inner.opcode == "scatter":  # what it adds to is read and written
        return 2.0 * size_of(module.operands(inner)[-1].shape)
    return 0.0 if root.opcode == "parameter" else float(size_of(root.shape))


def blocks_of(i: Any, module: Module) -> float:
    """Blocks of threads that a loop fusion starts: four elements for each of 128.

    Args:
      i: A fusion of kind `kLoop`.
      module: Its module.
    """
    most = 0
    for root in roots(module.called(i)[0], module):
        inner = root
        while inner.opcode in ("bitcast", "convert", "copy") and inner.operand_ids:
            inner = module.operands(inner)[0]
        if inner.opcode == "dynamic-update-slice":
            root = module.operands(inner)[1]
        if not is_tuple(root.shape):
            most = max(most, elements_of(root.shape))
    return most / (4 * 128)


def far_pieces(i: Any, module: Module) -> int:
    """Pieces of memory, far apart, that one block of a block-level fusion works on.

    Its tile of the result is followed to the arrays that the result is made of. A
    tile that spans neighbours in memory is one piece.

    Args:
      i: A fusion.
      module: Its module.

    Returns:
      The most that the tile of any such array falls into; 1 where the compiler notes
      no tile.
    """
    config = backend_config(i).get("fusion_backend_config", {})
    tiles = config.get("block_level_fusion_config", {}).get("output_tiles", ())
    found = 1
    seen: set[int] = set()
    for root, tile in zip(roots(module.called(i)[0], module), tiles, strict=False):
        waiting = [(root, [int(size) for size in tile.get("sizes", ())])]
        while waiting:
            value, sizes = waiting.pop()
            if value.id in seen or len(sizes) != len(value.shape.dimensions):
                continue
            seen.add(value.id)
            found = max(found, _pieces(value.shape, sizes))
            waiting += _behind(value, sizes, module)
    return found


def _behind(value: Any, tile: list[int], module: Module) -> list[tuple[Any, list[int]]]:
    """Operands of a value, and their part of its tile."""
    operands = module.operands(value)
    dimensions = list(value.shape.dimensions)
    match value.opcode:
        case "reduce":
            whole = list(operands[0].shape.dimensions)
            kept = iter(tile)
            return [
                (
                    operands[0],
                    [
                        size if d in value.dimensions else next(kept)
                        for d, size in enumerate(whole)
                    ],
                )
            ]
        case "broadcast":
            return [(operands[0], [tile[d] for d in value.dimensions])]
        case "transpose":
            inner = [0] * len(tile)
            for out, d in enumerate(value.dimensions):
                inner[d] = tile[out]
            return [(operands[0], inner)]
        case _:
            return [
                (o, tile) for o in operands if list(o.shape.dimensions) == dimensions
            ]


def _pieces(shape: Any, tile: list[int]) -> int:
    """Stretches of memory, far from one another, that a tile of an array covers."""
    width = size_of(shape) / max(1, elements_of(shape))
    step, joined, pieces = 1.0, True, 1
    for d in shape.layout.minor_to_major:
        size = shape.dimensions[d]
        covered = min(tile[d], size)
        if covered > 1 and not joined and step * width >= FAR_BYTES:
            pieces *= covered
        joined = joined and covered == size
        step *= size
    return pieces


def bytes_apart(shape: Any) -> float:
    """Bytes from one row of a matrix to the next: those of its fastest dimension."""
    for d in shape.layout.minor_to_major:
        if shape.dimensions[d] > 1:
            return shape.dimensions[d] * size_of(shape) / math.prod(shape.dimensions)
    return 0.0
