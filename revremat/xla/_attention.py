"""Attention as one kernel of cuDNN's: its work, which only its shapes and mask tell."""

from dataclasses import dataclass
from typing import Any

from revremat.program._attention import attention_products, num_pairs
from revremat.xla._hlo import Module, backend_config, dtype_of

_SOFTMAX_FLOPS = 4  # of a pair beside its exponential: scale, maximum, difference, sum
_SOFTMAX_BACKWARD_FLOPS = 6


@dataclass(frozen=True)
class Attention:
    """The arithmetic of one call.

    Attributes:
      dtype: Of the queries.
      product_flops: In matrix units, a multiply-add as two.
      exponentials: One for each pair of a query and a key that it looks at.
      other_flops: Beside both.
    """

    dtype: str
    product_flops: float
    exponentials: float
    other_flops: float


def attention_of(call: Any, module: Module) -> Attention | None:
    """What a call of cuDNN's attention computes; None for other instructions."""
    target = call.custom_call_target
    if not target.startswith("__cudnn$fmha"):
        return None
    config = backend_config(call).get("cudnn_fmha_backend_config", {})
    sizes = config.get("intermediate_tensor_shape", {}).get("dimensions", ())
    operands = module.operands(call)[:3]
    if len(sizes) != 4 or len(operands) != 3:
        return None
    batch, heads, queries, keys = (int(size) for size in sizes)
    pairs = (
        batch
        * heads
        * num_pairs(
            queries,
            keys,
            causal="CAUSAL" in config.get("mask_type", ""),
            window=int(config.get("sliding_window_length", 0)),
        )
    )
    of_key, of_value = (operand.shape.dimensions[-1] for operand in operands[1:])
    backward = "Backward" in target
    products = attention_products(backward, of_key, of_value)
    other = _SOFTMAX_BACKWARD_FLOPS if backward else _SOFTMAX_FLOPS
    return Attention(
        dtype_of(operands[0].shape), 2.0 * pairs * products, pairs, other * pairs
    )
