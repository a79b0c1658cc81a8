"""Weights placed by the names that a Flax model gave their dimensions."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax

from revremat._errors import UserError
from revremat.sharding._axes import AxisRules

Names = tuple[str | None, ...]


@dataclass(frozen=True)
class Logical:
    """Axes by the names of an array's dimensions: a rule for weights and their moments.

    Linen's `nn.with_logical_partitioning` and NNX's `out_sharding` name dimensions.
    Arrays without names are left to the rules that follow.

    Attributes:
      rules: Which mesh axes each name is cut over.
      named: Names by an array's path; `resolve` reads them from the tree.

    Example:
      >>> import flax.linen as nn, jax, jax.numpy as jnp, revremat as rr
      >>> from revremat import sharding
      >>> init = nn.with_logical_partitioning(nn.initializers.ones, ("embed", "mlp"))
      >>> layer = nn.Dense(256, use_bias=False, kernel_init=init)
      >>> mesh = rr.target("h100:8").mesh({"data": 2, "model": 4})
      >>> rules = [sharding.Logical(sharding.megatron(axis="model"))]
      >>> args = jax.random.key(0), jnp.ones((1, 64))
      >>> state = sharding.abstract_state(layer.init, rules, mesh, *args)
      >>> jax.tree.leaves(state)[0].sharding.spec
      P(None, 'model')
    """

    rules: AxisRules
    named: Mapping[str, Names] = field(default_factory=dict, repr=False)

    def reading(self, shapes: Any) -> "Logical":
        """The same rule, knowing the names in a tree.

        Args:
          shapes: A tree of Flax's boxes, variables and plain arrays.

        Raises:
          UserError: Nothing in it has names.
        """
        named = dict(_names(shapes))
        if not named:
            raise UserError(
                "sharding.Logical: no array of the tree has names for its dimensions; "
                "write nn.with_logical_partitioning (Linen) or out_sharding= (NNX) at "
                "its parameters, or place them by ByPath or FSDP"
            )
        return dataclasses.replace(self, named=named)

    def place(self, path, shape, placed, axis_sizes):
        """What the array's names say; nothing where it has none."""
        if (names := self.named.get(path)) is None:
            return None
        spec = self.rules.spec(
            names, shape, axis_sizes, array=repr(path), is_weight=True
        )
        result = list(placed)
        for dim, entry in enumerate(spec):
            axes = (entry,) if isinstance(entry, str) else entry or ()
            if axes and placed[dim] and placed[dim] != axes:
                raise UserError(
                    f"{path!r}: the name {names[dim]!r} puts {axes} on dimension "
                    f"{dim}, where an earlier rule put {placed[dim]}; keep one of the "
                    "two"
                )
            result[dim] = axes or placed[dim]
        return tuple(result)


def _names(tree: Any) -> Iterator[tuple[str, Names]]:
    """The path of every array that has names, and those."""
    boxes, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: _names_of(x) is not None
    )
    for key, box in boxes:
        if (names := _names_of(box)) is None:
            continue
        for inner, _ in jax.tree_util.tree_flatten_with_path(box)[0]:
            path = jax.tree_util.keystr((*key, *inner), simple=True, separator="/")
            yield path, names


def _names_of(x: Any) -> Names | None:
    """What Flax keeps beside an array: Linen in a box, NNX in a variable."""
    meta, nnx = (sys.modules.get(name) for name in ("flax.core.meta", "flax.nnx"))
    found = None
    if meta is not None and isinstance(x, meta.Partitioned):
        found = x.names
    elif nnx is not None and isinstance(x, nnx.Variable):
        found = x.get_metadata().get("out_sharding")
    return None if found is None else tuple(found)


@contextlib.contextmanager
def names_alone() -> Iterator[None]:
    """While a state is made in the abstract: NNX takes names for no mesh axes."""
    nnx = sys.modules.get("flax.nnx")
    if nnx is None:
        yield
        return
    with nnx.use_eager_sharding(False):
        yield
