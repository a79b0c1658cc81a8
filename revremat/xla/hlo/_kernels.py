"""Kernels that the compiler did not make: cuDNN's attention, and those in Pallas.

What they compute is told by a call's shapes and mask, or by the kernel's author.
"""

from dataclasses import dataclass
from typing import Any

from revremat.program.ir._attention import attention_products, num_pairs
from revremat.xla.hlo._hlo import Module, backend_config, dtype_of

_PALLAS = ("__gpu$xla.gpu.triton", "mosaic_gpu", "tpu_custom_call")
_SOFTMAX_FLOPS = 4  # of a pair beside its exponential: scale, maximum, difference, sum
_SOFTMAX_BACKWARD_FLOPS = 6


@dataclass(frozen=True)
class Work:
    """The arithmetic of one call.

    Attributes:
      dtype: Of its first operand.
      product_flops: In matrix units, a multiply-add as two.
      functions: Transcendental ones.
      other_flops: Beside both.
    """

    dtype: str
    product_flops: float
    functions: float
    other_flops: float = 0.0


def work_of(call: Any, module: Module) -> Work | None:
    """What a kernel computes; None where that is not known, or it is no kernel."""
    if call.custom_call_target.startswith("__cudnn$fmha"):
        return _attention(call, module)
    if is_pallas(call):
        return _estimated(call, module)
    return None


def is_pallas(call: Any) -> bool:
    """Whether a call is a kernel in Pallas."""
    return call.custom_call_target.startswith(_PALLAS)


def has_opaque_kernels(module: Module) -> bool:
    """Whether there are kernels whose arithmetic is not known.

    Args:
      module: The scheduled program.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> from revremat import xla
      >>> target = rr.target("cpu:1")
      >>> artifact = xla.compile_step(jnp.sin, (jnp.ones(256),), target)
      >>> module = xla.Module.from_bytes(artifact.hlo)
      >>> xla.has_opaque_kernels(module)
      False
    """
    return any(
        i.opcode == "custom-call" and is_pallas(i) and work_of(i, module) is None
        for i in module.instructions.values()
    )


def _attention(call: Any, module: Module) -> Work | None:
    config = backend_config(call).get("cudnn_fmha_backend_config", {})
    sizes = config.get("intermediate_tensor_shape", {}).get("dimensions", ())
    operands = module.operands(call)[:3]
    if len(sizes) != 4 or len(operands) != 3:
        return None
    batch, heads, queries, keys = (int(size) for size in sizes)
    pairs = num_pairs(
        queries,
        keys,
        causal="CAUSAL" in config.get("mask_type", ""),
        window=int(config.get("sliding_window_length", 0)),
    )
    pairs *= batch * heads
    of_key, of_value = (operand.shape.dimensions[-1] for operand in operands[1:])
    backward = "Backward" in call.custom_call_target
    products = attention_products(backward, of_key, of_value)
    other = _SOFTMAX_BACKWARD_FLOPS if backward else _SOFTMAX_FLOPS
    dtype = dtype_of(operands[0].shape)
    return Work(dtype, 2.0 * pairs * products, pairs, other * pairs)


def _estimated(call: Any, module: Module) -> Work | None:
    """What its author says of a kernel; TPU's compiler passes it on."""
    config = backend_config(call).get("custom_call_config", {})
    estimate = config.get("cost_estimate")
    operands = module.operands(call)
    if not estimate or not operands:
        return None
    flops, functions = (
        float(estimate.get(key, 0)) for key in ("flops", "transcendentals")
    )
    return Work(dtype_of(operands[0].shape), flops, functions)
