"""Where a model pins its activations, so that the compiler need not guess."""

from dataclasses import dataclass

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


@dataclass(frozen=True)
class Layout:
    """Pins arrays to the axes of a mesh; without one, pins nothing.

    Attributes:
      mesh: With the axes `data`, `fsdp` and `model`; None on one device.
      sequence: The residual stream is cut along the sequence over `model`, where
        tensor parallelism leaves it whole (Korthikanti et al. 2022).
    """

    mesh: Mesh | None = None
    sequence: bool = False

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The axes that examples are spread over."""
        if self.mesh is None:
            return ()
        return tuple(axis for axis in ("data", "fsdp") if self.mesh.shape[axis] > 1)

    def stream(self, x_BLD: jax.Array) -> jax.Array:
        """The residual stream: examples apart, tokens if asked for, width whole."""
        return self._pin(
            x_BLD, self.batch_axes or None, "model" if self.sequence else None
        )

    def table(self, w_VD: jax.Array) -> jax.Array:
        """An embedding about to be looked up: gathered over `fsdp`, not over `model`.

        Looking up in a table whose width is cut would turn the batch's axis into the
        width's, which the partitioner can only do by replicating both.
        """
        return self._pin(w_VD, "model")

    def _pin(self, x: jax.Array, *axes: tuple[str, ...] | str | None) -> jax.Array:
        if self.mesh is None or self.mesh.size == 1:
            return x
        where = NamedSharding(self.mesh, PartitionSpec(*axes))
        return jax.lax.with_sharding_constraint(x, where)


ONE_DEVICE = Layout()
