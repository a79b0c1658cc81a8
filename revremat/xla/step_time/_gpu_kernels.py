"""What kernels on NVIDIA cards take, as XLA writes them or its libraries do.

A roofline of bytes and FLOPs, and what an H100 added to it, kernel by kernel. The
numbers of a card are in `cards.toml`; a card without one leaves that out.

- `blocks_per_clock`: a loop fusion starts a block of threads for every 512 elements,
  and a card starts so many in a clock: narrow elements are filled slower than memory
  takes them.
- `block_fusion_share`: of the bandwidth of loops that Triton's fusions reach: each
  block loads its tile, works on it, and only then writes.
- `far_pieces`: pieces of a tile, far apart in memory, that halve this where the tile is
  reduced, as all of them have to be there first; half as many where a second reduction
  waits for the first, as in a softmax.
- `atomics_per_clock`: elements that a scatter adds to others.
- `computed_operand_share`: of a library's rate that products reach whose operands are
  computed on the way, and cannot be copied to the matrix units as they lie.
- `uneven_rows_share`: the same where rows are no multiple of 16 bytes: nothing copies
  those asynchronously.
- `convolution_share`: the same of convolutions.
- `full_clock_share`, `lower_clock`: see `lower_clock_us`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

from revremat.xla.hlo._hlo import Module, backend_config, elements_of
from revremat.xla.hlo._opcodes import ELEMENTWISE, FILLS, PASSES_ON
from revremat.xla.step_time._cost import Cost, cost_of
from revremat.xla.step_time._gpu_traffic import (
    blocks_of,
    bytes_apart,
    far_pieces,
    moved_bytes,
)
from revremat.xla.step_time._roofline import arithmetic_us, roofline_us
from revremat.xla.step_time._unmodeled import is_marker
from revremat.xla.target._cards import Card

_COPIED_BYTES = 16  # what asynchronous copies move at a time
_AS_IT_LIES = ("bitcast", "reshape")
_FOLLOWED = ELEMENTWISE | PASSES_ON


def lower_clock_us(products_us: float, compute_us: float, card: Card) -> float:
    """What a step takes longer because products draw more power than the card has.

    The clock falls where kernels are products for more than a share of their time.

    Args:
      products_us: In which matrix units are busy.
      compute_us: Of all kernels.
      card: `full_clock_share` of the time may be products at the full clock; beyond
        it each share of the time costs them `lower_clock` of theirs.
    """
    slope = _number(card, "lower_clock", 0)
    if not slope or not compute_us:
        return 0.0
    beyond = products_us / compute_us - _number(card, "full_clock_share")
    return products_us * slope * max(0.0, beyond)


def gpu_kernel_us(i: Any, module: Module, card: Card) -> tuple[float, Cost]:
    """Time of one instruction on an NVIDIA card, and the work it does.

    Args:
      i: An instruction that runs by itself.
      module: Its module.
      card: An NVIDIA card.
    """
    if is_marker(i):
        return 0.0, Cost({}, 0.0, 0.0)
    cost = cost_of(i, module)
    if i.opcode == "fusion":
        cost = dataclasses.replace(cost, bytes=moved_bytes(i, module))
        slower = dataclasses.replace(cost, bytes=cost.bytes / _reach(i, module, card))
        us = roofline_us(slower, card)
        inside = module.called(i)[0].instructions
    else:
        us, inside = roofline_us(cost, card), [i]
    least = [arithmetic_us(cost, card) / _product_share(inside, module, card)]
    if i.fusion_kind == "kLoop" and (rate := _number(card, "blocks_per_clock", 0)):
        least.append(_in_clocks(blocks_of(i, module) / rate, card))
    if rate := _number(card, "atomics_per_clock", 0):
        least.append(_in_clocks(_added(inside, module) / rate, card))
    if max(least) > 0:
        us = max(us, card.launch_us + max(least))
    return us, cost


def _added(inside: Sequence[Any], module: Module) -> int:
    """Elements that scatters add to others."""
    return sum(
        elements_of(module.operands(x)[-1].shape)
        for x in inside
        if x.opcode == "scatter"
    )


def _in_clocks(clocks: float, card: Card) -> float:
    """Microseconds."""
    return clocks / (1e3 * _number(card, "clock_rate_ghz"))


def _reach(i: Any, module: Module, card: Card) -> float:
    """Of the bandwidth of plain loops, that a fusion reaches."""
    kind = backend_config(i).get("fusion_backend_config", {}).get("kind", "")
    if not kind.startswith("__triton"):
        return 1.0
    share = _number(card, "block_fusion_share")
    half = _number(card, "far_pieces", 0)
    inside = module.called(i)[0].instructions
    passes = min(2, sum(x.opcode == "reduce" for x in inside))
    if half and passes:
        share /= 1 + passes * (far_pieces(i, module) - 1) / half
    return share


def _product_share(inside: Sequence[Any], module: Module, card: Card) -> float:
    """Of a library's rate, that the slowest of a kernel's products reaches."""
    share = 1.0
    for product in inside:
        is_dot, target = product.opcode == "dot", product.custom_call_target
        if "conv" in target.lower():
            share = min(share, _number(card, "convolution_share"))
        if not is_dot and "gemm" not in target and "matmul" not in target:
            continue
        for operand in module.operands(product)[:2]:
            source = _source(operand, module)
            if source is not None and bytes_apart(source.shape) % _COPIED_BYTES:
                share = min(share, _number(card, "uneven_rows_share"))
            elif is_dot and _is_computed(operand, module):
                share = min(share, _number(card, "computed_operand_share"))
    return share


def _number(card: Card, name: str, absent: float = 1.0) -> float:
    return float(card.description.get(name, absent))


def _source(operand: Any, module: Module) -> Any | None:
    """The array in memory that an operand of a product is made of, where it is one."""
    size = elements_of(operand.shape)
    while operand.opcode != "parameter" and operand.opcode in _FOLLOWED:
        large = [o for o in module.operands(operand) if 2 * elements_of(o.shape) > size]
        if len(large) != 1:
            return None
        operand = large[0]
    return operand


def _is_computed(operand: Any, module: Module) -> bool:
    """Whether a value inside a fusion is more than a parameter of it."""
    while operand.opcode in _AS_IT_LIES and operand.operand_ids:
        operand = module.operands(operand)[0]
    return operand.opcode not in ("parameter", *FILLS)
