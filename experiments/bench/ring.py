"""Attention around a ring of devices, by plain products and by cuDNN.

    python -m experiments.bench.ring

The gradient of causal attention to 131,072 positions of 8 heads of 128, in bfloat16,
compiled ahead of time for 2, 4 and 8 H100. Prints bytes on each device, the estimated
step, and what of it waits for keys and values of another device.

Expected: bytes fall as one over the devices; of 8, at most a tenth of a step waits.
"""

import sys
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import tyro

import revremat as rr
from revremat import sharding


@dataclass(frozen=True)
class Attention:
    """What is compiled.

    Attributes:
      length: Of the sequence.
      heads: Of attention.
      width: Of each.
      card: Which the devices are.
      devices: How many, one after the other.
    """

    length: int = 131_072
    heads: int = 8
    width: int = 128
    card: str = "h100"
    devices: tuple[int, ...] = (2, 4, 8)


def measure(asked: Attention, devices: int, kernel: sharding.RingKernel | None):
    """Compile the gradient for so many devices.

    Args:
      asked: What is compiled.
      devices: In the ring.
      kernel: What attends to a piece of keys; None for plain products.
    """
    target = rr.target(f"{asked.card}:{devices}")
    mesh = target.mesh({"data": 1, "context": devices})
    layout = sharding.Layout(mesh, sharding.context_parallel("context"))

    def loss(q, k, v):
        y = sharding.ring_attention(layout, q, k, v, causal="zigzag", kernel=kernel)
        return (y.astype(jnp.float32) ** 2).sum()

    where = jax.NamedSharding(mesh, jax.P(None, "context"))
    shape = 1, asked.length, asked.heads, asked.width
    x = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=where)
    return rr.measure(jax.grad(loss, (0, 1, 2)), x, x, x, target=target)


def main() -> int:
    """A line for each number of devices."""
    asked = tyro.cli(Attention, description=__doc__)
    print(f"{'devices':>7}  {'by':16}{'on each device':>15}{'a step':>10}{'waits':>8}")
    for label, kernel in (("plain products", None), ("cuDNN", sharding.CudnnKernel())):
        for devices in asked.devices:
            found = measure(asked, devices, kernel)
            time, size = found.time, rr.format_bytes(found.memory.total_bytes)
            waits = f"{time.exposed_collective_us / time.step_us:.1%}"
            took = rr.format_us(time.step_us)
            print(f"{devices:>7}  {label:16}{size:>15}{took:>10}{waits:>8}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
