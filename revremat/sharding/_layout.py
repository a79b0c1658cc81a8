"""Layout: activations laid out by their dimensions' names, in one's own code."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding

from revremat._errors import UserError
from revremat.sharding._axes import AxisRules, users_line

_STREAM = "batch", "norm_length", "embed"
"""Of the residual stream: what is gathered before products, and scattered after."""


@dataclass(frozen=True)
class Layout:
    """Lays activations out over a mesh by the names of their dimensions.

    Inside of `jax.shard_map` an array is its device's shard already: there a call
    changes nothing, and `gather` and `scatter` are the collectives themselves.

    Attributes:
      mesh: The devices; they need not exist on this machine.
      rules: Which mesh axes each name is cut over.

    Example:
      >>> import jax, jax.numpy as jnp, revremat as rr
      >>> from revremat import sharding
      >>> mesh = rr.target("cpu:2").mesh({"data": 1, "model": 2})
      >>> layout = sharding.Layout(mesh, sharding.megatron(sequence=True))
      >>> x = jnp.ones((1, 8, 4))
      >>> layout(x, "batch", "norm_length", "embed").sharding.spec
      P(None, 'model')
    """

    mesh: Mesh
    rules: AxisRules

    def __call__(self, x: jax.Array, *names: str | None) -> jax.Array:
        """The same array, where its names say.

        Args:
          x: Any array.
          *names: One for each dimension.

        Raises:
          UserError: As `AxisRules.spec`, with the line that calls.
        """
        spec = self._spec(x, names)
        if self._manual():
            return x
        return jax.lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def gather(
        self, x: jax.Array, *names: str | None, name: str | None = None
    ) -> jax.Array:
        """What every device needs whole, from shards that can be saved.

        The shard is laid out, named, laid out again and only then gathered: a value
        that is named and then gathered would be saved gathered.

        Args:
          x: The array, cut as `names` say.
          *names: One for each dimension; by default those of the residual stream,
            `batch`, `norm_length`, `embed`.
          name: What plans and `jax.checkpoint` policies call the shard.

        Returns:
          The array with its gathered dimensions whole on every device.

        Raises:
          UserError: As `AxisRules.spec`.
        """
        names = names or _STREAM
        if self._manual():
            x = x if name is None else checkpoint_name(x, name)
            for dim, axis in self._gathered(names):
                x = jax.lax.all_gather(x, axis, axis=dim, tiled=True)
            return x
        x = self(x, *names)
        if name is not None:
            x = self(checkpoint_name(x, name), *names)
        return self(x, *self.rules.whole(names))

    def scatter(self, x: jax.Array, *names: str | None) -> jax.Array:
        """Partial sums of a product, added up and cut again.

        Args:
          x: What a product over a cut dimension gave; within `jax.shard_map`, this
            device's part of the sum.
          *names: One for each dimension of the result; by default those of the
            residual stream.

        Raises:
          UserError: As `AxisRules.spec`.
        """
        names = names or _STREAM
        if not self._manual():
            return self(x, *names)
        gathered = self._gathered(names)
        for dim, axis in gathered:
            x = jax.lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)
        return x

    def _spec(self, x: Any, names: tuple[str | None, ...]) -> jax.P:
        array = f"{jax.numpy.dtype(x.dtype).name}{list(x.shape)}{users_line()}"
        sizes = {axis: self._sizes().get(axis, 1) for axis in self.mesh.axis_names}
        return self.rules.spec(names, x.shape, sizes, array=array)

    def _sizes(self) -> Mapping[str, int]:
        return {} if self._manual() else dict(self.mesh.shape)

    def _manual(self) -> bool:
        """Whether this is traced inside of a `shard_map` over the mesh's axes."""
        manual = set(jax.sharding.get_abstract_mesh().manual_axes)
        if manual and not manual >= set(self.mesh.axis_names):
            raise UserError(
                f"the shard_map{users_line()} leaves axes of the layout's mesh to the "
                f"compiler: {sorted(set(self.mesh.axis_names) - manual)}; write it "
                "over all of them"
            )
        return bool(manual)

    def _gathered(self, names: tuple[str | None, ...]) -> list[tuple[int, Any]]:
        """Dimensions that a gather makes whole, and the mesh axes they are cut over."""
        found = []
        for dim, name in enumerate(names):
            if name is None or name not in self.rules.gathered:
                continue
            if axes := self.rules.activations[name]:
                found.append((dim, axes[0] if len(axes) == 1 else axes))
        return found
