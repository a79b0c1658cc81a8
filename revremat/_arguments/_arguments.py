"""A function's arguments taken apart into arrays, and put together anew in a trace.

JAX traces functions of arrays. Functions in Python may also write into what they are
given: a Flax module counts its random numbers, a dict gets an entry. `_outcome` finds
that in the copy that a function was run on.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from revremat._arguments import _flax
from revremat._arguments._contents import Contents, contents, one_level
from revremat._arguments._flax import Flat, Nodes, Numbers

LEAF = jax.tree.structure(0)


@dataclass(frozen=True)
class Leaf:
    """One array among the arguments.

    Attributes:
      value: The array, a `jax.ShapeDtypeStruct` or a number.
      where: What messages call it.
      argument: Position of the argument that it is in.
      is_param: Whether it is in a Flax `Param`; None if it is in no module.
    """

    value: Any
    where: str
    argument: int
    is_param: bool | None = None


@dataclass(frozen=True, eq=False)
class Container:
    """A dict, a list or another tree, with what is in it: numbers of leaves and so on.

    One that is there twice is two, as under `jax.jit`.
    """

    original: Any
    where: str
    tree: Any
    parts: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class Module:
    """A Flax module."""

    number: int
    flat: Flat
    first_leaf: int
    num_leaves: int


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of one call.

    Attributes:
      leaves: Their arrays; those of modules that are there twice, once.
      parts: How each argument is made of them.
      containers: All dicts, lists and other trees.
      graphs: All modules.
      nodes: The modules' nodes.
    """

    leaves: tuple[Leaf, ...]
    parts: tuple[Any, ...]
    containers: tuple[Container, ...]
    graphs: tuple[Module, ...]
    nodes: Nodes

    @property
    def values(self) -> list[Any]:
        """The arrays."""
        return [leaf.value for leaf in self.leaves]

    def wanted(self, can_be: Callable[[Any], bool]) -> tuple[bool, ...]:
        """Which leaves are differentiated: those of the first argument that can be.

        Of modules `Param`s alone, as by `nnx.grad`, if they have any.

        Args:
          can_be: Whether values of a type have derivatives.
        """
        first = [
            leaf.argument == 0 and can_be(jax.typeof(leaf.value))
            for leaf in self.leaves
        ]
        pairs = list(zip(first, self.leaves, strict=True))
        chosen = tuple(on and leaf.is_param is not False for on, leaf in pairs)
        return chosen if any(chosen) else tuple(first)

    def statics(self) -> Iterator[Any]:
        """Attributes of modules that hold no arrays."""
        for graph in self.graphs:
            yield from graph.flat.statics()

    def copy(self, values: Sequence[Any]) -> "Copy":
        """The same arguments around other arrays.

        Args:
          values: In place of the leaves.
        """
        nodes, made = Nodes(), {}
        modules = [
            nodes.make(g.flat, values[g.first_leaf : g.first_leaf + g.num_leaves])
            for g in self.graphs
        ]

        def build(part: Any) -> Any:
            if isinstance(part, int):
                return values[part]
            if isinstance(part, Module):
                return modules[part.number]
            made[part] = part.tree.unflatten([build(p) for p in part.parts])
            return made[part]

        args = tuple(map(build, self.parts))
        states = {part: contents(clone) for part, clone in made.items()}
        return Copy(self, args, list(values), modules, nodes, made, states)

    def as_trees(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments with nested dicts of arrays in place of modules.

        Args:
          values: In place of the leaves.
        """

        def build(part: Any) -> Any:
            if isinstance(part, int):
                return values[part]
            if isinstance(part, Module):
                end = part.first_leaf + part.num_leaves
                return _nested(part.flat, iter(values[part.first_leaf : end]))
            return part.tree.unflatten([build(p) for p in part.parts])

        return tuple(map(build, self.parts))


def _nested(flat: Flat, values: Iterator[Any]) -> Any:
    tree: Any = {}
    for place in flat.places:
        if not place.path:
            return place.filled(values)
        inner = tree
        for key in place.path[:-1]:
            inner = inner.setdefault(str(key), {})
        inner[str(place.path[-1])] = place.filled(values)
    return tree


def take_apart(args: Sequence[Any]) -> Arguments:
    """Takes the arguments of a call apart into arrays.

    Raises:
      UserError: A module holds a value that changes as the program runs.
    """
    leaves: list[Leaf] = []
    containers: list[Container] = []
    graphs: list[Module] = []
    numbers = Numbers()

    def take(x: Any, where: str, argument: int) -> Any:
        if _flax.is_node(x):
            flat, first = numbers.flatten(x, where), len(leaves)
            for place in flat.places:
                about = (where + place.where, argument, place.is_param)
                leaves.extend(Leaf(value, *about) for value in place.values)
            graphs.append(Module(len(graphs), flat, first, len(leaves) - first))
            return graphs[-1]
        children, tree = one_level(x)
        if tree == LEAF:
            leaves.append(Leaf(x, where, argument))
            return len(leaves) - 1
        name = lambda path: where + jax.tree_util.keystr(path)
        parts = tuple(take(child, name(path), argument) for path, child in children)
        containers.append(Container(x, where, tree, parts))
        return containers[-1]

    parts = tuple(take(arg, f"argument {n}", n) for n, arg in enumerate(args))
    return Arguments(
        tuple(leaves), parts, tuple(containers), tuple(graphs), numbers.nodes()
    )


def has_modules(args: Sequence[Any]) -> bool:
    """Whether there is a Flax NNX module, or a part of one, among the arguments."""
    leaves = jax.tree.leaves(args, is_leaf=_flax.is_node)
    return any(map(_flax.is_node, leaves))


@dataclass(frozen=True, eq=False)
class Copy:
    """Arguments for one run of the function, which may change them.

    Attributes:
      of: What they were made of.
      args: The arguments.
      values: Their arrays.
      modules: A copy of each module.
      nodes: The modules' nodes.
      made: A copy of each container.
      states: What was in it.
    """

    of: Arguments
    args: tuple[Any, ...]
    values: list[Any]
    modules: list[Any]
    nodes: Nodes
    made: dict[Container, Any]
    states: dict[Container, Contents]
