"""What kernels on a CPU take, as XLA's compiler writes them or its libraries do.

A roofline of bytes and FLOPs, and what single kernels added to it. Each is a curve of a
measured card; a card without one leaves that out.

- `loop`: loads, operations and branches a second of a loop fusion, by length of its
  innermost loop. LLVM unrolls a short one, and then computes number by number.
- `loop.large`: the same of loops with much to do for an element: unrolled, they are too
  long for LLVM to find vectors in them.
- `loop.by_number`: the same of loops that read starts of slices anew for each element
  (`_starts`), by what is done for one.
- `loop.crowded`: loads/s beyond that, of rows that push one another out of the
  first-level cache, by how many are read for an element.
- `row_operations`: elements/s of one operation in a kernel of YNNPACK's, by length of
  the rows. It goes over a row at a time, with one operation after the other.
"""

import dataclasses
import math
from typing import Any

from revremat.xla.hlo._hlo import Module, elements_of
from revremat.xla.hlo._opcodes import FREE, MOVES, TRANSCENDENTAL
from revremat.xla.step_time._cost import Cost, cost_of
from revremat.xla.step_time._evaluations import evaluations_of
from revremat.xla.step_time._roofline import (
    functions_us,
    rate_at,
    roofline_us,
)
from revremat.xla.target._cards import Card

_LARGE_BODY = 20
"""Work for an element, beyond which LLVM finds no vectors in a loop that it unrolls."""


def cpu_kernel_us(i: Any, module: Module, card: Card) -> tuple[float, Cost]:
    """Time of one instruction on a CPU, and the work it does.

    Args:
      i: An instruction that runs by itself.
      module: Its module.
      card: A CPU.
    """
    cost = cost_of(i, module)
    us = roofline_us(cost, card)
    if i.opcode != "fusion" or us == 0:
        return us, cost
    if i.fusion_kind == "kCustom":
        more = _rows_us(i, module, card) + functions_us(cost.functions, card)
        if cost.matmuls:  # it follows the product
            product = dataclasses.replace(cost, functions={}, other_flops=0.0)
            more += roofline_us(product, card) - card.launch_us
    elif i.fusion_kind == "kLoop" and not cost.matmuls:
        more = _loop_us(i, module, cost, card)
    else:
        return us, cost
    return max(us, card.launch_us + more), cost


def _loop_us(i: Any, module: Module, cost: Cost, card: Card) -> float:
    """A loop over the result that evaluates all that an element is made of."""
    found = evaluations_of(i, module)
    seconds = 0.0
    vectors = found.work
    if found.by_number and (curve := card.curves.get("loop.by_number")):
        vectors -= found.by_number
        seconds = found.by_number / rate_at(curve, found.by_number / found.elements)
    large = vectors > _LARGE_BODY * found.elements
    if curve := card.curves.get("loop.large" if large else "loop"):
        seconds += vectors / rate_at(curve, found.innermost)
    if found.crowded and (curve := card.curves.get("loop.crowded")):
        seconds += found.crowded / rate_at(curve, found.crowded / found.elements)
    return 1e6 * seconds + functions_us(found.functions, card)


def _rows_us(i: Any, module: Module, card: Card) -> float:
    """Operations of a kernel of YNNPACK's that are no products."""
    curve = card.curves.get("row_operations")
    if not curve:
        return 0.0
    seconds = 0.0
    for x in module.called(i)[0].instructions:
        if x.opcode in FREE | MOVES or x.opcode in ("dot", "convolution"):
            continue
        shape = module.operands(x)[0].shape if x.opcode == "reduce" else x.shape
        if x.opcode in TRANSCENDENTAL and f"function.{x.opcode}" in card.curves:
            continue
        seconds += elements_of(shape) / rate_at(curve, _row(shape))
    return 1e6 * seconds


def _row(shape: Any) -> int:
    """Elements of what lies densest: all dimensions of one element are left out."""
    large = [d for d in shape.layout.minor_to_major if shape.dimensions[d] > 1]
    return shape.dimensions[large[0]] if large else math.prod(shape.dimensions)
