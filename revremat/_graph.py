"""Graph: what there is to decide in a program, as data."""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import groupby
from typing import Any

from revremat import _resolve
from revremat._action import (
    SAVE,
    Action,
    Facts,
    check_actions,
    check_names,
    for_each,
)
from revremat._errors import UserError
from revremat._format import format_bytes
from revremat._io._json import parse_json, renamed_keys, schema_of
from revremat._io._notebook import InNotebooks
from revremat._io._types import check_types
from revremat._plan import Plan, UnitPlan, check_nested
from revremat._printable import printable
from revremat._resolve import Flow, least_again, needed

SCHEMA_VERSION = 2
_FIRST_SCHEMA = {
    "dear": "compute_intensive",
    "pinned": "effectful",
    "handed_on": "carried_out",
    "inside": "enclosing",
    "choices": "fixed_units",
    "every": "segment_length",
}
"""What keys of JSON were called in the first schema."""


@dataclass(frozen=True)
class Value:
    """One array in a unit's forward pass.

    Attributes:
      name: What actions call it: the user's tag, or one made from the operation and its
        count; "" for weights, and for what is recomputed from weights alone for free.
      given: Whether the name is a user's tag.
      shape: Of one layer's array.
      dtype: Its name, such as `"bfloat16"`.
      num_bytes: Size per device.
      role: `"input"` for what the unit is given and would have to keep, `"held"` for
        what is there in the backward pass anyway (weights), `"free"` for what is
        recomputed from weights at next to no cost, `"made"` for all else.
    """

    name: str
    given: bool
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    role: str

    @property
    def is_decided(self) -> bool:
        """Whether it has to be saved or restored; weights are there anyway."""
        return self.role in ("made", "input")


@dataclass(frozen=True)
class Operation:
    """One operation of a unit's forward pass.

    Attributes:
      kind: JAX's name for it, such as `"dot_general"`.
      inputs: Positions in `Unit.values`.
      outputs: Positions in `Unit.values`.
      num_flops: What running it once costs, on all devices together.
      compute_intensive: Whether recomputing its result costs more than a pass over
        memory.
      effectful: Why its results cannot be recomputed exactly, "" if they can.
      source: Where in the user's code it was written.
      batch_dims: Of a `dot_general`, how many dimensions are a batch.
      num_devices: How many devices share its work.
      sent_bytes: What each of them sends to others in it, as far as constraints and
        shardings of arguments say.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> [op.kind for op in rr.trace(loss, w, x)["stack"].operations]
      ['dot_general', 'tanh', 'one_minus_square']
    """

    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    num_flops: int
    compute_intensive: bool
    effectful: str
    source: str
    batch_dims: int = 0
    num_devices: int = 1
    sent_bytes: int = 0


@dataclass(frozen=True)
class Residual:
    """A value it is worth deciding about.

    Attributes:
      name: What actions call it.
      given: Whether that is a user's tag.
      shape: Of one layer's array.
      dtype: Its name.
      num_bytes: Size per device, one layer's.
      plain: Whether plain autodiff keeps it.
      recompute_flops: To recompute it from the unit's input and weights alone.
      effectful: Why it cannot be recomputed, "" if it can.
      source: Where in the user's code it is made.
    """

    name: str
    given: bool
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    plain: bool
    recompute_flops: int
    effectful: str
    source: str


@dataclass(frozen=True)
class Kept:
    """What one layer of a unit keeps under an action.

    Attributes:
      saved: Names kept on the device, layer inputs included.
      offloaded: Names kept in host memory.
      ahead: Names recomputed one layer early.
      device_bytes: Size of `saved` per device; in segments, a layer's share of their
        inputs.
      host_bytes: Size of `offloaded` per device.
      recompute_flops: What recomputing the rest costs in the backward pass.
      recomputed: Kinds of the operations that are run again, in order.
      unused: Names the action lists that nothing needs, given the rest; not kept.
      sent_bytes: What each device sends to others in recomputing the rest.
    """

    saved: tuple[str, ...]
    offloaded: tuple[str, ...]
    ahead: tuple[str, ...]
    device_bytes: int
    host_bytes: int
    recompute_flops: int
    recomputed: tuple[str, ...]
    unused: tuple[str, ...]
    sent_bytes: int = 0


@dataclass(frozen=True)
class Unit:
    """A part of the program about which there is something to decide.

    Attributes:
      name: What plans call it.
      kind: `"scan"`, `"block"` (a function marked `rr.block`, once or several times),
        `"repeat"` (the same computation several times over, unmarked), `"module"` (one
        of a network's modules, where those are not alike), `"checkpoint"`
        (a `jax.checkpoint` region), `"segment"` (a part of a program without equal
        layers, or a group of such parts) or `"whole"` (the loss itself, if there is no
        other).
      fingerprint: Equal for equal computations, whatever their variables are called.
      num_layers: How many times it runs; a plan gives each its action.
      values: Every array of its forward pass.
      operations: Every operation of its forward pass, in order.
      residuals_of: Positions of the values the backward pass takes.
      weight_bytes: Of what is held anyway, per layer and device.
      forward_flops: Of one layer's forward pass.
      backward_flops: Of one layer's backward pass, without recomputing anything.
      invertible: Whether INVERT can be chosen.
      skippable: Whether layers can be left out to cost the others on a shorter
        program.
      chained: Whether layers hand their results on, and nowhere else: `ahead` needs it.
      splits: The numbers of chunks it may be computed in, beside 1.
      carried_out: Positions of what a layer hands to the next, where INVERT starts.
      enclosing: The unit whose layers it is a part of, "" if none; a plan speaks of one
        of the two, unless that one recomputes everything.
      outputs: Positions of what one layer gives out, written to memory in any case.
      in_branch: Whether it only runs where a `lax.cond` or `lax.switch` takes it.
      read_whole: Positions of the residuals that some operation of the backward pass
        reads from memory because what makes them cannot be fused into it: a product.
      crossing: Of a segment, positions of what it shares with others: the values that
        it is given and that it gives out.
      crossing_ids: What the program calls each of those; equal numbers are one array.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> unit = rr.trace(loss, w, x)["stack"]
      >>> unit.num_layers, unit.kept(rr.RECOMPUTE).device_bytes  # a layer's input
      (4, 64)
    """

    name: str
    kind: str
    fingerprint: str
    num_layers: int
    values: tuple[Value, ...]
    operations: tuple[Operation, ...]
    residuals_of: tuple[int, ...]
    weight_bytes: int
    forward_flops: int
    backward_flops: int
    invertible: bool = False
    skippable: bool = False
    chained: bool = False
    splits: tuple[int, ...] = ()
    carried_out: tuple[int, ...] = ()
    enclosing: str = ""
    outputs: tuple[int, ...] = ()
    read_whole: tuple[int, ...] = ()
    in_branch: bool = False
    crossing: tuple[int, ...] = ()
    crossing_ids: tuple[int, ...] = ()

    @property
    def is_loop(self) -> bool:
        """Whether its layers are iterations of a `jax.lax.scan`."""
        return self.kind == "scan"

    @property
    def is_segment(self) -> bool:
        """Whether it is a part of a program without equal layers, or several parts."""
        return self.kind == "segment"

    @property
    def plain_bytes(self) -> int:
        """What plain autodiff keeps of one layer, per device."""
        values = (self.values[k] for k in self.residuals_of)
        return sum(v.num_bytes for v in values if v.is_decided)

    @cached_property
    def maker(self) -> Mapping[int, Operation]:
        """What makes a value, by its position in `values`; nothing makes inputs."""
        return {out: op for op in self.operations for out in op.outputs}

    @cached_property
    def residuals(self) -> tuple[Residual, ...]:
        """What plain autodiff keeps, what is costly to recompute, what is tagged."""
        plain = set(self.residuals_of)
        found = []
        for k, value in enumerate(self.values):
            maker = self.maker.get(k)
            compute_intensive = maker is not None and maker.compute_intensive
            if not value.name or not (k in plain or compute_intensive or value.given):
                continue
            recomputed = needed(self.operations, {k}, frozenset())[0]
            found.append(
                Residual(
                    name=value.name,
                    given=value.given,
                    shape=value.shape,
                    dtype=value.dtype,
                    num_bytes=value.num_bytes,
                    plain=k in plain,
                    recompute_flops=sum(op.num_flops for op in recomputed),
                    effectful="" if maker is None else maker.effectful,
                    source="" if maker is None else maker.source,
                )
            )
        return tuple(found)

    @cached_property
    def position(self) -> Mapping[str, int]:
        """From name to position in `values`."""
        return {value.name: k for k, value in enumerate(self.values) if value.name}

    def kept(self, action: Action) -> Kept:
        """What one layer keeps and recomputes under an action, from this data alone.

        Raises:
          UserError: A name the unit does not have.
        """
        facts = self.facts
        check_names(f"unit {self.name!r}", action, self.position, facts.listed)
        found = _resolve.resolve(self._flow, action)
        names = lambda ks: tuple(self.values[k].name for k in sorted(ks))
        size = lambda ks: sum(self.values[k].num_bytes for k in ks)
        recomputed, device_bytes = (*found.early, *found.late), size(found.saved)
        flops = sum(op.num_flops for op in recomputed)
        sent = sum(op.sent_bytes for op in recomputed)
        if action.segment_length > 1 or action.slots:  # layers are run on from those
            kept, times = self._inputs_kept(action)
            recomputed = (*self.operations, *recomputed)
            flops += round(times * sum(op.num_flops for op in self.operations))
            sent += round(times * sum(op.sent_bytes for op in self.operations))
            device_bytes = -(
                -size(self._flow.inputs) * kept.numerator // kept.denominator
            )
        return Kept(
            saved=names(found.saved),
            offloaded=names(found.offloaded),
            ahead=names(found.ahead),
            device_bytes=device_bytes,
            host_bytes=size(found.offloaded),
            recompute_flops=flops,
            recomputed=tuple(op.kind for op in recomputed),
            unused=names({self.position[name] for name in action.names} - found.used),
            sent_bytes=sent,
        )

    def _inputs_kept(self, action: Action) -> tuple[Fraction, Fraction]:
        """Of each layer, inputs that are kept, and how often it runs again for them."""
        number = self.num_layers
        if not action.slots:
            return Fraction(1, action.segment_length), Fraction(1)
        slots = min(action.slots, number)
        return Fraction(slots + 1, number), Fraction(least_again(number, slots), number)

    @cached_property
    def _flow(self) -> Flow[int, Operation]:
        """What of a layer decides what it keeps; values are called by position."""
        effectful = (op for op in self.operations if op.effectful)
        values = list(enumerate(self.values))
        return Flow(
            operations=self.operations,
            residuals=self.residuals_of,
            plain={k for k in self.residuals_of if self.values[k].is_decided},
            inputs=tuple(k for k, v in values if v.role == "input"),
            names=self.position,
            unrepeatable={out for op in effectful for out in op.outputs},
            free={k for k, v in values if v.role == "free"},
            carried_out=self.carried_out,
        )

    @cached_property
    def facts(self) -> Facts:
        """What decides which actions its layers may take, whatever is around it."""
        return Facts(
            num_layers=self.num_layers,
            is_loop=self.is_loop,
            is_stack=self.chained,
            has_inverse=self.invertible or bool(self.carried_out),
            splits=self.splits,
            names=self.position.keys(),
            listed=tuple(r.name for r in self.residuals),
            unrepeatable=next(
                (op.effectful for op in self.operations if op.effectful), ""
            ),
            in_branch=self.in_branch,
            num_scans=0,
        )

    def lags(self, actions: Sequence[Action]) -> bool:
        """Whether some of its layers leave others time to add up gradients of weights.

        Over several devices unrolled layers do, and layers of a Python loop. Layers
        that all keep everything are left to the compiler as they are.

        Args:
          actions: One for each layer.
        """
        is_left = self.is_loop and set(actions) == {SAVE(unroll=True)}
        if len(actions) < 2 or is_left or not (self.is_loop or self.chained):
            return False
        return any(
            (not self.is_loop or action.unroll is True)
            and not action.ahead
            and action.segment_length == 1
            and action.chunks == 1
            for action in actions
        )

    def plan(self, actions: tuple[Action, ...], facts: Facts | None = None) -> UnitPlan:
        """These actions for its layers, checked.

        Args:
          actions: One for each layer, the first to run first.
          facts: What is known of it where it stands; by default, of it alone.

        Raises:
          UserError: A wrong number of actions, or one that the unit cannot take.
        """
        check_actions(f"unit {self.name!r}", actions, facts or self.facts)
        kept = {action: self.kept(action) for action in set(actions)}
        return UnitPlan(
            name=self.name,
            fingerprint=self.fingerprint,
            actions=actions,
            device_names=tuple(kept[action].saved for action in actions),
            host_names=tuple(kept[action].offloaded for action in actions),
        )


@dataclass(frozen=True)
class FixedUnit:
    """A unit about which nothing is left to decide.

    Attributes:
      unit: The unit.
      actions: How each of its layers' residuals are restored.
    """

    unit: Unit
    actions: tuple[Action, ...]

    @property
    def plain_bytes(self) -> int:
        """What plain autodiff would keep of all layers, per device."""
        return self.unit.num_layers * self.unit.plain_bytes

    @property
    def kept_bytes(self) -> int:
        """What they keep beside the last one's output, per device."""
        return sum(self.unit.kept(action).device_bytes for action in self.actions)

    def __str__(self) -> str:
        runs = [f"{len(list(run))} x {key!r}" for key, run in groupby(self.actions)]
        kept, plain = map(format_bytes, (self.kept_bytes, self.plain_bytes))
        return (
            f"{printable(self.unit.name)}: {', '.join(runs)} keeps {kept}"
            f" where plain autodiff keeps {plain}"
        )


@dataclass(frozen=True)
class Graph(InNotebooks):
    """What `rr.trace` finds in a program.

    Attributes:
      units: Where something is to be decided, in program order.
      fingerprint: Of the whole program; a plan holds for this one alone.
      jax_version: Of the JAX that traced it.
      fixed_units: What the program has decided by itself: stacks with `actions`, chains
        of couplings.
      keep_checkpoints: Whether the program's own `jax.checkpoint` regions stay as they
        are written.
      num_devices: How many devices compute it, as far as that is known.
      undecided: Loops of which no plan decides about single iterations, since they have
        a derivative of their own: where each is, what it keeps and what to change.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> graph = rr.trace(loss, w, x)
      >>> graph["stack"].num_layers
      4
      >>> graph.plan({"stack": rr.SAVE}).actions["stack"] == (rr.SAVE,) * 4
      True
    """

    units: tuple[Unit, ...]
    fingerprint: str
    jax_version: str
    fixed_units: tuple[FixedUnit, ...] = ()
    keep_checkpoints: bool = False
    undecided: tuple[str, ...] = ()
    num_devices: int = 1

    def __getitem__(self, name: str) -> Unit:
        """The unit of that name.

        Raises:
          UserError: There is none.
        """
        for unit in self.units:
            if unit.name == name:
                return unit
        known = ", ".join(unit.name for unit in self.units) or "none"
        raise UserError(f"no unit is called {name!r}; the units are: {known}.")

    def enclosing(self, name: str) -> tuple[str, ...]:
        """The units whose layers a unit is a part of, the nearest first."""
        found, outer = [], self[name].enclosing
        while outer:
            found.append(outer)
            outer = self[outer].enclosing
        return tuple(found)

    def facts(self, name: str, decided: Collection[str] = ()) -> Facts:
        """What decides which actions a unit's layers may take where they stand.

        Args:
          name: The unit's.
          decided: Names of units that are decided, too; where the one around it is, it
            recomputes everything, and nothing outlives one of its layers.
        """
        unit = self[name]
        outlives = unit.enclosing not in decided
        scans = [u for u in self.enclosing(name) if outlives and self[u].is_loop]
        return replace(unit.facts, num_scans=len(scans))

    def plan(
        self,
        actions: Mapping[str, Action | Sequence[Action]],
        **about: Any,
    ) -> Plan:
        """A plan that gives units their actions.

        Args:
          actions: From the unit's name to one action for all of its layers, or to one
            for each, the first to run first. Units left out stay as they are.
          **about: Further fields of `Plan`: `target`, `budget_bytes`, ...

        Raises:
          UserError: An unknown unit, a wrong number of actions, an action that the
            unit cannot take, or a unit and a part of it, unless the former recomputes
            everything.
        """
        units = []
        for name, given in actions.items():
            taken = for_each(given, self[name].num_layers)
            units.append(self[name].plan(taken, self.facts(name, actions)))
        check_nested(units, {unit.name: unit for unit in self.units})
        return Plan(
            units=tuple(units),
            program=self.fingerprint,
            jax_version=self.jax_version,
            **{
                "keep_checkpoints": self.keep_checkpoints,
                "num_devices": self.num_devices,
                **about,
            },
        )

    def to_json(self) -> str:
        """One JSON object with a schema version; `from_json` reads it back."""
        return json.dumps({"schema": SCHEMA_VERSION, **dataclasses.asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> "Graph":
        """The graph that `to_json` wrote.

        Raises:
          ValueError: The text is no graph, or one of a newer schema.
        """
        try:
            data = parse_json(text)
            if "schema" not in data:  # The first schema did not name itself.
                data = renamed_keys(data, _FIRST_SCHEMA)
            else:
                schema_of(data, SCHEMA_VERSION)
            found = cls(
                tuple(_unit(unit) for unit in data["units"]),
                data["fingerprint"],
                data["jax_version"],
                tuple(_fixed_unit(one) for one in data["fixed_units"]),
                data.get("keep_checkpoints", False),  # Older files have no such keys.
                tuple(data.get("undecided", ())),
                data.get("num_devices", 1),
            )
            check_types(found)
            return found
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a graph: {error}") from None

    def __str__(self) -> str:
        lines = []
        for unit in self.units:
            plain = sum(r.num_bytes for r in unit.residuals if r.plain)
            lines.append(
                f"{printable(unit.name)} ({unit.kind}, {unit.num_layers} layers, "
                f"plain autodiff keeps {plain:,} bytes a layer)"
            )
            lines += [
                f"  {printable(r.name):24} {r.dtype}{list(r.shape)} "
                f"{r.num_bytes:,} bytes, {r.recompute_flops:,} FLOPs to recompute"
                + (" (plain)" if r.plain else "")
                + (f", kept: {r.effectful}" if r.effectful else "")
                for r in unit.residuals
            ]
        more = [*map(str, self.fixed_units), *map(printable, self.undecided)]
        return "\n".join([*lines, *more])


def _unit(data: dict[str, Any]) -> Unit:
    values = tuple(Value(**_tuples(v)) for v in data.pop("values"))
    operations = tuple(Operation(**_tuples(o)) for o in data.pop("operations"))
    return Unit(values=values, operations=operations, **_tuples(data))


def _fixed_unit(data: dict[str, Any]) -> FixedUnit:
    actions = tuple(Action(**_tuples(a)) for a in data["actions"])
    return FixedUnit(_unit(data["unit"]), actions)


def _tuples(d: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in d.items()}
