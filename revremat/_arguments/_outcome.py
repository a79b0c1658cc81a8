"""What a function made of its arguments: found in their copy, written into themselves.

What a function returned and what it wrote are results of its trace. When they have
values, they are written into the arguments that the caller has.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from revremat._arguments import _flax
from revremat._arguments._arguments import LEAF, Arguments, Container, Copy, Module
from revremat._arguments._contents import contents, one_level, put
from revremat._arguments._flax import Flat, Nodes, Numbers
from revremat._compat import is_tracer
from revremat._errors import UserError


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
class _MadeModule:
    """What is to be made: a module, the original if it is a copy of one."""

    number: int


@dataclass(frozen=True, eq=False)
class _New:
    """What is to be made: a container that was no argument's."""

    tree: Any
    parts: tuple[Any, ...]


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
    changed: dict[Container, dict[Any, Any]]

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

    def _pairs(self) -> Iterator[tuple[_Filled, Module]]:
        return zip(self.modules, self.arguments.graphs, strict=True)

    def _changed_places(self, filled: _Filled, graph: Module) -> Iterator[int]:
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


def outcome_of(copy: Copy, out: Any) -> tuple[Outcome, list[Any]]:
    """What a function has made of its arguments, and what it returned.

    Args:
      copy: The arguments that it was run on.
      out: What it returned.

    Returns:
      What there is to write, and the arrays that takes: those returned first.

    Raises:
      UserError: It changed something that cannot be written back.
    """
    return _Look(copy).at(out)


class _Look:
    """A look at what a function left behind."""

    def __init__(self, copy: Copy):
        self.copy = copy
        self.known = {id(clone): part for part, clone in copy.made.items()}
        self.given = {id(value): k for k, value in enumerate(copy.values)}
        self.numbers = Numbers(copy.nodes)
        self.more: list[_Filled] = []
        self.arrays: list[Any] = []

    def at(self, out: Any) -> tuple[Outcome, list[Any]]:
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

    def changed(self) -> Iterator[tuple[Container, dict[Any, Any]]]:
        counts = Counter(id(part.original) for part in self.copy.made)
        for part, clone in self.copy.made.items():
            new = contents(clone).since(self.copy.states[part], part.where)
            if new is None:
                continue
            if counts[id(part.original)] > 1:
                raise UserError(
                    f"{part.where}: the function changes it, and the same "
                    f"{type(clone).__name__} is among its arguments twice; make one "
                    "of them a copy"
                )
            yield part, new

    def fill(self, flat: Flat, value: Callable[[Any], Any]) -> _Filled:
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
            return _MadeModule(len(self.more) - 1)
        if id(x) in self.known:
            return _Same(self.known[id(x)])
        children, tree = one_level(x)
        if tree == LEAF:
            return value(x)
        return _New(tree, tuple(self.describe(child, value) for _, child in children))


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
            put(
                container.original,
                container.where,
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
            case _MadeModule(number):
                return self.modules[number]
            case _New(tree, parts):
                return tree.unflatten([self.build(one) for one in parts])
        raise AssertionError(part)
