"""What is in a dict, a list or an object: seen before a call, after it, and changed.

A function may write into containers that it is given. What it wrote is found by
comparing what is in a container before and after, and written into the caller's own.
"""

from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import jax

from revremat._arguments import _flax
from revremat._compat import is_tracer
from revremat._errors import UserError

_MISSING = object()


@dataclass(frozen=True, eq=False)
class Contents:
    """What is in a container at some time.

    Attributes:
      items: Of a dict, by key; of a list, by position; of an object, its attributes.
      children: What JAX finds in it.
      is_object: Whether items are attributes.
    """

    items: dict[Any, Any]
    children: list[Any]
    tree: Any
    is_object: bool

    def since(self, before: "Contents", where: str) -> dict[Any, Any] | None:
        """What was written into it, None if nothing."""
        same = lambda old, new: (
            old.keys() == new.keys() and all(old[key] is new[key] for key in old)
        )
        if same(before.items, self.items):
            if before.tree == self.tree and _same_leaves(before, self):
                return None
            raise UserError(
                f"{where}: the function changes what is in it, where that cannot be "
                "written back; return it beside the value, (loss, auxiliary), or make "
                "it a dict"
            )
        if not self.is_object:
            return self.items
        if gone := before.items.keys() - self.items.keys():
            raise UserError(
                f"{where}: the function deletes its attribute {min(gone)!r}, which "
                "cannot be written back; set it to None"
            )
        old = before.items
        return {k: v for k, v in self.items.items() if old.get(k, _MISSING) is not v}


def _same_leaves(one: Contents, other: Contents) -> bool:
    if all(a is b for a, b in zip(one.children, other.children, strict=True)):
        return True
    # Some trees make their children anew whenever they are asked for them.
    flat = [
        jax.tree.flatten(state.children, is_leaf=_flax.is_node)
        for state in (one, other)
    ]
    (leaves, tree), (others, other_tree) = flat
    return tree == other_tree and all(
        a is b for a, b in zip(leaves, others, strict=True)
    )


def contents(x: Any) -> Contents:
    """What is in a dict, a list, another tree or an object now."""
    children, tree = one_level(x)
    flat = [child for _, child in children]
    if isinstance(x, dict):
        return Contents(dict(x), flat, tree, False)
    if isinstance(x, list):
        return Contents(dict(enumerate(x)), flat, tree, False)
    if isinstance(x, MutableMapping):
        items = {path[0].key: child for path, child in children}
        return Contents(items, flat, tree, False)
    return Contents(dict(getattr(x, "__dict__", {})), flat, tree, True)


def put(
    target: Any, where: str, items: Mapping[Any, Any], arrays: Collection[Any]
) -> None:
    """Writes into a container of the caller's.

    Args:
      target: The container.
      where: What messages call it.
      items: All that is to be in it; of an object, the attributes that were set.
      arrays: Keys of what the function has computed.

    Raises:
      UserError: A number of Python's would have to become a traced value.
    """
    old = contents(target).items
    for key in old.keys() & arrays:
        if isinstance(old[key], bool | int | float | complex):
            items = {**items, key: _number(items[key], old[key], where, key)}
    if isinstance(target, list):
        target[:] = items.values()
    elif isinstance(target, MutableMapping):
        for key in target.keys() - items.keys():
            del target[key]
        for key, value in items.items():
            target[key] = value
    else:
        vars(target).update(items)


def _number(value: Any, old: Any, where: str, key: Any) -> Any:
    """What takes the place of a number of Python's."""
    if is_tracer(value):
        raise UserError(
            f"{where}[{key!r}] is {old!r}, a number of Python's, and the function "
            "changes it under a transformation of JAX's, where numbers cannot change: "
            f"write an array there, jnp.asarray({old!r})"
        )
    return value.item() if value.weak_type else value


def one_level(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """The children of a tree with their paths, and how it is made of them."""
    return jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
