"""What one HLO instruction does: floating-point operations and bytes moved."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from revremat.xla._hlo import Module, dtype_of, elements_of, size_of

_FREE = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "bitcast-convert",
    "after-all",
    "optimization-barrier",
    "partition-id",
    "replica-id",
    "domain",
    "opt-barrier",
    "add-dependency",
}
_TRANSCENDENTAL = {
    "exponential",
    "exponential-minus-one",
    "log",
    "log-plus-one",
    "tanh",
    "logistic",
    "sine",
    "cosine",
    "tan",
    "power",
    "erf",
    "rsqrt",
    "sqrt",
    "cbrt",
    "atan2",
    "divide",
}
_TRANSCENDENTAL_FLOPS = 8
_MOVES = {
    "broadcast",
    "copy",
    "reshape",
    "transpose",
    "slice",
    "dynamic-slice",
    "dynamic-update-slice",
    "concatenate",
    "gather",
    "pad",
    "reverse",
    "iota",
    "convert",
    "select",
    "reduce-precision",
}


@dataclass(frozen=True)
class Cost:
    """Work of one instruction on one device.

    Attributes:
      matmul_flops: In matrix units, a multiply-add as two, by dtype of the operands.
      other_flops: Elsewhere.
      bytes: Read from and written to device memory.
    """

    matmul_flops: dict[str, float]
    other_flops: float
    bytes: float

    @property
    def flops(self) -> float:
        """All of them."""
        return sum(self.matmul_flops.values()) + self.other_flops


def cost_of(i: Any, module: Module) -> Cost:
    """Work of one instruction, all of a fusion's together."""
    if i.opcode in _FREE:
        return Cost({}, 0.0, 0.0)
    matmul: dict[str, float] = {}
    other = _add_flops(i, module, matmul)
    return Cost(matmul, other, _bytes(i, module))


def _add_flops(i: Any, module: Module, matmul: dict[str, float]) -> float:
    """Adds matmul FLOPs by dtype to `matmul`; returns all others."""
    if i.opcode in ("fusion", "call") or (
        i.opcode == "custom-call" and i.called_computation_ids
    ):
        return sum(
            _add_flops(inner, module, matmul)
            for computation in module.called(i)
            for inner in computation.instructions
        )
    if i.opcode in _FREE or i.opcode in _MOVES:
        return 0.0
    flops = _matmul_flops(i, module)
    if flops:
        dtype = dtype_of(module.operands(i)[0].shape)
        matmul[dtype] = matmul.get(dtype, 0.0) + flops
        return 0.0
    if i.opcode in ("reduce", "reduce-window", "select-and-scatter"):
        return float(elements_of(module.operands(i)[0].shape))
    per_element = _TRANSCENDENTAL_FLOPS if i.opcode in _TRANSCENDENTAL else 1
    return float(per_element * elements_of(i.shape))


def _matmul_flops(i: Any, module: Module) -> float:
    if i.opcode == "dot":
        lhs = module.operands(i)[0].shape
        contracted = math.prod(lhs.dimensions[d] for d in i.dot.lhs_contracting)
        return 2.0 * elements_of(i.shape) * contracted
    if i.opcode == "convolution":
        return _convolution_flops(i, module)
    if i.opcode == "custom-call":
        return _library_flops(i, module)
    return 0.0


def _library_flops(i: Any, module: Module) -> float:
    """Calls of cuBLAS, cuDNN and oneDNN: their FLOPs follow from their shapes."""
    target = i.custom_call_target
    if "conv" in target.lower() and i.convolution.kernel_spatial:
        first, second = (o.shape for o in module.operands(i)[:2])
        out = i.shape.tuple_shapes[0] if i.shape.tuple_shapes else i.shape
        if "BackwardFilter" in target:
            features, kernel = second, out
        elif "BackwardInput" in target:
            features, kernel = first, second
        else:
            features, kernel = out, second
        outputs = kernel.dimensions[i.convolution.kernel_output_feature]
        return 2.0 * elements_of(features) * elements_of(kernel) / max(1, outputs)
    if "gemm" in target or "matmul" in target:
        operands = [o.shape for o in module.operands(i)[:2]]
        out = i.shape.tuple_shapes[0] if i.shape.tuple_shapes else i.shape
        if len(operands) == 2 and elements_of(out):
            # (m k) (k n) -> (m n): k^2 is their product over the result's square,
            # batch dimensions in all three.
            a, b, c = map(elements_of, (*operands, out))
            batch = 1
            if len(out.dimensions) > 2:
                batch = math.prod(out.dimensions[:-2])
            return 2.0 * c * math.sqrt(a * b / c / batch)
    return 0.0


def _convolution_flops(i: Any, module: Module) -> float:
    kernel = module.operands(i)[1].shape
    dims = i.convolution
    out, lhs = i.shape, module.operands(i)[0].shape
    pairs = 1.0
    for d, window in enumerate(i.window.dimensions):
        out_size = out.dimensions[dims.output_spatial[d]]
        in_size = lhs.dimensions[dims.input_spatial[d]]
        pairs *= _valid_pairs(out_size, in_size, window)
    out_other = out.dimensions[dims.output_batch] * out.dimensions[dims.output_feature]
    return 2.0 * pairs * out_other * kernel.dimensions[dims.kernel_input_feature]


def _valid_pairs(out_size: int, in_size: int, window: Any) -> float:
    """Pairs of output and window positions that meet a real input element."""
    base = window.base_dilation or 1
    positions = (
        np.arange(out_size)[:, None] * (window.stride or 1)
        - window.padding_low
        + np.arange(window.size)[None] * (window.window_dilation or 1)
    )
    inside = (positions >= 0) & (positions < (in_size - 1) * base + 1)
    return float(np.count_nonzero(inside & (positions % base == 0)))


def _bytes(i: Any, module: Module) -> float:
    if i.opcode == "fusion":
        return _fusion_bytes(i, module)
    operands = module.operands(i)
    match i.opcode:
        case "dynamic-update-slice":
            return 2.0 * size_of(operands[1].shape)
        case "copy-start":
            return 2.0 * size_of(operands[0].shape)
        case "dynamic-slice" | "slice" | "gather":
            return 2.0 * size_of(i.shape)
        case "scatter":
            return 3.0 * size_of(operands[-1].shape)
        case "broadcast" | "iota":
            return float(size_of(i.shape))
        case _:
            return float(size_of(i.shape) + sum(size_of(o.shape) for o in operands))


def _fusion_bytes(i: Any, module: Module) -> float:
    computation = module.called(i)[0]
    users: dict[int, list[Any]] = {}
    for inner in computation.instructions:
        for operand in inner.operand_ids:
            users.setdefault(operand, []).append(inner)
    total = 0.0
    for parameter in computation.parameters.values():
        total += _read_bytes(parameter, users, module)
    roots = [computation.root]
    while roots:
        root = roots.pop()
        if root.opcode == "tuple":
            roots += module.operands(root)
        elif root.opcode in ("bitcast", "copy", "convert") and root.operand_ids:
            inner = module.operands(root)[0]
            in_place = inner.opcode == "dynamic-update-slice"
            roots += [inner] if in_place else []
            total += 0 if in_place else size_of(root.shape)
        elif root.opcode == "dynamic-update-slice":
            total += size_of(module.operands(root)[1].shape)
        elif root.opcode != "parameter":
            total += size_of(root.shape)
    return total


def _read_bytes(value: Any, users: dict[int, list[Any]], module: Module) -> float:
    """Bytes of a fusion's input that are really read."""
    whole, read = float(size_of(value.shape)), 0.0
    for user in users.get(value.id, ()):
        if user.opcode in ("dynamic-slice", "slice", "gather"):
            read += size_of(user.shape)
        elif user.opcode == "dynamic-update-slice" and user.operand_ids[0] == value.id:
            continue
        elif user.opcode in ("bitcast", "reshape", "convert", "copy"):
            read += _read_bytes(user, users, module) * (
                whole / max(1.0, size_of(user.shape))
            )
        else:
            return whole
    return min(whole, read)
