"""What a convolution computes, and how a CPU's compiler has it done.

XLA's CPU compiler calls Eigen or YNNPACK for convolutions of one form: batch first,
features last, the kernel's output features last. It brings those of the program's own
level to that form, and none of a loop's body. What is left becomes a plain loop, the
innermost over input features: gradients by the kernel and by the input of each scanned
convolution. In gradients by the kernel the input features are the batch, whose rows lie
far apart.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from revremat.xla.hlo._hlo import Module, elements_of, size_of
from revremat.xla.hlo._placement import place_of
from revremat.xla.step_time._access import LINE_BYTES, SETS, WAYS, sets_of


class Convolution(NamedTuple):
    """One convolution.

    Attributes:
      kind: As `Matmul.kind`.
      flops: A multiply-add as two, of window positions that meet a real input.
      extent: As `Matmul.extent`.
    """

    kind: str
    flops: float
    extent: float


def convolution_of(i: Any, module: Module, fusion: Any = None) -> Convolution:
    """What a convolution computes.

    Args:
      i: The instruction.
      module: Its module.
      fusion: That it is part of. For one in a loop fusion the compiler writes a loop,
        and calls no library.
    """
    flops = _flops(i, module)
    if fusion is not None and fusion.fusion_kind == "kLoop":
        return _loop(i, module, flops, fusion)
    if i.feature_group_count > 1:
        kernel = module.operands(i)[1].shape
        features = kernel.dimensions[i.convolution.kernel_input_feature]
        return Convolution("grouped_convolution", flops, float(features))
    window = i.window.dimensions
    spatial = [i.shape.dimensions[d] for d in i.convolution.output_spatial]
    large = any(w.size > n for w, n in zip(window, spatial, strict=False))
    return Convolution("filter_gradient" if large else "convolution", flops, 0.0)


def _loop(i: Any, module: Module, flops: float, fusion: Any) -> Convolution:
    """A plain loop: along rows, or from row to row."""
    images, kernel = (operand.shape for operand in module.operands(i))
    dims = i.convolution
    walked = (images, dims.input_feature), (kernel, dims.kernel_input_feature)
    length = kernel.dimensions[dims.kernel_input_feature]
    pitches = [pitch for shape, d in walked if (pitch := _pitch(shape, d)) > LINE_BYTES]
    if not pitches or length == 1:
        return Convolution("loop_convolution", flops, float(length))
    sets = max(sets_of(pitch) for pitch in pitches)
    if _on_other_sets(i, module, fusion, sets):
        pitches = pitches[:1]
    fill = length * len(pitches) / (sets * WAYS)
    return Convolution("loop_convolution_rows", flops, fill)


def _on_other_sets(i: Any, module: Module, fusion: Any, sets: int) -> bool:
    """Whether the two operands begin on different sets, as far as can be told."""
    outside = module.operands(fusion)
    begins = set()
    for operand in module.operands(i):
        if operand.opcode != "parameter" or operand.parameter_number >= len(outside):
            return False
        place = place_of(outside[operand.parameter_number], module)
        if place is None:
            return False
        begins.add(place[1] // LINE_BYTES % (SETS // sets))
    return len(begins) > 1


def _pitch(shape: Any, dimension: int) -> int:
    """Bytes from one index of a dimension to the next."""
    step = size_of(shape) // max(1, elements_of(shape))
    for d in shape.layout.minor_to_major:
        if d == dimension:
            break
        step *= shape.dimensions[d]
    return step


def _flops(i: Any, module: Module) -> float:
    lhs, kernel = (operand.shape for operand in module.operands(i)[:2])
    dims, out = i.convolution, i.shape
    pairs = math.prod(
        _valid_pairs(
            out.dimensions[dims.output_spatial[d]],
            lhs.dimensions[dims.input_spatial[d]],
            window,
        )
        for d, window in enumerate(i.window.dimensions)
    )
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
