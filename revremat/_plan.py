"""Action and Plan: how each layer's residuals come back, as data."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from revremat._compat import jax_version
from revremat._errors import UserError
from revremat._io._files import read_text, write_text
from revremat._io._json import parse_json, schema_of
from revremat._io._notebook import InNotebooks
from revremat._printable import printable, sentence

SCHEMA_VERSION = 4
_KNOWS_ORDER = 4
MOST_UNITS = 10_000
"""Of a plan that is read. A program of so many is traced for hours, and the largest
that are known have some hundred; a file with more is an accident, or meant to harm."""
MOST_LAYERS = 100_000
"""Of all units of a plan that is read, for the same reason; each is an action."""
MOST_PLAN_BYTES = 8 << 20
"""Of its text: JSON of that size is parsed in a fraction of a second."""
KINDS = ("save", "recompute", "offload", "invert")


@dataclass(frozen=True)
class Action:
    """How one layer's residuals come back for the backward pass.

    The kind says what happens to everything not listed; use `SAVE`, `RECOMPUTE`,
    `OFFLOAD` and `INVERT`, and call them to make exceptions:

    >>> RECOMPUTE(save=["attn_out"], offload=["qkv"])
    RECOMPUTE(save=['attn_out'], offload=['qkv'])

    Attributes:
      kind: `"save"` keeps on the device whatever plain autodiff would; `"recompute"`
        keeps what is listed and the layer's input, and rebuilds the rest from those;
        `"offload"` keeps in host memory whatever plain autodiff would; `"invert"` is
        recompute with the layer's input rebuilt from its output by the layer's inverse.
      save: Names of values kept on the device.
      offload: Names of values kept in host memory.
      ahead: Names of values rebuilt one layer early, while the gradients of the layer
        above are computed, so that the rebuilding can hide under communication. With
        INVERT the layer is undone then, and all that this makes is at hand (Zhu and
        Mangalam, 2023, PaReprop).
      chunks: For a unit that can be split (`rr.block(..., split=...)`): how many pieces
        it is computed in, one after the other; 1 computes it whole.
      every: For a stack: neighbouring layers of this action form segments of so many,
        and only a segment's input is kept. In the backward pass a segment is run
        forward once more, and the rest of the action says what its layers keep from
        there on (Chen et al., 2016: of N layers, segments of sqrt(N)). 1 means that
        there are no segments.
      unroll: For a stack: its layers are written out one after the other, where they
        would be turns of a loop. What they keep then lies where it was made and is not
        copied into a stack of all layers' values and out of it again; the program is
        longer, and so is compiling it.
    """

    kind: str
    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    ahead: tuple[str, ...] = ()
    chunks: int = 1
    every: int = 1
    unroll: bool = False

    def __post_init__(self):
        if not isinstance(self.unroll, bool):
            raise UserError(f"unroll={self.unroll!r} is neither True nor False")
        if type(self.chunks) is not int or self.chunks < 1:
            raise UserError(
                f"chunks={self.chunks!r} is no number of pieces: write 1 for the "
                "whole, or how many"
            )
        if isinstance(self.every, bool) or not isinstance(self.every, int):
            raise UserError(
                f"every={self.every!r} is no number of layers; write 2 or 8"
            )
        if self.every < 1:
            raise UserError(
                f"every={self.every} forms no segments: write 1 for none, or how many "
                "layers a segment has"
            )

    def __call__(
        self,
        save: Iterable[str] = (),
        offload: Iterable[str] = (),
        ahead: Iterable[str] = (),
        chunks: int | None = None,
        every: int | None = None,
        unroll: bool | None = None,
    ) -> "Action":
        """This action, with these values treated otherwise (names are sorted)."""
        return replace(
            self,
            save=tuple(sorted({*self.save, *save})),
            offload=tuple(sorted({*self.offload, *offload})),
            ahead=tuple(sorted({*self.ahead, *ahead})),
            chunks=self.chunks if chunks is None else chunks,
            every=self.every if every is None else every,
            unroll=self.unroll if unroll is None else unroll,
        )

    @property
    def on_host(self) -> bool:
        """Whether anything is kept in host memory."""
        return self.kind == "offload" or bool(self.offload)

    @property
    def rebuilds_all(self) -> bool:
        """Whether a layer keeps nothing but its input."""
        return self.kind == "recompute" and not self.names and self.chunks == 1

    @property
    def can_group(self) -> bool:
        """Whether layers of this action can form segments, as `every` says."""
        plain = self.kind in ("save", "recompute") and self.chunks == 1
        return plain and not self.offload and not self.ahead

    @property
    def can_unroll(self) -> bool:
        """Whether writing layers of this action out can gain anything."""
        return not self.ahead and self.every == 1 and self.chunks == 1

    @property
    def names(self) -> frozenset[str]:
        """Every name the action mentions."""
        return frozenset(self.save + self.offload + self.ahead)

    def __repr__(self) -> str:
        listed = [
            f"{key}={list(value)!r}"
            for key in ("save", "offload", "ahead")
            if (value := getattr(self, key))
        ]
        if self.chunks != 1:
            listed.append(f"chunks={self.chunks}")
        if self.every != 1:
            listed.append(f"every={self.every}")
        if self.unroll:
            listed.append("unroll=True")
        return self.kind.upper() + (f"({', '.join(listed)})" if listed else "")


SAVE = Action("save")
RECOMPUTE = Action("recompute")
OFFLOAD = Action("offload")
INVERT = Action("invert")


def check_sent(
    unit: str, actions: Iterable[Action], *, in_branch: bool, num_scans: int
) -> None:
    """Refuses to send to the host what compilers cannot hand on from where it is made.

    Args:
      unit: Its name.
      actions: Of its layers.
      in_branch: Whether it runs in a branch.
      num_scans: How many scans around it keep what it keeps, for all of their turns.

    Raises:
      UserError: An action offloads in a branch, or inside of two scans.
    """
    sent = [action for action in actions if action.on_host]
    if sent and in_branch:
        raise UserError(
            f"unit {unit!r} runs in a branch of lax.cond or lax.switch, and XLA hands "
            f"on nothing in host memory from there, where {sent[0]!r} would send "
            "values; write SAVE or RECOMPUTE."
        )
    if sent and num_scans > 1:
        raise UserError(
            f"unit {unit!r} runs inside of {num_scans} scans, which would all keep in "
            f"host memory what {sent[0]!r} sends there, and XLA only manages one; give "
            "RECOMPUTE to the unit around it, or write SAVE or RECOMPUTE."
        )


@dataclass(frozen=True)
class UnitPlan:
    """What a plan says about one unit.

    Attributes:
      name: The unit's name in the graph.
      fingerprint: The unit's; a plan holds for this computation alone.
      actions: One for each layer, the first to run first.
      device_names: For each layer, what it keeps on the device, the input included;
        in a segment, once that is run again.
      host_names: For each layer, what it keeps in host memory.
    """

    name: str
    fingerprint: str
    actions: tuple[Action, ...]
    device_names: tuple[tuple[str, ...], ...]
    host_names: tuple[tuple[str, ...], ...]

    def leaves_room(self, kind: str, inner: "UnitPlan", directly: bool) -> bool:
        """Whether a plan that has this may speak of a unit inside of its layers, too.

        Args:
          kind: What this unit is: `"scan"`, `"repeat"` ...
          inner: The other one.
          directly: Whether there is no unit between the two.
        """
        if not all(action.rebuilds_all for action in self.actions):
            return False
        # Unrolled layers run one program, so their loops cannot differ.
        return kind == "scan" or (directly and len(set(inner.actions)) == 1)

    def __str__(self) -> str:
        runs = [f"{len(list(run))} x {key!r}" for key, run in groupby(self.actions)]
        return f"{printable(self.name)}: " + ", ".join(runs)


@dataclass(frozen=True)
class Plan(InNotebooks):
    """How every residual of a program comes back; the answer of a search.

    Attributes:
      units: What is decided, unit by unit; units left out stay as they are.
      program: The graph's fingerprint; a plan holds for this program alone.
      target: The machine it was made for, such as `"h100:8"`; "" for no one.
      budget_bytes: What it had to fit in, per device; None for no budget.
      predicted_bytes: What the search expected, before the last compile; None if it did
        not say.
      compiled_bytes: What the target's compiler says, per device; None if not asked.
      held_by: What holds the memory where the plan does not fit, for people to read.
      jax_version: Of the JAX that traced the program: names that are made up mean the
        same value only there.
      in_order: Whether layers outside of loops compute all of their gradients before
        the backward pass goes on below them. Else the compiler may put gradients of
        weights off and hold what they are made of, which it does where a loop adds
        them up over microbatches.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
      >>> loss = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
      >>> plan = rr.trace(loss, w, x).plan({"stack": rr.RECOMPUTE})
      >>> print(plan)
      plan for any target
        stack: 4 x RECOMPUTE
      >>> rr.Plan.from_json(plan.to_json()) == plan
      True
    """

    units: tuple[UnitPlan, ...]
    program: str
    target: str = ""
    budget_bytes: int | None = None
    predicted_bytes: int | None = None
    compiled_bytes: int | None = None
    held_by: str = ""
    jax_version: str = ""
    in_order: bool = False

    def __post_init__(self):
        if not isinstance(self.in_order, bool):
            raise UserError(f"in_order={self.in_order!r} is neither True nor False")

    @property
    def total_bytes(self) -> int | None:
        """Compiled bytes where there are any, else predicted ones."""
        known = self.compiled_bytes is not None
        return self.compiled_bytes if known else self.predicted_bytes

    @property
    def fits(self) -> bool:
        """Whether it is known to stay within its budget; True without a budget."""
        return self.budget_bytes is None or (
            self.total_bytes is not None and self.total_bytes <= self.budget_bytes
        )

    @property
    def shortfall_bytes(self) -> int:
        """By how much it exceeds its budget; 0 where it fits or nothing is known."""
        if self.budget_bytes is None or self.total_bytes is None:
            return 0
        return max(0, self.total_bytes - self.budget_bytes)

    @property
    def actions(self) -> dict[str, tuple[Action, ...]]:
        """From unit to the action of each layer."""
        return {unit.name: unit.actions for unit in self.units}

    @property
    def version_note(self) -> str:
        """What is to be known of a plan that another JAX made; "" for this one's."""
        if self.jax_version in ("", jax_version()):
            return ""
        return sentence(
            f"the plan was made with JAX {self.jax_version} and this is "
            f"{jax_version()}: it is taken where the program's fingerprints agree, and "
            "its bytes are the other's; 'revremat report --plan' compiles it once more"
        )

    def target_note(self, target: str) -> str:
        """What is to be known of a plan that was made for another target.

        Args:
          target: The one that it is used on, as targets are written.

        Returns:
          One sentence; "" for the plan's own target, or where it names none.
        """
        if self.target in ("", target):
            return ""
        return sentence(
            f"the plan was made for {self.target} and is used on {target}: "
            "its bytes are the other's; 'revremat report --plan' compiles it once more"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as JSON, in whole or not at all.

        Args:
          path: Where; a folder that is not there yet is made.

        Raises:
          UserError: The place cannot be written; nothing is left behind.
        """
        path = Path(path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write {str(path)!r}: {error.strerror}") from None
        write_text(path, self.to_json() + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Plan":
        """Read what `save` wrote; nothing in the file is executed.

        Raises:
          UserError: The file is missing, damaged, too large, or of a newer schema.
        """
        try:
            text = read_text(path, most=MOST_PLAN_BYTES)
        except UnicodeDecodeError:
            raise UserError(
                f"{path}: cannot read a plan from it (it is not text)."
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UserError(f"{path}: cannot read a plan from it ({reason}).") from None
        return cls.from_json(text, source=str(path))

    def to_json(self) -> str:
        """One JSON object; equal neighbouring layers are written once, with a count."""
        fields = {key: getattr(self, key) for key in _PLAN_FIELDS}
        fields["in_order"] = self.in_order
        units = [_write_unit(unit) for unit in self.units]
        return json.dumps(
            {"schema": SCHEMA_VERSION, **fields, "units": units}, indent=1
        )

    @classmethod
    def from_json(cls, text: str, source: str = "the text") -> "Plan":
        """The plan that `to_json` wrote.

        Raises:
          UserError: The text is damaged, or of a newer schema.
        """
        if len(text) > MOST_PLAN_BYTES:
            raise UserError(
                f"{source} is not a plan: it has {len(text):,} characters, and plans "
                f"have at most {MOST_PLAN_BYTES:,}."
            )
        try:
            data = parse_json(text)
        except ValueError as error:
            raise UserError(
                f"{source} is not a plan: it is not JSON ({error})."
            ) from None
        try:
            schema = schema_of(data, SCHEMA_VERSION)
        except ValueError as error:
            raise UserError(f"{source} is not a plan: {error}.") from None
        try:
            fields = {
                key: _typed(data, key, kind) for key, kind in _PLAN_FIELDS.items()
            }
            if "in_order" not in data and schema >= _KNOWS_ORDER:
                raise ValueError("'in_order' is missing")
            fields["in_order"] = _flag(data, "in_order")
            units = _read_units(_typed(data, "units", list))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{source} is a damaged plan: {error}.") from None
        return cls(units=units, **fields)

    def __str__(self) -> str:
        size = "" if self.total_bytes is None else f", {self.total_bytes:,} bytes"
        budget = "" if self.budget_bytes is None else f" of {self.budget_bytes:,}"
        head = f"plan for {printable(self.target) or 'any target'}{size}{budget}"
        if not self.fits:
            head += f" (does not fit: {printable(self.held_by) or 'see the units'})"
        if self.in_order:
            head += ", gradients in order"
        return "\n".join([head, *(f"  {unit}" for unit in self.units)])


_OPTIONAL_INT = int | None
_PLAN_FIELDS: dict[str, Any] = {
    "program": str,
    "target": str,
    "budget_bytes": _OPTIONAL_INT,
    "predicted_bytes": _OPTIONAL_INT,
    "compiled_bytes": _OPTIONAL_INT,
    "held_by": str,
    "jax_version": str,
}


def _typed(data: dict[str, Any], key: str, kind: Any) -> Any:
    if not isinstance(data, dict) or key not in data:
        raise ValueError(f"{key!r} is missing")
    value = data[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{key!r} is {value!r}")
    if isinstance(value, int) and value < 0:
        raise ValueError(f"{key!r} is {value!r}")
    return value


def _write_unit(unit: UnitPlan) -> dict[str, Any]:
    layers = zip(unit.actions, unit.device_names, unit.host_names, strict=True)
    runs = [
        {
            "layers": len(list(run)),
            **asdict(action),
            "on_device": device,
            "on_host": host,
        }
        for (action, device, host), run in groupby(layers)
    ]
    return {"name": unit.name, "fingerprint": unit.fingerprint, "actions": runs}


def _read_units(found: list[Any]) -> tuple[UnitPlan, ...]:
    if len(found) > MOST_UNITS:
        raise ValueError(
            f"it has {len(found):,} units, and {MOST_UNITS:,} are the most"
        )
    units, left = [], MOST_LAYERS
    for one in found:
        units.append(_read_unit(one, left))
        left -= len(units[-1].actions)
    (name, number), *_ = (*Counter(u.name for u in units).most_common(1), ("", 0))
    if number > 1:
        raise ValueError(f"unit {name!r} is there twice")
    return tuple(units)


def _read_unit(data: dict[str, Any], most_layers: int) -> UnitPlan:
    actions, device_names, host_names = [], [], []
    runs = _typed(data, "actions", list)
    if len(runs) > most_layers:
        raise ValueError(
            f"'actions' has {len(runs):,} entries, and {MOST_LAYERS:,} are the most of "
            "all units"
        )
    for run in runs:
        count, kind = _typed(run, "layers", int), _typed(run, "kind", str)
        if kind not in KINDS:
            raise ValueError(f"{kind!r} is no action; there are {', '.join(KINDS)}")
        if count < 1:
            raise ValueError(f"'layers' is {count}")
        if len(actions) + count > most_layers:
            raise ValueError(
                f"'layers' is {count}, and {MOST_LAYERS:,} are the most of all units"
            )
        chunks, every = _typed(run, "chunks", int), run.get("every", 1)
        for key, number in (("chunks", chunks), ("every", every)):
            if type(number) is not int or number < 1:
                raise ValueError(f"{key!r} is {number!r}")
        unroll = _flag(run, "unroll")
        names = {key: _names(run, key) for key in ("save", "offload", "ahead")}
        action = Action(kind, chunks=chunks, every=every, unroll=unroll, **names)
        actions += [action] * count
        device_names += [_names(run, "on_device")] * count
        host_names += [_names(run, "on_host")] * count
    return UnitPlan(
        name=_typed(data, "name", str),
        fingerprint=_typed(data, "fingerprint", str),
        actions=tuple(actions),
        device_names=tuple(device_names),
        host_names=tuple(host_names),
    )


def _flag(data: dict[str, Any], key: str) -> bool:
    value = data.get(key, False)  # Older schemas have fewer of them.
    if not isinstance(value, bool):
        raise ValueError(f"{key!r} is {value!r}")
    return value


def _names(data: dict[str, Any], key: str) -> tuple[str, ...]:
    names = _typed(data, key, list)
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key!r} is {names!r}")
    return tuple(names)
