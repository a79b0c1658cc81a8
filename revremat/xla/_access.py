"""How the innermost loop of a fusion walks over its operands.

A loop over the result's fastest dimension that steps over an operand's rows touches a
cache line for every element; on a CPU that costs many times the bytes it reads.
"""

from typing import Any

from revremat.xla._hlo import Module, elements_of, size_of

LINE_BYTES = 64
_SAME = {
    "slice",
    "dynamic-slice",
    "dynamic-update-slice",
    "pad",
    "concatenate",
    "reverse",
    "convert",
    "copy",
    "select",
    "compare",
    "clamp",
}


def strided_reads(i: Any, module: Module) -> tuple[tuple[float, float], ...]:
    """Reads of a loop fusion that step over rows.

    Args:
      i: Any instruction; only fusions that compute something besides moving it count.
      module: Its module.

    Returns:
      For each operand so read: the number of reads, and the bytes of the cache lines
      that the innermost loop touches, of all such operands together.
    """
    if i.opcode != "fusion" or i.fusion_kind != "kLoop":
        return ()
    inside = module.called(i)[0].instructions
    if not any(x.opcode in ("transpose", "copy") for x in inside):
        return ()
    if all(x.opcode in _MOVERS for x in inside):
        return ()
    root = module.called(i)[0].root
    while root.opcode in ("bitcast", "tuple", "dynamic-update-slice"):
        number = 1 if root.opcode == "dynamic-update-slice" else 0
        root = module.operands(root)[number]
    fastest = _fastest(root.shape)
    if fastest is None:
        return ()
    found: dict[int, int] = {}
    _walk(root, fastest, module, found, set())
    # The bitcast around the root may have joined dimensions that are walked as one.
    outside = i.shape if root.shape.element_type == i.shape.element_type else root.shape
    joined = _fastest(outside)
    length = root.shape.dimensions[fastest]
    if joined is not None:
        length = max(length, outside.dimensions[joined])
    reads = float(elements_of(root.shape))
    footprint = sum(length * min(stride, LINE_BYTES) for stride in found.values())
    return tuple((reads, float(footprint)) for _ in found)


_MOVERS = {
    "parameter",
    "constant",
    "bitcast",
    "transpose",
    "copy",
    "slice",
    "reshape",
    "broadcast",
    "tuple",
}


def _fastest(shape: Any) -> int | None:
    """The dimension of more than one element that lies densest."""
    for d in shape.layout.minor_to_major:
        if shape.dimensions[d] > 1:
            return d
    return None


def _stride(shape: Any, dimension: int) -> int:
    """Elements from one index of a dimension to the next."""
    step = 1
    for d in shape.layout.minor_to_major:
        if d == dimension:
            return step
        step *= shape.dimensions[d]
    return step


def _walk(
    i: Any, d: int, module: Module, found: dict[int, int], seen: set[tuple[int, int]]
) -> None:
    """Follows dimension `d` of a value to the fusion's operands."""
    while True:
        if (i.id, d) in seen:
            return
        seen.add((i.id, d))
        operands = module.operands(i)
        match i.opcode:
            case "parameter":
                stride = _stride(i.shape, d)
                if stride > 1:
                    width = size_of(i.shape) // max(1, elements_of(i.shape))
                    if elements_of(i.shape) > i.shape.dimensions[d] > 1:
                        found[i.id] = stride * width
                return
            case "broadcast":
                if d not in i.dimensions:
                    return
                i, d = operands[0], list(i.dimensions).index(d)
            case "transpose":
                i, d = operands[0], i.dimensions[d]
            case "bitcast" | "reshape":
                inner = _same_stride(i.shape, d, operands[0].shape)
                if inner is None:
                    return
                i, d = operands[0], inner
            case _ if i.opcode in _SAME or _elementwise(i, operands):
                rank = len(i.shape.dimensions)
                for operand in operands:
                    if len(operand.shape.dimensions) == rank:
                        _walk(operand, d, module, found, seen)
                return
            case _:
                return


def _elementwise(i: Any, operands: list[Any]) -> bool:
    return bool(operands) and all(
        list(o.shape.dimensions) == list(i.shape.dimensions) for o in operands
    )


def _same_stride(shape: Any, d: int, other: Any) -> int | None:
    """The dimension of `other`, of the same elements in order, with `d`'s stride."""
    wanted = _stride(shape, d)
    for k in other.layout.minor_to_major:
        if other.dimensions[k] > 1 and _stride(other, k) == wanted:
            return k
    return None
