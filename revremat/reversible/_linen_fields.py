"""The modules in a reversible Linen module's fields, as its own."""

from collections.abc import Iterator
from typing import Any

import jax
from flax import linen as nn
from flax.core import Scope

from revremat._errors import UserError

_TAKEN = "_is_in_a_reversible_module"


def take_over(owner: nn.Module, owners: type) -> None:
    """See that a module's fields have their variables below it.

    Linen binds what is made within a method to the module whose method it is, and its
    variables would lie there. It is made anew, without a place.

    Args:
      owner: Whose fields are set.
      owners: The class of modules whose fields are their own already.

    Raises:
      UserError: One module in two places, or one that something else uses.
    """
    if owner.parent is None or isinstance(owner.parent, Scope):
        return  # A copy that Linen makes, of one whose fields are its own.
    who, names = f"linen.{type(owner).__name__}", {}
    for field in _fields(owner):
        given = getattr(owner, field)
        for path, module in _modules(given):
            name = f"{field}{jax.tree_util.keystr(path)}"
            first = names.setdefault(id(module), name)
            if first != name:
                raise UserError(
                    f"{who}: {first} and {name} are the same {_kind(module)}; make "
                    "two, as each has variables of its own."
                )
            free = _free(who, name, module, owners)
            if free is not module:
                swap = lambda one, old=module, new=free: new if one is old else one
                given = jax.tree.map(swap, given, is_leaf=_is_module)
                object.__setattr__(owner, field, given)


def _free(who: str, name: str, module: nn.Module, owners: type) -> nn.Module:
    if isinstance(module.parent, owners):
        return module
    bound = [one for one in _all_in(module) if one.scope is not None]
    for one in bound:
        if one.variables or hasattr(one, _TAKEN):
            raise UserError(
                f"{who}: {name} is or has a {_kind(one)} that is used elsewhere too, "
                "which a reversible module cannot share; give it one of its own, such "
                "as a clone()."
            )
        object.__setattr__(one, _TAKEN, True)
    if not bound:
        return module
    return module.clone(_deep_clone=True, _reset_names=True, name=None)


def _all_in(module: nn.Module) -> Iterator[nn.Module]:
    yield module
    for field in _fields(module):
        for _, one in _modules(getattr(module, field, None)):
            yield from _all_in(one)


def _fields(module: nn.Module) -> list[str]:
    fields = type(module).__dataclass_fields__
    return [name for name in fields if name not in ("parent", "name")]


def _modules(tree: Any) -> list[Any]:
    leaves = jax.tree.leaves_with_path(tree, is_leaf=_is_module)
    return [(path, leaf) for path, leaf in leaves if _is_module(leaf)]


def _is_module(leaf: Any) -> bool:
    return isinstance(leaf, nn.Module)


def _kind(module: Any) -> str:
    return type(module).__name__
