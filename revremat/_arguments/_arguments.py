"""A function's arguments as arrays, and what it changes in them.

JAX traces functions of arrays. Functions in Python may also write into what they are
given: a Flax module counts its random numbers, a dict gets an entry. So arguments are
taken apart into arrays, put together anew in a trace, and looked at again when the
function has run: what it wrote are results, which are then written into the arguments
themselves.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from revremat._arguments import _flax
from revremat._arguments._flax import Flat, Nodes, Numbers
from revremat._compat import is_tracer
from revremat._errors import UserError

_LEAF = jax.tree.structure(0)


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
class _Container:
    """A dict, a list or another tree, with what is in it: numbers of leaves and so on.

    One that is there twice is two, as under `jax.jit`.
    """

    original: Any
    where: str
    tree: Any
    parts: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class _Graph:
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
    containers: tuple[_Container, ...]
    graphs: tuple[_Graph, ...]
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
            if isinstance(part, _Graph):
                return modules[part.number]
            made[part] = part.tree.unflatten([build(p) for p in part.parts])
            return made[part]

        args = tuple(map(build, self.parts))
        states = {part: _state(clone) for part, clone in made.items()}
        return Copy(self, args, list(values), modules, nodes, made, states)

    def as_trees(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments with nested dicts of arrays in place of modules.

        Args:
          values: In place of the leaves.
        """

        def build(part: Any) -> Any:
            if isinstance(part, int):
                return values[part]
            if isinstance(part, _Graph):
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
    containers: list[_Container] = []
    graphs: list[_Graph] = []
    numbers = Numbers()

    def take(x: Any, where: str, argument: int) -> Any:
        if _flax.is_node(x):
            flat, first = numbers.flatten(x, where), len(leaves)
            for place in flat.places:
                about = (where + place.where, argument, place.is_param)
                leaves.extend(Leaf(value, *about) for value in place.values)
            graphs.append(_Graph(len(graphs), flat, first, len(leaves) - first))
            return graphs[-1]
        children, tree = _one_level(x)
        if tree == _LEAF:
            leaves.append(Leaf(x, where, argument))
            return len(leaves) - 1
        name = lambda path: where + jax.tree_util.keystr(path)
        parts = tuple(take(child, name(path), argument) for path, child in children)
        containers.append(_Container(x, where, tree, parts))
        return containers[-1]

    parts = tuple(take(arg, f"argument {n}", n) for n, arg in enumerate(args))
    return Arguments(
        tuple(leaves), parts, tuple(containers), tuple(graphs), numbers.nodes()
    )


def has_modules(args: Sequence[Any]) -> bool:
    """Whether there is a Flax NNX module, or a part of one, among the arguments."""
    leaves = jax.tree.leaves(args, is_leaf=_flax.is_node)
    return any(map(_flax.is_node, leaves))


@dataclass(frozen=True)
class _Array:
    """What is to be made: one of the results."""

    number: int


@dataclass(frozen=True, eq=False)
class _Same:
    """What is to be made: nothing, it is there: an argument's leaf or container."""

    part: Any


@dataclass(frozen=True, eq=False)
class _Static:
    """What is to be made: a Python object."""

    value: Any


@dataclass(frozen=True)
class _Module:
    """What is to be made: a module, the original if it is a copy of one."""

    number: int


@dataclass(frozen=True, eq=False)
class _New:
    """What is to be made: a container that was no argument's."""

    tree: Any
    parts: tuple[Any, ...]


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
    made: dict[_Container, Any]
    states: dict[_Container, "_State"]

    def outcome(self, out: Any) -> tuple["Outcome", list[Any]]:
        """What the function has made of its arguments, and what it returned.

        Args:
          out: What it returned.

        Returns:
          What there is to write, and the arrays that takes: those returned first.

        Raises:
          UserError: It changed something that cannot be written back.
        """
        return _Look(self).at(out)


class _Look:
    """A look at what a function left behind."""

    def __init__(self, copy: Copy):
        self.copy = copy
        self.known = {id(clone): part for part, clone in copy.made.items()}
        self.given = {id(value): k for k, value in enumerate(copy.values)}
        self.numbers = Numbers(copy.nodes)
        self.more: list[_Filled] = []
        self.arrays: list[Any] = []

    def at(self, out: Any) -> tuple["Outcome", list[Any]]:
        # Modules come first: their nodes have the numbers of those they are copies of.
        self.copy.nodes.admit_traced()
        flats = [self.numbers.flatten(m, "a module") for m in self.copy.modules]
        returned = self.describe(out, self.result)
        num_returned = len(self.arrays)
        modules = tuple(self.fill(flat, self.value) for flat in flats)
        changed = {
            part: {key: self.describe(value, self.value) for key, value in new.items()}
            for part, new in self.changed()
        }
        outcome = Outcome(
            self.copy.of, returned, num_returned, modules, tuple(self.more), changed
        )
        return outcome, self.arrays

    def changed(self) -> Iterator[tuple[_Container, dict[Any, Any]]]:
        counts = Counter(id(part.original) for part in self.copy.made)
        for part, clone in self.copy.made.items():
            new = _state(clone).since(self.copy.states[part], part.where)
            if new is None:
                continue
            if counts[id(part.original)] > 1:
                raise UserError(
                    f"{part.where}: the function changes it, and the same "
                    f"{type(clone).__name__} is among its arguments twice; make one "
                    "of them a copy"
                )
            yield part, new

    def fill(self, flat: Flat, value: Callable[[Any], Any]) -> "_Filled":
        if any(is_tracer(x) for x in jax.tree.leaves([*flat.statics()])):
            raise UserError(
                "the function makes a container of traced values an attribute of a "
                "Flax module, where Flax would not find them: write nnx.data(...), "
                "nnx.List or nnx.Dict around it, or make it an nnx.Variable"
            )
        parts = tuple(tuple(map(value, place.values)) for place in flat.places)
        return _Filled(flat, parts)

    def value(self, x: Any) -> Any:
        """What a leaf that the function wrote is to be."""
        if id(x) in self.given:
            return _Same(self.given[id(x)])
        return self.result(x)

    def result(self, x: Any) -> Any:
        """What a leaf that the function returned is to be."""
        if not is_tracer(x):
            return _Static(x)
        self.arrays.append(x)
        return _Array(len(self.arrays) - 1)

    def describe(self, x: Any, value: Callable[[Any], Any]) -> Any:
        if _flax.is_node(x):
            flat = self.numbers.flatten(x, "a module")
            self.more.append(self.fill(flat, value))
            return _Module(len(self.more) - 1)
        if id(x) in self.known:
            return _Same(self.known[id(x)])
        children, tree = _one_level(x)
        if tree == _LEAF:
            return value(x)
        return _New(tree, tuple(self.describe(child, value) for _, child in children))


@dataclass(frozen=True, eq=False)
class _Filled:
    """A module, and what is to be made of the values in each of its places."""

    flat: Flat
    parts: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a function returned and what it wrote into its arguments.

    Attributes:
      arguments: What it was run on.
      returned: What is to be returned.
      num_returned: How many arrays that takes.
      modules: Each of the arguments' modules.
      more: Modules beside them.
      changed: The containers that were written into, with all that is in them now, or
        of an object the attributes that were set.
    """

    arguments: Arguments
    returned: Any
    num_returned: int
    modules: tuple[_Filled, ...]
    more: tuple[_Filled, ...]
    changed: dict[_Container, dict[Any, Any]]

    @property
    def is_change(self) -> bool:
        """Whether anything was written."""
        return bool(self.changed) or any(
            not filled.flat.has_structure_of(graph.flat)
            or next(self._changed_places(filled, graph), None) is not None
            for filled, graph in self._pairs()
        )

    @property
    def untouched(self) -> list[int]:
        """Numbers of the arrays that are still in modules as they were."""
        parts = {id(p): p for m in self.modules for place in m.parts for p in place}
        return [p.part for p in parts.values() if isinstance(p, _Same)]

    def write(self, values: Sequence[Any]) -> Any:
        """Writes the changes into the arguments.

        Args:
          values: The arrays.

        Returns:
          What the function returned.

        Raises:
          UserError: They may not be changed here.
        """
        try:
            return _Writer(self, values).write()
        except _flax.trace_errors() as error:
            raise UserError(
                "the function changes a Flax module that was made outside of the "
                f"transformation it is called in ({_flax.first_line(error)}): write "
                "nnx.jit, nnx.grad or nnx.value_and_grad in place of jax's, and hand "
                "the module over as an argument"
            ) from None

    def _pairs(self) -> Iterator[tuple[_Filled, _Graph]]:
        return zip(self.modules, self.arguments.graphs, strict=True)

    def _changed_places(self, filled: _Filled, graph: _Graph) -> Iterator[int]:
        leaf = graph.first_leaf
        pairs = zip(graph.flat.places, filled.flat.places, strict=True)
        for number, (old, new) in enumerate(pairs):
            same = [getattr(part, "part", None) for part in filled.parts[number]]
            if old.tree != new.tree or same != [*range(leaf, leaf + len(old.values))]:
                yield number
            leaf += len(old.values)

    @property
    def only_variables(self) -> bool:
        """Whether nothing but what variables hold was changed in modules."""
        return all(
            filled.flat.has_structure_of(graph.flat)
            and all(
                graph.flat.places[k].variable is not None
                for k in self._changed_places(filled, graph)
            )
            for filled, graph in self._pairs()
        )


class _Writer:
    """Writes an outcome into arguments."""

    def __init__(self, outcome: Outcome, values: Sequence[Any]):
        self.outcome, self.arguments, self.values = outcome, outcome.arguments, values
        self.modules: list[Any] = []

    def write(self) -> Any:
        outcome, arguments = self.outcome, self.arguments
        nodes = arguments.nodes.copy()
        if outcome.only_variables:
            for filled, graph in zip(outcome.modules, arguments.graphs, strict=True):
                for k in outcome._changed_places(filled, graph):
                    made = iter(map(self.build, filled.parts[k]))
                    value = filled.flat.places[k].filled(made)
                    graph.flat.places[k].variable.set_raw_value(value)
        else:
            nodes.check_may_change()
            nodes = Nodes()
            for filled in outcome.modules:
                nodes.update(filled.flat, self.parts_of(filled), arguments.nodes)
        for filled in outcome.more:
            made = nodes.update(filled.flat, self.parts_of(filled), arguments.nodes)
            self.modules.append(made)
        for container, written in outcome.changed.items():
            _put(
                container,
                {key: self.build(value) for key, value in written.items()},
                {key for key, value in written.items() if isinstance(value, _Array)},
            )
        return self.build(outcome.returned)

    def parts_of(self, filled: _Filled) -> Iterator[Any]:
        return (self.build(part) for parts in filled.parts for part in parts)

    def build(self, part: Any) -> Any:
        match part:
            case _Same(int(number)):
                return self.arguments.leaves[number].value
            case _Same(container):
                return container.original
            case _Array(number):
                return self.values[number]
            case _Static(value):
                return value
            case _Module(number):
                return self.modules[number]
            case _New(tree, parts):
                return tree.unflatten([self.build(one) for one in parts])
        raise AssertionError(part)


_MISSING = object()


@dataclass(frozen=True, eq=False)
class _State:
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

    def since(self, before: "_State", where: str) -> dict[Any, Any] | None:
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


def _same_leaves(one: _State, other: _State) -> bool:
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


def _state(x: Any) -> _State:
    children, tree = _one_level(x)
    flat = [child for _, child in children]
    if isinstance(x, dict):
        return _State(dict(x), flat, tree, False)
    if isinstance(x, list):
        return _State(dict(enumerate(x)), flat, tree, False)
    if isinstance(x, MutableMapping):
        items = {path[0].key: child for path, child in children}
        return _State(items, flat, tree, False)
    return _State(dict(getattr(x, "__dict__", {})), flat, tree, True)


def _put(container: _Container, items: Mapping[Any, Any], arrays: set[Any]) -> None:
    """Writes into a container of the caller's."""
    target = container.original
    old = _state(target).items
    for key in arrays & old.keys():
        if isinstance(old[key], bool | int | float | complex):
            items = {**items, key: _number(items[key], old[key], container.where, key)}
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


def _one_level(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """The children of a tree with their paths, and how it is made of them."""
    return jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda y: y is not x)
