"""Measurement: what the target's compiler says one step takes, in bytes and time."""

import dataclasses
import fnmatch
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from revremat._errors import UserError
from revremat._format import format_bytes, format_us
from revremat._io._json import parse_json, renamed_keys, schema_of
from revremat._io._notebook import InNotebooks
from revremat._io._types import check_types
from revremat._measurement._collectives import Collective
from revremat._measurement._history import Curve, Span
from revremat._measurement._what_if import Checkpoint, Donation, Residual, WhatIf
from revremat._printable import printable

PHASES = (
    "argument",
    "forward",
    "recompute",
    "backward",
    "update",
    "output",
    "constant",
)
"""Where in a training step a buffer comes from, in the order reports list them."""

SCHEMA_VERSION = 5


def categories(rules: Mapping[str, str]) -> Callable[[str, str, str, str], str]:
    """The category of a (phase, scope, op, source), by rules of the user's own.

    Args:
      rules: A regular expression for each category, searched for in
        `phase/scope/op source`; the first that is found counts, else it is `other`.

    Raises:
      UserError: They are no such table, or a rule is no regular expression.
    """
    if not isinstance(rules, Mapping):
        raise UserError(
            f"rules={rules!r:.60} is no table: write a regular expression for each "
            "category, as in rules={'attention': 'attn'}"
        )
    compiled = {}
    for name, rule in rules.items():
        try:
            compiled[name] = re.compile(rule)
        except (re.error, TypeError) as error:
            raise UserError(
                f"the rule of {name!r}, {rule!r}, is no regular expression ({error}): "
                "write one, as in 'attn', with a backslash before characters that "
                "mean themselves"
            ) from None

    @functools.cache
    def category_of(phase: str, scope: str, op: str, source: str) -> str:
        text = f"{'/'.join(filter(None, (phase, scope, op)))} {source}"
        return next((n for n, rule in compiled.items() if rule.search(text)), "other")

    return category_of


@dataclass(frozen=True)
class Buffer:
    """One region of memory that is in use when the step's memory is at its peak.

    Attributes:
      bytes: Size on one device.
      shape: Of the array it holds, on one device.
      dtype: As JAX spells it (`bfloat16`).
      phase: One of `PHASES`: the part of the step that makes the value.
      scope: Module path, from named scopes or else from the functions' names;
        for an argument, the path of the leaf in the step's arguments.
      op: The operation that makes the value (`dot_general`).
      source: `file:line` in the user's code, or "" where the compiler names none.
      space: `device` or `host`.
      offset_bytes: From the start of its arena; None for what has an allocation of its
        own: arguments, results, constants.
      start: The position in the schedule that takes it, as `Curve.positions` counts
        them; 0 for what is there from the start.
      end: The position that gives it back, or the number of positions; 0 where nothing
        is known (reports of schema 1).
      padding_bytes: The part of `bytes` that the backend adds to the array.
      aliased: An argument whose memory a result takes over: it was donated.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> m = rr.measure(jnp.sin, jnp.ones((8, 4)), target="cpu:1")
      >>> buffer = m.memory.buffers[0]
      >>> buffer.bytes, buffer.shape, buffer.dtype, buffer.phase
      (128, (8, 4), 'float32', 'argument')
    """

    bytes: int
    shape: tuple[int, ...]
    dtype: str
    phase: str
    scope: str
    op: str = ""
    source: str = ""
    space: str = "device"
    offset_bytes: int | None = None
    start: int = 0
    end: int = 0
    padding_bytes: int = 0
    aliased: bool = False

    @property
    def module(self) -> str:
        """The scope cut to its first two parts, for sums.

        >>> Buffer(1, (), "", "argument", "state.params['mlp']['up']").module
        'state.params'
        """
        if self.phase == "argument":
            parts = re.findall(r"\[[^\]]*\]|\.?[^.\[]+", self.scope)
            return "".join(parts[:2])
        return "/".join(self.scope.split("/")[:2]) or "(unnamed)"


@dataclass(frozen=True)
class Buffers(Sequence[Buffer]):
    """Some of the buffers alive at the peak; the largest first."""

    items: tuple[Buffer, ...]

    @property
    def bytes(self) -> int:
        """Their sizes added up."""
        return sum(b.bytes for b in self.items)

    @overload
    def __getitem__(self, index: int) -> Buffer: ...
    @overload
    def __getitem__(self, index: slice) -> "Buffers": ...
    def __getitem__(self, index: int | slice) -> "Buffer | Buffers":
        if isinstance(index, slice):
            return Buffers(self.items[index])
        return self.items[index]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Buffer]:
        return iter(self.items)


@dataclass(frozen=True)
class Packing:
    """How well the arena of temporaries is packed, for the same lifetimes.

    Attributes:
      arena_bytes: What XLA's own packing takes.
      packed_bytes: What the best packing found takes, at the arena's alignment.
      bound_bytes: No packing takes less.
    """

    arena_bytes: int
    packed_bytes: int
    bound_bytes: int


@dataclass(frozen=True)
class Memory:
    """Bytes of one step on one device, as the target's compiler laid them out.

    Attributes:
      argument_bytes: Arguments in device memory.
      output_bytes: Results in device memory.
      alias_bytes: Results that take over an argument's buffer (donation).
      temp_bytes: The arena for everything in between, fragmentation included.
      host_bytes: Arguments, results and temporaries in host memory.
      fragmentation_bytes: The part of `temp_bytes` that is fragmentation at the peak.
      buffers: What is alive at the peak, largest first. On the device it adds up to
        `total_bytes - fragmentation_bytes` and the constants (`phase="constant"`),
        which XLA's totals leave out. Empty where the compiler's buffer assignment was
        not at hand (an already compiled object).
      packing: What another packing of the temporaries would take, where it was asked.
      curve: Memory over the schedule; None where `buffers` is empty.
      what_if: What would fall if one thing changed, where it was asked.
      rules: Categories of the user's own and their regular expressions, in the order
        in which they are tried; the curve is by these where there are any.

    Example:
      >>> import revremat as rr
      >>> parts = {"argument_bytes": 8, "output_bytes": 8, "alias_bytes": 8}
      >>> memory = rr.Memory(**parts, temp_bytes=4)
      >>> memory.total_bytes
      12
    """

    argument_bytes: int
    output_bytes: int
    alias_bytes: int
    temp_bytes: int
    host_bytes: int = 0
    fragmentation_bytes: int = 0
    buffers: tuple[Buffer, ...] = ()
    packing: Packing | None = None
    curve: Curve | None = None
    what_if: WhatIf | None = None
    rules: tuple[tuple[str, str], ...] = ()

    @property
    def total_bytes(self) -> int:
        """What the step needs on each device: argument + output - alias + temp."""
        return (
            self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes
        )

    def where(
        self,
        *,
        phase: str | None = None,
        scope: str | None = None,
        source: str | None = None,
        dtype: str | None = None,
        space: str = "device",
    ) -> Buffers:
        """The buffers alive at the peak that match every given pattern.

        Args:
          phase: One of `PHASES`, or a shell pattern over them (`"re*"`).
          scope: Shell pattern over module paths; it may stop above the leaf, so
            `"layer*/attn"` finds `layer_3/attn/softmax` as well.
          source: Shell pattern over `file:line`.
          dtype: Shell pattern over dtypes.
          space: `device`, `host`, or `*` for both.

        Returns:
          `Buffers`; their `.bytes` is the sum.

        Raises:
          ValueError: `phase` matches none of `PHASES`.
        """
        if phase is not None and not fnmatch.filter(PHASES, phase):
            known = ", ".join(PHASES)
            raise ValueError(f"unknown phase {phase!r}: write one of {known}")

        def matches(value: str, pattern: str | None, deeper: str = "") -> bool:
            if pattern is None:
                return True
            # Brackets stand for themselves: they are part of arguments' paths.
            pattern, deeper = (p.replace("[", "[[]") for p in (pattern, deeper))
            if fnmatch.fnmatchcase(value, pattern):
                return True
            return bool(deeper) and fnmatch.fnmatchcase(value, deeper)

        return Buffers(
            tuple(
                b
                for b in self.buffers
                if matches(b.phase, phase)
                and matches(b.scope, scope, f"{scope}/*")
                and matches(b.source, source)
                and matches(b.dtype, dtype)
                and matches(b.space, space)
            )
        )

    def by(self, *keys: str) -> dict[tuple[str, ...], int]:
        """Device bytes at the peak, added up by attributes of `Buffer`.

        Args:
          *keys: Names of `Buffer`'s text attributes, as in `by("phase", "scope")`.

        Returns:
          Bytes for each combination that occurs, the largest first.
        """
        sums: dict[tuple[str, ...], int] = {}
        for buffer in self.where():
            key = tuple(str(getattr(buffer, k)) for k in keys)
            sums[key] = sums.get(key, 0) + buffer.bytes
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))

    def by_rule(self, rules: Mapping[str, str]) -> dict[str, int]:
        """Device bytes at the peak, added up by categories of your own.

        Args:
          rules: A regular expression for each category, searched for in
            `phase/scope/op source`; the first that is found counts.

        Returns:
          Bytes of every category, those without a buffer included; `other` is the rest.

        Raises:
          UserError: A rule is no regular expression.

        >>> attention = Buffer(8, (2,), "float32", "forward", "layer/attn", "exp")
        >>> Memory(0, 0, 0, 8, buffers=(attention,)).by_rule({"attention": "attn"})
        {'attention': 8, 'other': 0}
        """
        category_of = categories(rules)
        sums: dict[str, int] = {name: 0 for name in (*rules, "other")}
        for b in self.where():
            sums[category_of(b.phase, b.scope, b.op, b.source)] += b.bytes
        return sums


@dataclass(frozen=True)
class Time:
    """Time of one step on one device, in microseconds: an estimate, unless it was run.

    The estimate is a roofline per scheduled instruction on a compute stream, with
    asynchronous collectives and host transfers on streams of their own.

    Attributes:
      step_us: From first to last instruction, or as it was measured.
      compute_us: On the compute stream, recompute included.
      recompute_us: Forward work done a second time for the backward pass.
      hidden_recompute_us: The part of it that runs while a collective is in flight.
      collective_us: Collectives, hidden or not.
      exposed_collective_us: The compute stream waits for them this long.
      transfer_us: Copies between host and device.
      exposed_transfer_us: The compute stream waits for them this long.
      flops: Floating-point operations, a multiply-add as two.
      calibrated: Factors come from a measured card rather than from a data sheet.
      spans: The timeline, neighbours of one kind put together, by stream and start.
      critical_path_us: The longest chain of instructions that wait for one another:
        no order of the schedule is faster.
      compiler_us: What XLA's own cost model says of the same instructions, without
        overlap; None where it notes nothing.
      measured: The program was run, and `step_us` is what it took; all else is an
        estimate.
      undecided_us: The step takes up to so much less where branches that data decide
        are short; `step_us` has the longest of each.

    Example:
      >>> import revremat as rr
      >>> time = rr.Time(step_us=12.0, compute_us=10.0, recompute_us=3.0)
      >>> time.step_us - time.compute_us
      2.0
    """

    step_us: float
    compute_us: float
    recompute_us: float = 0.0
    hidden_recompute_us: float = 0.0
    collective_us: float = 0.0
    exposed_collective_us: float = 0.0
    transfer_us: float = 0.0
    exposed_transfer_us: float = 0.0
    flops: float = 0.0
    calibrated: bool = False
    spans: tuple[Span, ...] = ()
    critical_path_us: float = 0.0
    compiler_us: float | None = None
    measured: bool = False
    undecided_us: float = 0.0

    @property
    def exposed_us(self) -> float:
        """How long of a step the device only waits: for others, and for its host."""
        return self.exposed_collective_us + self.exposed_transfer_us


@dataclass(frozen=True)
class Measurement(InNotebooks):
    """One step on one target: what it needs, how long it takes, whether it fits.

    Attributes:
      program: What the step is called.
      target: The target's name (`h100:8`).
      device: The card's name.
      num_devices: Devices the step is spread over.
      device_bytes: Memory of one device.
      reserve_bytes: What the runtime needs beside the program.
      memory: Bytes.
      time: Microseconds.
      compile_seconds: Spent on the compile, now or when it was cached.
      cached: Read from the compile cache.
      versions: Of what compiled it.
      notes: What a reader must know to believe the figures.
      collectives: What devices exchange, in the order of the schedule.

    Example:
      >>> import jax.numpy as jnp, revremat as rr
      >>> m = rr.measure(jnp.sin, jnp.ones(256), target="cpu:1", name="sine")
      >>> m.program, m.target, m.fits
      ('sine', 'cpu:1', True)
      >>> m.headroom_bytes == m.device_bytes - m.reserve_bytes - m.memory.total_bytes
      True
    """

    program: str
    target: str
    device: str
    num_devices: int
    device_bytes: int
    reserve_bytes: int
    memory: Memory
    time: Time
    compile_seconds: float = 0.0
    cached: bool = False
    versions: str = ""
    notes: tuple[str, ...] = ()
    collectives: tuple[Collective, ...] = ()

    def __repr__(self) -> str:
        size, took = self.memory.total_bytes, self.time.step_us
        return (
            f"<Measurement of {self.program!r} on {printable(self.target)}: "
            f"{format_bytes(size)} "
            f"of {format_bytes(self.usable_bytes)}, {format_us(took)} a step>"
        )

    @property
    def usable_bytes(self) -> int:
        """Memory of one device less the reserve."""
        return self.device_bytes - self.reserve_bytes

    @property
    def headroom_bytes(self) -> int:
        """What is left of the usable memory; negative when the step does not fit."""
        return self.usable_bytes - self.memory.total_bytes

    @property
    def fits(self) -> bool:
        """Whether the step and the reserve fit on the device."""
        return self.headroom_bytes >= 0

    def to_json(self) -> str:
        """All of it as JSON text, with a schema version; `from_json` reads it back."""
        data = dataclasses.asdict(self)
        data["memory"]["total_bytes"] = self.memory.total_bytes
        return json.dumps({"schema": SCHEMA_VERSION, **data}, indent=1)

    @staticmethod
    def from_json(text: str) -> "Measurement":
        """Reads what `to_json` wrote.

        Raises:
          ValueError: The text is no measurement, or one of a newer schema.
        """
        try:
            data: dict[str, Any] = parse_json(text)
            schema = schema_of(data, SCHEMA_VERSION)
            del data["schema"]
            memory = data.pop("memory")
            memory.pop("total_bytes")
            packing = memory.pop("packing", None)
            curve = memory.pop("curve", None)
            if curve and schema < 3:
                curve = renamed_keys(curve, {"holes_bytes": "fragmentation_bytes"})
            changes = memory.pop("what_if", None)
            rules = _tuples(memory.pop("rules", []))
            exchanged = (Collective(**_tuples(c)) for c in data.pop("collectives", ()))
            time = data.pop("time")
            spans = tuple(Span(**span) for span in time.pop("spans", ()))
            buffers = tuple(
                Buffer(**{**b, "shape": tuple(b["shape"])})
                for b in memory.pop("buffers")
            )
            found = Measurement(
                **{**data, "notes": tuple(data["notes"])}
                | {
                    "collectives": tuple(exchanged),
                    "memory": Memory(
                        **memory,
                        buffers=buffers,
                        packing=Packing(**packing) if packing else None,
                        curve=Curve(**_tuples(curve)) if curve else None,
                        what_if=_what_if(changes) if changes else None,
                        rules=rules,
                    ),
                    "time": Time(**time, spans=spans),
                }
            )
            check_types(found)
            return found
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a measurement: {error}") from None


def _what_if(data: dict[str, Any]) -> WhatIf:
    return WhatIf(
        tuple(Residual(**r) for r in data["residuals"]),
        tuple(Donation(**d) for d in data["donations"]),
        tuple(Checkpoint(**c) for c in data["checkpoints"]),
    )


def _tuples(value: Any) -> Any:
    """JSON's lists as tuples, at every depth below a dictionary."""
    if isinstance(value, dict):
        return {key: _tuples(v) for key, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
