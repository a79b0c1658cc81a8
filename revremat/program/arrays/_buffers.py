"""Arrays of many layers: one layer's is read and written in place."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class Each:
    """One array for each layer, where they are not stacked."""

    items: tuple[Any, ...]

    def tree_flatten(self):
        return self.items, None

    @classmethod
    def tree_unflatten(cls, aux: None, children: Any) -> "Each":
        del aux
        return cls(tuple(children))


def none_yet(length: int) -> Each:
    """Places for one array of each layer, none of which is there."""
    return Each((None,) * length)


def stack(each: Each, missing: Callable[[], Any]) -> Any:
    """The layers' arrays along a new first axis.

    Compilers fuse that into what reads it, an optimizer's update for one, where an
    array that layers were written into, one after the other, has to be read again.

    Args:
      each: The arrays, None for those that are missing.
      missing: Makes one in place of those.
    """
    items = [missing() if item is None else item for item in each.items]
    return lax.concatenate([lax.expand_dims(item, (0,)) for item in items], 0)


def again(x: Any) -> Any:
    """The same array; keys may be used once more, as far as JAX checks that.

    Recomputing draws the same numbers again, from the same keys.
    """
    dtype = getattr(x, "dtype", None)
    is_key = dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
    return jax.random.clone(x) if is_key else x


def barrier(tree: Any) -> Any:
    """The same arrays, none of which is there before all of them are."""
    return jax.tree.map(again, lax.optimization_barrier(jax.tree.map(again, tree)))


def at(stacked: Any, index: Any) -> Any:
    """One layer's array."""
    if isinstance(stacked, Each):
        return again(stacked.items[index])
    if isinstance(index, int):  # a slice that compilers fuse into what reads it
        return lax.index_in_dim(again(stacked), index, keepdims=False)
    return lax.dynamic_index_in_dim(again(stacked), index, keepdims=False)


def at_all(tree: Any, index: Any) -> Any:
    """One layer's arrays, of a tree of stacked ones."""
    is_each = lambda x: isinstance(x, Each)
    return jax.tree.map(lambda stacked: at(stacked, index), tree, is_leaf=is_each)


def take(xs: Sequence[Any], index: Any) -> list[Any]:
    """One layer's arrays, None where there is none."""
    return [None if x is None else at(x, index) for x in xs]


def put(buffers: Sequence[Any], items: Sequence[Any], index: Any) -> list[Any]:
    """The buffers with one layer's items written in place."""
    return [
        _put_one(buffer, x, index) for buffer, x in zip(buffers, items, strict=True)
    ]


def put_rows(buffers: Sequence[Any], rows: Sequence[Any], first: int) -> list[Any]:
    """The buffers with the items of several layers in a row, stacked."""
    return [
        lax.dynamic_update_slice_in_dim(buffer, again(few), first, 0)
        if len(few) < len(buffer)
        else few
        for buffer, few in zip(buffers, rows, strict=True)
    ]


def _put_one(buffer: Any, item: Any, index: Any) -> Any:
    if buffer is None:  # no place: it is handed on
        return item
    if isinstance(buffer, Each):
        return Each((*buffer.items[:index], item, *buffer.items[index + 1 :]))
    return lax.dynamic_update_index_in_dim(buffer, again(item), index, 0)
