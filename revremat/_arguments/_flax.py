"""Flax NNX modules as arrays and structure, by Flax's own graph protocol.

What is shared stays shared: every module and variable has one number over all arguments
of a call, and what a function makes of its copy finds the way to the original by it.
Flax is not imported here: where nobody has done so there are no modules.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax

from revremat._compat import is_tracer
from revremat._errors import UserError


def _nnx() -> Any:
    nnx = sys.modules.get("flax.nnx")
    return nnx if hasattr(nnx, "graphlib") else None


def is_node(x: Any) -> bool:
    """Whether it is a module, a variable or another node of an NNX graph."""
    nnx = _nnx()
    if nnx is None or isinstance(x, jax.Array):
        return False
    return nnx.graphlib.is_graph_node(x)


def is_module(x: Any) -> bool:
    """Whether it has attributes."""
    return hasattr(type(x), "_pytree__is_pytree")


def trace_errors() -> tuple[type[Exception], ...]:
    """What Flax raises where something is changed that was made in another trace."""
    return () if _nnx() is None else (sys.modules["flax"].errors.TraceContextError,)


def first_line(error: BaseException) -> str:
    """What Flax says, without the address of its manual."""
    return str(error).split(" (http")[0]


@dataclass(frozen=True, eq=False)
class Place:
    """A variable of a graph, or an array that is an attribute.

    Attributes:
      path: From the root.
      variable: Where the values are, None for an attribute.
      values: The arrays in it; Python objects where there are such.
      tree: Their structure.
    """

    path: tuple[Any, ...]
    variable: Any
    values: tuple[Any, ...]
    tree: Any

    @property
    def is_param(self) -> bool:
        """Whether `nnx.grad` takes it by default."""
        return isinstance(self.variable, _nnx().Param)

    def filled(self, values: Iterator[Any]) -> Any:
        """What it holds, with the next of some values in place of its own."""
        return self.tree.unflatten([next(values) for _ in self.values])

    @property
    def where(self) -> str:
        """The path as one would write it."""
        return "".join(
            f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path
        )


@dataclass(frozen=True, eq=False)
class Flat:
    """One graph, flat.

    Attributes:
      definition: Everything but values.
      places: Where the values are, without those that came before.
    """

    definition: Any
    places: tuple[Place, ...]

    def has_structure_of(self, other: "Flat") -> bool:
        """Whether only what variables hold may differ."""
        plain = [flat.definition.with_no_outer_index() for flat in (self, other)]
        return plain[0] == plain[1]

    def statics(self) -> Iterator[Any]:
        """Attributes that hold no values; copies of the graph share them."""
        for _, attribute in self.definition.attributes:
            if hasattr(attribute, "value"):
                yield attribute.value


class Numbers:
    """Numbers of nodes that graphs flattened one after the other share.

    Args:
      outer: Those of the graphs that these were copied from.
    """

    def __init__(self, outer: "Nodes | None" = None):
        lib = _nnx() and _nnx().graphlib
        self._refs = lib and lib.RefMap()
        known = outer and outer.by_number
        self._outer = lib.RefMap.from_indexmap(known) if lib and known else None

    def flatten(self, root: Any, where: str) -> Flat:
        """The part of a graph that was not flattened before."""
        definition, state = _nnx().graphlib.flatten(
            root, ref_index=self._refs, ref_outer_index=self._outer, graph=True
        )
        pairs = zip(state.paths, state.leaves, strict=True)
        return Flat(definition, tuple(_place(path, x, where) for path, x in pairs))

    def nodes(self) -> "Nodes":
        """The nodes, by their numbers."""
        nodes = Nodes()
        if self._refs is not None:
            nodes.by_number = _nnx().graphlib.IndexMap.from_refmap(self._refs)
        return nodes


def _place(path: tuple[Any, ...], leaf: Any, where: str) -> Place:
    nnx = _nnx()
    is_variable = isinstance(leaf, nnx.Variable)
    if is_variable and (leaf.hijax or leaf.ref):
        kind = "ref" if leaf.ref else "hijax"
        place = Place(tuple(path), leaf, (), None).where
        raise UserError(
            f"{where}{place} is a Flax variable with {kind}=True, whose value changes "
            "as the program runs, so it can be neither kept nor computed again: make "
            "the module with nnx.var_defaults(hijax=False, ref=False)."
        )
    values, tree = jax.tree.flatten(leaf.get_raw_value() if is_variable else leaf)
    return Place(tuple(path), leaf if is_variable else None, tuple(values), tree)


class Nodes:
    """Nodes of graphs by their numbers, made or found."""

    def __init__(self) -> None:
        lib = _nnx() and _nnx().graphlib
        self.by_number: Any = lib and lib.IndexMap()

    def copy(self) -> "Nodes":
        """The same nodes under the same numbers; more may be added."""
        found = Nodes()
        if self.by_number:
            found.by_number.update(self.by_number)
        return found

    def make(self, flat: Flat, values: Iterable[Any]) -> Any:
        """A graph of new nodes, around those that are here.

        Args:
          flat: The graph.
          values: In place of its own.
        """
        values = iter(values)
        raw = [place.filled(values) for place in flat.places]
        return _nnx().graphlib.unflatten(flat.definition, raw, index_ref=self.by_number)

    def update(self, flat: Flat, values: Iterable[Any], originals: "Nodes") -> Any:
        """A graph of the nodes that its own are copies of, changed to what it is.

        Args:
          flat: A copy, of a structure of its own.
          values: In place of its own.
          originals: What it was copied from; new nodes are made beside them.
        """
        state, values = [], iter(values)
        for place in flat.places:
            value = place.filled(values)
            if place.variable is not None:
                told = place.variable.get_metadata()
                value = place.variable.var_type.from_metadata(value, told)
            state.append(value)
        return _nnx().graphlib.unflatten(
            flat.definition,
            state,
            index_ref=self.by_number,
            outer_index_outer_ref=originals.by_number,
        )

    def admit_traced(self) -> None:
        """Makes traced values that are attributes values of the graph.

        Flax takes them for static ones, by their types.
        """
        for node in self.by_number.values() if self.by_number else ():
            known = vars(node).get("_pytree__nodes") if is_module(node) else None
            if known is None:
                continue
            traced = {name: True for name, x in vars(node).items() if is_tracer(x)}
            if traced:
                object.__setattr__(node, "_pytree__nodes", known.update(traced))

    def check_may_change(self) -> None:
        """Raises what Flax does if one was made in another trace."""
        for node in self.by_number.values():
            if hasattr(node, "_check_valid_context"):
                kind = type(node).__name__
                node._check_valid_context(lambda kind=kind: f"Cannot mutate {kind}")
