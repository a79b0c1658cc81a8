"""Plan: how each layer's residuals are restored, as data."""

import contextlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

import jax

from revremat._action import Action, read_action
from revremat._compat import (
    DISABLED_PASSES,
    REMAT_LIMIT,
    REMAT_PASS,
    jax_version,
    use_compiler_options,
    use_remat_pass,
)
from revremat._errors import UserError
from revremat._io._files import read_text, write_text
from revremat._io._json import flag, names, parse_json, renamed_keys, schema_of, typed
from revremat._io._notebook import InNotebooks
from revremat._printable import printable, sentence

SCHEMA_VERSION = 8
_KNOWS_BARRIER = 4
_KNOWS_REMAT_PASS = 6
_KNOWS_DEVICES = 8
_OLD_KEYS = {"in_order": "gradient_barrier", "every": "segment_length"}
"""What keys were called up to schema 4."""
_FLAGS = ("gradient_barrier", "keep_checkpoints", "puts_gradients_off")
MOST_UNITS = 10_000
"""Of a plan that is read. A program of so many is traced for hours, and the largest
that are known have some hundred; a file with more is an accident, or meant to harm."""
MOST_LAYERS = 100_000
"""Of all units of a plan that is read, for the same reason; each is an action."""
MOST_PLAN_BYTES = 8 << 20
"""Of its text: JSON of that size is parsed in a fraction of a second."""


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

    def __str__(self) -> str:
        runs = [f"{len(list(run))} x {key!r}" for key, run in groupby(self.actions)]
        return f"{printable(self.name)}: " + ", ".join(runs)


class Place(Protocol):
    """Where a unit stands."""

    @property
    def is_loop(self) -> bool: ...
    @property
    def enclosing(self) -> str: ...


def check_nested(plans: Iterable[UnitPlan], units: Mapping[str, Place]) -> None:
    """Refuses to decide about a unit and a part of its layers, where these exclude.

    Both can be decided where the outer one recomputes everything. Unrolled layers run
    one program, so their loops cannot differ.

    Args:
      plans: What is decided.
      units: All units by name.

    Raises:
      UserError: The sentence.
    """
    decided = {plan.name: plan for plan in plans}
    for name, plan in decided.items():
        outer, is_direct = units[name].enclosing, True
        while outer:
            is_loop = units[outer].is_loop
            is_same = is_direct and len(set(plan.actions)) == 1
            if outer in decided and not (
                (is_loop or is_same)
                and all(action.recomputes_all for action in decided[outer].actions)
            ):
                same = "" if is_loop else f" and one action to {name!r}"
                raise UserError(
                    f"unit {name!r} is a part of every layer of unit {outer!r}, whose "
                    "actions say how all of its values are restored; give actions to "
                    f"one of the two, or RECOMPUTE to {outer!r}{same}."
                )
            outer, is_direct = units[outer].enclosing, False


@dataclass(frozen=True)
class Plan(InNotebooks):
    """How every residual of a program is restored; the answer of a search.

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
      gradient_barrier: Whether layers outside of loops compute all of their gradients
        before the backward pass goes on below them. Else the compiler may put gradients
        of weights off and hold what they are made of, which it does where a loop adds
        them up over microbatches. And where a value passes over a layer, as a skip
        does, the parts of its gradient are added up before that layer's pass.
      keep_checkpoints: Whether the program's own `jax.checkpoint` regions stay as they
        are written, and no unit is in them.
      remat_pass_percent: The limit of XLA's own remat pass, which is on where the
        plan's program is compiled: percent of what 80 % of a device's memory leave
        beside the step's arguments and results. XLA's default is 95. None: it is off.
      num_devices: How many devices the program was for. Where there are several,
        unrolled layers leave each other time to add up gradients of weights, unless
        there is a gradient barrier.
      puts_gradients_off: Whether the compiler may put off gradients of weights of
        unrolled layers to the end of the step, as in plain JAX. That hides more of
        what devices exchange, and takes more memory. Not with a gradient barrier.

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
    gradient_barrier: bool = False
    keep_checkpoints: bool = False
    remat_pass_percent: int | None = None
    num_devices: int = 1
    puts_gradients_off: bool = False

    def __post_init__(self):
        if type(self.num_devices) is not int or self.num_devices < 1:
            raise UserError(
                f"num_devices={self.num_devices!r} is no number of devices: write a "
                "whole number such as 8, or 1 for one device"
            )
        percent = self.remat_pass_percent
        if percent is not None and (type(percent) is not int or percent < 1):
            raise UserError(
                f"remat_pass_percent={percent!r} is no limit: write a whole number of "
                "percent such as 95, or None to leave XLA's own remat pass off"
            )
        for name in _FLAGS:
            if not isinstance(value := getattr(self, name), bool):
                raise UserError(f"{name}={value!r} is neither True nor False")
        if self.gradient_barrier and self.puts_gradients_off:
            raise UserError(
                "gradient_barrier=True and puts_gradients_off=True exclude each other: "
                "leave one of them out"
            )

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

    @property
    def remat_pass_note(self) -> str:
        """What has to be set where the plan's program is compiled; "" for nothing."""
        if self.remat_pass_percent is None:
            return ""
        return sentence(
            "the plan is for XLA's own remat pass with a limit of "
            f"{self.remat_pass_percent} %: give plan.compiler_options to jax.jit, or "
            "the program takes other bytes than the plan says"
        )

    @property
    def compiler_options(self) -> dict[str, str]:
        """What `jax.jit(step, compiler_options=...)` needs to compile as was measured.

        XLA's own remat pass is left out, or has the plan's limit. For that limit JAX's
        setting `jax_compiler_enable_remat_pass` has to be True, as by default. The
        options stand in for passes that `XLA_FLAGS` may name in the same option.

        Example:
          >>> import revremat as rr
          >>> rr.Plan((), program="", remat_pass_percent=90).compiler_options
          {'xla_gpu_memory_limit_slop_factor': '90'}
        """
        if self.remat_pass_percent is None:
            return {DISABLED_PASSES: REMAT_PASS}
        return {REMAT_LIMIT: str(self.remat_pass_percent)}

    def compiling(self) -> contextlib.AbstractContextManager[None]:
        """Within it, this thread's compiles are as `compiler_options` say.

        Example:
          >>> import jax, jax.numpy as jnp, revremat as rr
          >>> plan = rr.Plan((), program="")
          >>> with plan.compiling():
          ...     print(jax.jit(jnp.sin)(0.0))
          0.0
        """
        return _compiling(self.remat_pass_percent)

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
        about = {key: getattr(self, key) for key in _PLAN_FIELDS}
        about["gradient_barrier"] = self.gradient_barrier
        if self.keep_checkpoints:
            about["keep_checkpoints"] = True
        about["remat_pass_percent"] = self.remat_pass_percent
        about["num_devices"] = self.num_devices
        if self.puts_gradients_off:
            about["puts_gradients_off"] = True
        units = [_write_unit(unit) for unit in self.units]
        return json.dumps({"schema": SCHEMA_VERSION, **about, "units": units}, indent=1)

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
        if schema < SCHEMA_VERSION:
            data = renamed_keys(data, _OLD_KEYS)
        try:
            about = {key: typed(data, key, kind) for key, kind in _PLAN_FIELDS.items()}
            if "gradient_barrier" not in data and schema >= _KNOWS_BARRIER:
                raise ValueError("'gradient_barrier' is missing")
            about["gradient_barrier"] = flag(data, "gradient_barrier")
            about["keep_checkpoints"] = flag(data, "keep_checkpoints")
            about["puts_gradients_off"] = flag(data, "puts_gradients_off")
            if "remat_pass_percent" not in data and schema >= _KNOWS_REMAT_PASS:
                raise ValueError("'remat_pass_percent' is missing")
            about["remat_pass_percent"] = _percent(data.get("remat_pass_percent"))
            about["num_devices"] = _num_devices(data, schema)
            units = _read_units(typed(data, "units", list))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{source} is a damaged plan: {error}.") from None
        if about["gradient_barrier"] and about["puts_gradients_off"]:
            raise UserError(
                f"{source} is a damaged plan: it has a gradient barrier and puts "
                "gradients off, which exclude each other."
            )
        return cls(units=units, **about)

    def __str__(self) -> str:
        size = "" if self.total_bytes is None else f", {self.total_bytes:,} bytes"
        budget = "" if self.budget_bytes is None else f" of {self.budget_bytes:,}"
        head = f"plan for {printable(self.target) or 'any target'}{size}{budget}"
        if not self.fits:
            head += f" (does not fit: {printable(self.held_by) or 'see the units'})"
        if self.gradient_barrier:
            head += ", with a gradient barrier"
        if self.puts_gradients_off:
            head += ", with gradients put off"
        if self.keep_checkpoints:
            head += ", the program's own checkpoints kept"
        if self.remat_pass_percent is not None:
            head += f", with XLA's own remat pass at {self.remat_pass_percent} %"
        return "\n".join([head, *(f"  {unit}" for unit in self.units)])


_compiled_as_planned = jax.make_user_context()  # JAX's caches tell programs apart


@contextlib.contextmanager
def _compiling(percent: int | None) -> Iterator[None]:
    options = {} if percent is None else {REMAT_LIMIT: str(percent)}
    with (
        use_remat_pass(percent is not None),
        use_compiler_options(options),
        _compiled_as_planned("off" if percent is None else percent),
    ):
        yield


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


def _percent(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise ValueError(f"'remat_pass_percent' is {value!r}")
    return value


def _num_devices(data: dict[str, Any], schema: int) -> int:
    if "num_devices" not in data and schema < _KNOWS_DEVICES:
        return 1
    number = typed(data, "num_devices", int)
    if number < 1:
        raise ValueError(f"'num_devices' is {number!r}")
    return number


_RUN_KEYS = {field.name for field in fields(Action)} | {
    *("layers", "on_device", "on_host"),
}


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
    runs = typed(data, "actions", list)
    if len(runs) > most_layers:
        raise ValueError(
            f"'actions' has {len(runs):,} entries, and {MOST_LAYERS:,} are the most of "
            "all units"
        )
    for run in runs:
        count = typed(run, "layers", int)
        if count < 1:
            raise ValueError(f"'layers' is {count}")
        if len(actions) + count > most_layers:
            raise ValueError(
                f"'layers' is {count}, and {MOST_LAYERS:,} are the most of all units"
            )
        if unknown := run.keys() - _RUN_KEYS:
            raise ValueError(f"{min(unknown)!r} is no part of an action")
        action = read_action(run)
        actions += [action] * count
        device_names += [names(run, "on_device")] * count
        host_names += [names(run, "on_host")] * count
    return UnitPlan(
        name=typed(data, "name", str),
        fingerprint=typed(data, "fingerprint", str),
        actions=tuple(actions),
        device_names=tuple(device_names),
        host_names=tuple(host_names),
    )
