"""The suite: kernels of which training steps are made, with their work."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

MIB = 2**20


@dataclass(frozen=True)
class Kernel:
    """One thing to time.

    Attributes:
      name: Unique in its group.
      make: Allocates; gives a function and its arguments.
      flops: A multiply-add as two.
      bytes: To and from memory at least.
      dtype: Of the operands.
      options: How it is compiled otherwise than by default.
    """

    name: str
    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    flops: float
    bytes: float
    dtype: str
    options: dict[str, Any] = field(default_factory=dict)


def groups(platform: str) -> tuple[str, ...]:
    """The groups that are timed on a platform."""
    common = ("matmul", "elementwise", "arithmetic", "reduction", "launch")
    if platform == "cpu":
        return common
    return (*common, "attention", "norm", "convolution", "transfer", "overlap")


def suite(platform: str, quick: bool = False) -> dict[str, list[Kernel]]:
    """The kernels of every group, in sizes that suit the platform."""
    gpu = platform == "gpu"
    sizes = (128,) if quick else (2048, 4096, 8192) if gpu else (512, 1024)
    dtypes = ("bfloat16", "float16", "float32") if gpu else ("float32", "bfloat16")
    # Several times what a card's caches hold, or they are what is measured.
    streams = (1 * MIB,) if quick else (512 * MIB, 2048 * MIB) if gpu else (128 * MIB,)
    scale = 1 if quick or not gpu else 8
    return {
        "matmul": [_matmul(n, d) for n in sizes for d in dtypes],
        "elementwise": [_elementwise(size, d) for size in streams for d in dtypes[:1]],
        "arithmetic": [_arithmetic(max(1, streams[0] // 4))],
        "reduction": [_reduction(size) for size in streams],
        "launch": [_chain(50), _chain(250)],
        "graph": [_chain(50, in_a_graph=True), _chain(250, in_a_graph=True)],
        "attention": [_attention(4, 256 * scale, 8, 64)],
        "norm": [_norm(512 * scale, 512 * scale)],
        "convolution": [_convolution(4 * scale, 28, 32 * scale)],
        "transfer": [
            _transfer(size, to) for size in streams for to in ("host", "device")
        ],
        "overlap": [_beside(streams[0], sizes[-1], *which) for which in _TOGETHER],
    }


def _normal(*shape: int, dtype: str = "float32", seed: int = 0) -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def _width(dtype: str) -> int:
    return jnp.dtype(dtype).itemsize


def _matmul(n: int, dtype: str) -> Kernel:
    def make():
        # Two arrays: of one with itself, half of the reads come from the caches.
        a, b = (_normal(n, n, dtype=dtype, seed=k) for k in (0, 1))
        return (lambda a, b: a @ b), (a, b)

    return Kernel(f"{n} {dtype}", make, 2.0 * n**3, 3.0 * n * n * _width(dtype), dtype)


def _elementwise(size: int, dtype: str) -> Kernel:
    def make():
        x = _normal(size // _width(dtype), dtype=dtype)
        return (lambda x: x * 2 + 1), (x,)

    elements = size // _width(dtype)
    return Kernel(f"{size // MIB} MiB", make, 2.0 * elements, 2.0 * size, dtype)


def _arithmetic(size: int) -> Kernel:
    """Hundreds of multiply-adds for every number read, none of them in a matmul."""
    elements, depth = size // 4, 256

    def make():
        def run(x):
            y = x
            for _ in range(depth):
                y = y * x + 0.5
            return y

        return run, (_normal(elements) * 0.1,)

    return Kernel(f"{depth} deep", make, 2.0 * depth * elements, 2.0 * size, "float32")


def _reduction(size: int) -> Kernel:
    rows = size // 4 // 1024

    def make():
        return (lambda x: x.sum(1)), (_normal(rows, 1024),)

    return Kernel(f"{size // MIB} MiB", make, rows * 1024.0, float(size), "float32")


def _chain(length: int, in_a_graph: bool = False) -> Kernel:
    """Small matmuls, each waiting for the one before: time from kernel to kernel.

    Kernels of a CUDA graph are started together, others one by one.
    """

    def make():
        def run(x):
            for _ in range(length):
                # What is no product stands between, or they become one kernel.
                x = jax.lax.optimization_barrier(x @ x)
            return x

        return run, (jnp.eye(32),)

    apart = {} if in_a_graph else {"xla_gpu_enable_command_buffer": ""}
    flops = length * 2.0 * 32**3
    return Kernel(f"{length} in a row", make, flops, 0.0, "float32", apart)


def _attention(batch: int, length: int, heads: int, width: int) -> Kernel:
    shape = (batch, length, heads, width)

    def make():
        x = _normal(*shape, dtype="bfloat16")
        return jax.nn.dot_product_attention, (x, x, x)

    flops = 4.0 * batch * heads * length**2 * width
    return Kernel(f"{shape}", make, flops, 8.0 * math.prod(shape), "bfloat16")


def _norm(rows: int, width: int) -> Kernel:
    def make():
        def run(x):
            y = x.astype(jnp.float32)
            y = (y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(
                y.var(-1, keepdims=True) + 1e-6
            )
            return y.astype(x.dtype)

        return run, (_normal(rows, width, dtype="bfloat16"),)

    size = 2.0 * rows * width
    return Kernel(f"{rows} x {width}", make, 8.0 * rows * width, 2 * size, "bfloat16")


def _convolution(batch: int, side: int, features: int) -> Kernel:
    def make():
        def run(x, kernel):
            dims = ("NHWC", "HWIO", "NHWC")
            return jax.lax.conv_general_dilated(
                x, kernel, (1, 1), "SAME", dimension_numbers=dims
            )

        x = _normal(batch, side, side, features, dtype="bfloat16")
        return run, (x, _normal(3, 3, features, features, dtype="bfloat16"))

    elements = batch * side**2 * features
    flops = 2.0 * elements * features * 9
    return Kernel(f"3x3 of {features}", make, flops, 4.0 * elements, "bfloat16")


def _transfer(size: int, to: str) -> Kernel:
    """A copy between the device and pinned memory of its host."""

    def make():
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        host = device.with_memory_kind("pinned_host")
        start, end = (device, host) if to == "host" else (host, device)
        x = jax.device_put(_normal(size // 4), start)
        return (lambda x: jax.device_put(x, end)), (x,)

    return Kernel(f"{size // MIB} MiB to the {to}", make, 0.0, float(size), "float32")


_TOGETHER = ((True, False), (False, True), (True, True))


def _beside(size: int, side: int, computes: bool, copies: bool) -> Kernel:
    """Products, copies to the host and back, and both at once.

    Where copies hide, both take as long as the longer one.
    """
    depth = 8

    def make():
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        host = device.with_memory_kind("pinned_host")
        x = _normal(size // 4)
        y = jax.device_put(_normal(size // 4, seed=1), host)
        a, b = (_normal(side, side, dtype="bfloat16", seed=k) for k in (2, 3))

        def run(x, y, a, b):
            out = []
            if copies:
                out += [jax.device_put(x, host), jax.device_put(y, device)]
            if computes:
                for _ in range(depth):
                    a = jnp.tanh(a @ b)
                out.append(a)
            return out

        return run, (x, y, a, b)

    what = " and ".join(["products"] * computes + ["copies"] * copies)
    flops = depth * 2.0 * side**3 * computes
    return Kernel(what, make, flops, 2.0 * size * copies, "bfloat16")
