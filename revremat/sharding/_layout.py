"""Layout: activations laid out by their dimensions' names, in one's own code."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh, NamedSharding

from revremat import _compat
from revremat._errors import UserError
from revremat.sharding._axes import AxisRules, check_laid_out_by, users_line

_STREAM = "batch", "norm_length", "embed"
"""Of the residual stream: what is gathered before products, and scattered after."""


@dataclass(frozen=True)
class Layout:
    """Lays activations out over a mesh by the names of their dimensions.

    Inside of `jax.shard_map` an array is its device's shard already: there a call
    changes nothing, and `gather` and `scatter` are the collectives themselves.
    Elsewhere `gather` and `scatter` have a reverse derivative only.

    Attributes:
      mesh: The devices; they need not exist on this machine.
      rules: Which mesh axes each name is cut over.

    Raises:
      UserError: The mesh or the rules are something else.

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

    def __post_init__(self):
        check_laid_out_by("sharding.Layout", self.mesh, self.rules)

    def __call__(self, x: jax.Array, *names: str | None) -> jax.Array:
        """The same array, where its names say.

        Args:
          x: Any array.
          *names: One for each dimension.

        Raises:
          UserError: As `AxisRules.spec`, with the line that calls.
        """
        where = self._where(x, names)
        return x if self.is_manual() else _placed(x, where)

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
        if self.is_manual():
            x = x if name is None else checkpoint_name(x, name)
            for dim, axis in self._gathered(names):
                x = jax.lax.all_gather(x, axis, axis=dim, tiled=True)
            return x
        shard = self._where(x, names)
        whole = self._where(x, self.rules.whole(names))
        x = _placed(x, shard)
        if name is not None:
            x = _placed(checkpoint_name(x, name), shard)
        # The cotangent is a sum over devices, which is to be cut and never whole.
        return x if whole == shard else _moved(x, (whole,), (shard,))

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
        if not self.is_manual():
            shard = self._where(x, names)
            whole = self._where(x, self.rules.whole(names))
            if whole == shard:
                return _placed(x, shard)
            # The cotangent is gathered once, however many products take it.
            return _moved(x, (shard,), (shard, whole))
        for dim, axis in self._gathered(names):
            x = jax.lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True)
        cut = {axis for axes in self._cuts(names) for axis in axes}
        parts = _compat.varying_axes(x) - cut
        return jax.lax.psum(x, tuple(sorted(parts))) if parts else x

    def spec(self, x: Any, *names: str | None) -> jax.P:
        """Over which mesh axes each dimension is cut, as `jax.shard_map` takes it.

        Args:
          x: Any array, or its shape and dtype.
          *names: One for each dimension.

        Raises:
          UserError: As `AxisRules.spec`.
        """
        return self._where(x, names).spec

    def key(self, key: Any, *names: str | None) -> Any:
        """A key for drawing an array of these names: dropout, noise.

        Within `jax.shard_map` it is another one on every shard; elsewhere it is `key`,
        since there a whole array is drawn.

        Args:
          key: A JAX key, equal on all devices; None stays None.
          *names: One for each dimension of what is drawn.
        """
        if key is None or not self.is_manual():
            return key
        for axes in self._cuts(names):
            for axis in axes:
                key = jax.random.fold_in(key, jax.lax.axis_index(axis))
        return key

    def _where(self, x: Any, names: tuple[str | None, ...]) -> NamedSharding:
        array = f"the {jax.numpy.dtype(x.dtype).name} array{users_line()}"
        sizes = {axis: self._sizes().get(axis, 1) for axis in self.mesh.axis_names}
        spec = self.rules.spec(names, x.shape, sizes, array=array)
        return NamedSharding(self.mesh, spec)

    def _sizes(self) -> Mapping[str, int]:
        return {} if self.is_manual() else dict(self.mesh.shape)

    def is_manual(self) -> bool:
        """Whether this is traced inside of a `jax.shard_map` over the mesh's axes.

        Raises:
          UserError: The `shard_map` leaves some of them to the compiler, or does not
            track over which axes values vary.
        """
        manual = set(jax.sharding.get_abstract_mesh().manual_axes)
        if manual and not manual >= set(self.mesh.axis_names):
            raise UserError(
                f"the shard_map{users_line()} leaves axes of the layout's mesh to the "
                f"compiler: {sorted(set(self.mesh.axis_names) - manual)}; write it "
                "over all of them"
            )
        if manual and not _compat.knows_varying_axes():
            raise UserError(
                f"the shard_map{users_line()} has check_vma=False, so that nothing "
                "says which values are parts of sums; leave check_vma away"
            )
        return bool(manual)

    def _cuts(self, names: tuple[str | None, ...]) -> list[tuple[str, ...]]:
        """The mesh axes over which each dimension is cut; those of one device too."""
        return [() if n is None else self.rules.activations.get(n, ()) for n in names]

    def _gathered(self, names: tuple[str | None, ...]) -> list[tuple[int, Any]]:
        """Dimensions that a gather makes whole, and the mesh axes they are cut over."""
        pairs = zip(self._cuts(names), self._cuts(self.rules.whole(names)), strict=True)
        more = [tuple(axis for axis in cut if axis not in kept) for cut, kept in pairs]
        return [
            (dim, axes[0] if len(axes) == 1 else axes)
            for dim, axes in enumerate(more)
            if axes
        ]


def _placed(x: jax.Array, where: NamedSharding) -> jax.Array:
    """An array laid out by the compiler, or on an Explicit mesh by its type."""
    if jax.typeof(x).sharding.mesh.explicit_axes:
        return jax.sharding.reshard(x, where.spec)
    return jax.lax.with_sharding_constraint(x, where)


def _through(x: jax.Array, *places: NamedSharding) -> jax.Array:
    """An array laid out in one place after the other."""
    return functools.reduce(_placed, places, x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _moved(
    x: jax.Array, there: tuple[NamedSharding, ...], _: tuple[NamedSharding, ...]
) -> jax.Array:
    """An array laid out in some places, and its cotangent in others."""
    return _through(x, *there)


def _moved_forward(x, there, _):
    return _through(x, *there), None


def _moved_backward(_, back, __, g):
    return (_through(g, *back),)


_moved.defvjp(_moved_forward, _moved_backward)
