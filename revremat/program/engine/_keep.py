"""What a layer keeps under an action, and how the rest is recomputed from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from jax.sharding import NamedSharding

from revremat import _compat, _resolve
from revremat._action import Action, check_names
from revremat._errors import UserError
from revremat._primitives import is_intensive
from revremat._resolve import Flow
from revremat.program.ir._inverse import undone
from revremat.program.ir._ops import Atom, Op, Program, Value, cannot_recompute
from revremat.program.ir._passes import Linearized
from revremat.program.ir._placement import shardings_of_kept

INPUT = "input"


@dataclass(frozen=True, eq=False)
class Layer:
    """A linearized layer, with the names by which actions speak of its values.

    Attributes:
      passes: Its forward and backward programs.
      held: The inputs that are there in the backward pass anyway: weights.
      names: From name to value, in program order; `input` names are the other inputs.
      given: The names that the user gave.
      free: Values recomputed from weights alone at next to no cost; never kept.
      inverse: Where there is one: from what the layer takes, with what is carried out
        in place of what is carried in, to the latter.
      carried: Which of the layer's inputs are carried.
      within: Calls a function as if where the layer stands, as inside of a `shard_map`.
    """

    passes: Linearized
    held: frozenset[Value]
    names: dict[str, Value]
    given: frozenset[str]
    free: frozenset[Value]
    inverse: Program | None = None
    carried: tuple[int, ...] = ()
    within: Callable[[Callable[[], Any]], Any] = _compat.here

    @property
    def carried_in(self) -> tuple[Value, ...]:
        """What the layer is handed."""
        return tuple(self.passes.forward.inputs[k] for k in self.carried)

    @property
    def carried_out(self) -> tuple[Atom, ...]:
        """The layer's carry out: where INVERT starts from."""
        return self.passes.forward.outputs[: len(self.carried)]

    @cached_property
    def shardings(self) -> dict[Value, NamedSharding]:
        """Where values that are cut over devices are kept."""
        return shardings_of_kept(self.passes.forward)

    @cached_property
    def backwards(self) -> tuple[Op, ...]:
        """The layer from its carry out: undone, then its own operations.

        What both the inverse and the layer compute is there once.
        """
        inverse = self.inverse
        assert inverse is not None
        return self.within(lambda: undone(inverse, self.passes.forward, self.carried))

    @cached_property
    def flow(self) -> Flow[Atom, Op]:
        """What of the layer decides what it keeps."""
        forward = self.passes.forward
        effectful = (op for op in forward.ops if cannot_recompute(op))
        return Flow(
            operations=forward.ops,
            residuals=self.passes.residuals,
            plain=frozenset(self.residuals),
            inputs=tuple(v for v in forward.inputs if v not in self.held),
            names=self.names,
            unrepeatable=frozenset(out for op in effectful for out in op.outputs),
            free=self.free,
            handed_in=self.carried_in,
            carried_out=tuple(v for v in self.carried_out if isinstance(v, Value)),
            inverse=lambda: self.backwards,
        )

    @cached_property
    def called(self) -> dict[Value, str]:
        """By which name plans speak of a value: the user's tag, if it has one.

        Not of weights, nor of what is made of weights alone for free.
        """
        found: dict[Value, str] = {}
        for name, value in self.names.items():
            spoken_of = value not in self.held and value not in self.free
            if spoken_of and (value not in found or name in self.given):
                found[value] = name
        return found

    @cached_property
    def unrepeatable(self) -> str:
        """Why one of its operations cannot be run twice; "" if all can."""
        reasons = map(cannot_recompute, self.passes.forward.ops)
        return next(filter(None, reasons), "")

    @property
    def residuals(self) -> tuple[Value, ...]:
        """What plain autodiff keeps (each once; neither weights nor what is free)."""
        seen = dict.fromkeys(r for r in self.passes.residuals if isinstance(r, Value))
        return tuple(v for v in seen if v not in self.held and v not in self.free)


@dataclass(frozen=True, eq=False)
class Kept:
    """One layer's share of a plan, resolved.

    Attributes:
      saved: Values kept on the device, forward to backward; may hold layer inputs.
      offloaded: Values kept in host memory.
      ahead: Values recomputed one layer early; for INVERT, the layer's inputs and
        whatever else comes of undoing it.
      early: The operations that recompute those.
      late: The operations that recompute all other residuals; for INVERT, those of the
        layer's inverse among them.
      inverted: Inputs that the layer's inverse supplies.
      unused: Names that the action lists and that nothing needs, given the rest.
    """

    saved: tuple[Value, ...]
    offloaded: tuple[Value, ...]
    ahead: tuple[Value, ...]
    early: tuple[Op, ...]
    late: tuple[Op, ...]
    inverted: tuple[Value, ...]
    unused: tuple[str, ...]

    def on_device(self) -> "Kept":
        """The same with everything kept on the device, what went to the host last."""
        return replace(self, saved=(*self.saved, *self.offloaded), offloaded=())


NOTHING = Kept((), (), (), (), (), (), ())
"""Of a layer that is only run forward."""


def name_values(
    passes: Linearized,
    held: Sequence[Value],
    unit: str = "the layer",
    inverse: Program | None = None,
    carried: Sequence[int] = (),
    order: Sequence[int] | None = None,
) -> Layer:
    """Name every value of a layer that an action may speak of.

    Values that the user tagged keep their names. All others get names made from the
    operation and its count, `dot_general_0`, which do not depend on the order of
    dictionaries or on code elsewhere.

    Args:
      passes: The layer.
      held: Which of its inputs are there in the backward pass anyway.
      unit: What messages call it.
      inverse: From the carry back to the input.
      carried: Places of the inputs that are carried.
      order: Places of the inputs in the order in which the others are numbered.

    Raises:
      UserError: One name on two values.
    """
    forward = passes.forward
    held_set = frozenset(held)
    places = range(len(forward.inputs)) if order is None else order
    varying = [v for k in places if (v := forward.inputs[k]) not in held_set]
    free = _free_values(passes, held_set)
    given: dict[str, Value] = {}
    for name, atom in forward.names:
        if isinstance(atom, Value) and given.setdefault(name, atom) is not atom:
            raise UserError(
                f"rr.name: {name!r} tags two values in {unit}; give each its own name, "
                f"for example {name + '_1'!r} and {name + '_2'!r}."
            )
    names: dict[str, Value] = {}
    for number, value in enumerate(varying):
        name = INPUT if len(varying) == 1 else f"{INPUT}_{number}"
        while given.get(name, value) is not value:  # a tag of another value
            name += "_"
        names[name] = value
    names.update(given)
    tagged = set(names.values())
    counts: dict[str, int] = {}
    for op in forward.ops:
        # Where arguments are not typed weakly, others have the same names.
        kind = "strong" if op.drops_weak_type else op.kind.replace("-", "_")
        for out in op.outputs:
            number = counts[kind] = counts.get(kind, -1) + 1
            if out not in tagged and out not in free:
                name = f"{kind}_{number}"
                while name in names:  # a tag of another value
                    name += "_"
                names[name] = out
    given_names = frozenset(given)
    return Layer(passes, held_set, names, given_names, free, inverse, tuple(carried))


def _free_values(passes: Linearized, held: frozenset[Value]) -> frozenset[Value]:
    free = set(held)
    for op in passes.forward.ops:
        cheap = not is_intensive(op.kind) and cannot_recompute(op) is None
        if cheap and all(a in free or not isinstance(a, Value) for a in op.inputs):
            free.update(op.outputs)
    return frozenset(free - held)


def resolve(layer: Layer, action: Action, unit: str = "the layer") -> Kept:
    """What the layer keeps under an action, and the operations that recompute the rest.

    Raises:
      UserError: A name that the layer does not have, or one both saved and offloaded.
    """
    check_names(unit, action, layer.names, layer.names)
    found = _resolve.resolve(layer.flow, action)
    forward = layer.passes.forward
    inputs = [v for v in forward.inputs if v not in layer.held]
    order = [*inputs, *(out for op in forward.ops for out in op.outputs)]
    kept = found.saved | found.offloaded
    listed = (name for name in action.names if layer.names[name] not in found.used)
    return Kept(
        saved=tuple(v for v in order if v in found.saved),
        offloaded=tuple(v for v in order if v in found.offloaded),
        ahead=tuple(v for v in found.ahead if isinstance(v, Value)),
        early=found.early,
        late=found.late,
        inverted=tuple(v for v in inputs if action.inverts and v not in kept),
        unused=tuple(sorted(listed)),
    )
