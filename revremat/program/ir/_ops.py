"""A program as data: a flat list of operations on values, calls inlined.

JAX's own jaxprs nest (jitted calls, checkpoints) and mark names by an operation of
their own. Deciding how values are restored needs neither, so `flatten` inlines the
calls, turns names into a table, and gives every value one identity. A `Program` is
immutable; running part of it is running part of its list.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn, Literal

from revremat import _compat, _resolve
from revremat._primitives import CALLS, CHECKPOINTS

BLOCK_PREFIX = "revremat.block."
INVERSE_PREFIX = "revremat.inverse."
CHUNK_PREFIX = "revremat.chunk."
CHOSEN_PREFIX = "revremat.chosen."


class Value:
    """One array in a program: an input, or what an operation made."""

    __slots__ = ("aval",)

    def __init__(self, aval: Any):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Value({self.aval.str_short()}, {id(self):x})"


class Constant:
    """A value known while tracing: a literal, or an array closed over."""

    __slots__ = ("aval", "value")

    def __init__(self, aval: Any, value: Any):
        self.aval, self.value = aval, value


Atom = Value | Constant


def is_scalar(constant: Constant) -> bool:
    """Whether a constant is a plain number, to be written rather than passed along."""
    if _compat.is_tracer(constant.value) or constant.aval.shape:
        return False
    return not jnp.issubdtype(constant.aval.dtype, jax.dtypes.extended)


@dataclass(frozen=True, eq=False)
class Op:
    """One operation: the equation it came from, on this program's own values."""

    eqn: JaxprEqn
    inputs: tuple[Atom, ...]
    outputs: tuple[Value, ...]
    scope: _compat.Scope

    @property
    def kind(self) -> str:
        return self.eqn.primitive.name

    @property
    def called(self) -> str:
        """The name of the function it calls, "" if it is no call."""
        return str(self.eqn.params.get("name", "")) if self.kind in CALLS else ""

    @property
    def is_block(self) -> bool:
        return self.called.startswith(BLOCK_PREFIX)

    @property
    def is_inverse(self) -> bool:
        return self.called.startswith(INVERSE_PREFIX)

    @property
    def is_written(self) -> bool:
        """Whether it is dead code: what may be done with a block, or has been done."""
        return self.called.startswith((INVERSE_PREFIX, CHUNK_PREFIX, CHOSEN_PREFIX))

    @property
    def drops_weak_type(self) -> bool:
        """Whether an array comes out as it is, only no longer as a Python number's."""
        if self.kind != "convert_element_type":
            return False
        same = self.inputs[0].aval.dtype == self.outputs[0].aval.dtype
        return same and self.eqn.params.get("sharding") is None

    @property
    def has_own_derivative(self) -> bool:
        """Whether it is a function with a `jax.custom_vjp`."""
        return self.kind.startswith("custom_vjp_call")


@dataclass(frozen=True, eq=False)
class Program:
    """A flat function: `outputs` computed from `inputs` by `ops`, in order.

    Attributes:
      inputs: Its arguments.
      ops: Its operations, each after all that it uses.
      outputs: Its results; an input or a constant may be one.
      names: `(name, value)` for every value tagged with `rr.name`.
      regions: The regions of `jax.checkpoint` whose operations are among `ops`, each
        after those within it.
    """

    inputs: tuple[Value, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Atom, ...]
    names: tuple[tuple[str, Atom], ...] = field(default=())
    regions: tuple["Region", ...] = field(default=())

    def __call__(self, *args: Any) -> list[Any]:
        """Evaluate on arrays or tracers, one per input; returns one per output."""
        env = dict(zip(self.inputs, args, strict=True))
        run(self.ops, env)
        return [read(env, out) for out in self.outputs]


@dataclass(frozen=True, eq=False)
class Region:
    """A region of `jax.checkpoint` that a flat program has dissolved.

    Attributes:
      op: The region as one operation, on what it takes from around it.
      ops: Its operations, those of regions within it included.
      outputs: What it gives, one for each of `op`'s outputs.
    """

    op: Op
    ops: tuple[Op, ...]
    outputs: tuple[Atom, ...]


Rewrite = Callable[[Op, list[Any]], list[Any] | None]


def read(env: Mapping[Value, Any], atom: Atom) -> Any:
    return atom.value if isinstance(atom, Constant) else env[atom]


def run(ops: Iterable[Op], env: dict[Value, Any], rewrite: Rewrite | None = None):
    """Evaluate operations in order, adding what they make to `env`.

    Args:
      ops: What to evaluate; everything it uses is made before, or is in `env`.
      env: Values so far; changed in place.
      rewrite: May answer for an operation with its results; None means evaluate it.
    """
    for op in ops:
        values = [read(env, atom) for atom in op.inputs]
        results = None if rewrite is None else rewrite(op, values)
        if results is None:
            results = _compat.bind(op.eqn, values, op.scope)
        env.update(zip(op.outputs, results, strict=True))


def flatten(
    closed: Any,
    *,
    keep_names: bool = False,
    keep_checkpoints: bool | Callable[[JaxprEqn], bool] = False,
    keep_blocks: bool = False,
    keep: Callable[[Op], bool] = lambda op: False,
    of: Op | None = None,
) -> Program:
    """A closed jaxpr as a flat program.

    Args:
      closed: From `jax.make_jaxpr`, or an equation's `jaxpr` parameter.
      keep_names: Leave names as operations too (needed where the program is to run
        under somebody else's checkpoint policy).
      keep_checkpoints: Leave `jax.checkpoint` regions as single operations, all or
        those of which it says so.
      keep_blocks: Leave `rr.block` calls as single operations.
      keep: Which other calls to leave.
      of: The operation that holds the program, for its source lines.
    """
    is_whole = keep_checkpoints
    if not callable(is_whole):
        is_whole = lambda eqn, all_of_them=is_whole: all_of_them
    flat = _Flattener(keep_names, is_whole, keep_blocks, keep)
    inputs = tuple(Value(v.aval) for v in closed.jaxpr.invars)
    around = _compat.Scope()
    if of is not None:  # names begin anew in every program
        around = replace(of.scope.inside(of.eqn), names=around.names)
    outputs = flat.inline(closed, inputs, around)
    return Program(
        inputs, tuple(flat.ops), tuple(outputs), tuple(flat.names), tuple(flat.regions)
    )


@dataclass
class _Flattener:
    keep_names: bool
    keep_checkpoints: Callable[[JaxprEqn], bool]
    keep_blocks: bool
    keep: Callable[[Op], bool]
    ops: list[Op] = field(default_factory=list)
    names: list[tuple[str, Atom]] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)

    def inline(
        self, closed: Any, args: Sequence[Atom], around: _compat.Scope
    ) -> list[Atom]:
        env: dict[Any, Atom] = dict(zip(closed.jaxpr.invars, args, strict=True))
        for var, value in _compat.constants_of(closed):
            env[var] = Constant(var.aval, value)
        look_up = lambda v: (
            Constant(v.aval, v.val) if isinstance(v, Literal) else env[v]
        )
        for eqn in closed.jaxpr.eqns:
            inputs = [look_up(v) for v in eqn.invars]
            results = self._one(eqn, inputs, around.within(eqn))
            env.update(zip(eqn.outvars, results, strict=True))
        return [look_up(v) for v in closed.jaxpr.outvars]

    def _one(
        self, eqn: JaxprEqn, inputs: list[Atom], scope: _compat.Scope
    ) -> Sequence[Atom]:
        kind = eqn.primitive.name
        if kind == "name":
            self.names.append((eqn.params["name"], inputs[0]))
            if not self.keep_names:
                return inputs
        op = Op(eqn, tuple(inputs), tuple(Value(v.aval) for v in eqn.outvars), scope)
        if op.is_written and not self.keep_blocks:
            return op.outputs  # Nothing uses it.
        body = self._body(op)
        if body is not None:
            first = len(self.ops)
            results = self.inline(body, inputs, scope.inside(eqn))
            if kind in CHECKPOINTS:
                ops = tuple(self.ops[first:])
                self.regions.append(Region(op, ops, tuple(results)))
            return results
        self.ops.append(op)
        return op.outputs

    def _body(self, op: Op) -> Any:
        """The jaxpr to put in an operation's place, or None to leave it."""
        if op.kind in CHECKPOINTS:
            is_whole = self.keep_checkpoints(op.eqn)
            return None if is_whole else as_closed(op.eqn.params["jaxpr"])
        if op.kind not in CALLS or (
            self.keep_blocks and (op.is_block or op.is_written)
        ):
            return None
        if _compat.has_explicit_placement(op.eqn) or self.keep(op):
            return None
        return as_closed(op.eqn.params.get("jaxpr", op.eqn.params.get("call_jaxpr")))


def as_closed(jaxpr: Any) -> Any:
    """A jaxpr without constants as a closed one (the same thing since JAX 0.12)."""
    return jaxpr if hasattr(jaxpr, "consts") else _compat.close(jaxpr)


def lift_constants(program: Program) -> tuple[Program, list[Any]]:
    """The program with every array it closes over as one more input, in front.

    Returns:
      The program and the arrays to pass. Numbers stay in the program.
    """
    lifted: dict[int, tuple[Value, Any]] = {}

    def lift(atom: Atom) -> Atom:
        if isinstance(atom, Value) or is_scalar(atom):
            return atom
        value, _ = lifted.setdefault(id(atom.value), (Value(atom.aval), atom.value))
        return value

    ops = tuple(
        Op(op.eqn, tuple(map(lift, op.inputs)), op.outputs, op.scope)
        for op in program.ops
    )
    outputs = tuple(map(lift, program.outputs))
    names = tuple((name, lift(atom)) for name, atom in program.names)
    extra = tuple(value for value, _ in lifted.values())
    lifted_program = Program(extra + program.inputs, ops, outputs, names)
    return lifted_program, [array for _, array in lifted.values()]


def substitute(ops: Iterable[Op], env: dict[Value, Any]) -> tuple[Op, ...]:
    """The operations on other values: those in `env`, which gains what they make."""
    replaced = []
    for op in ops:
        inputs = tuple(env.get(a, a) if isinstance(a, Value) else a for a in op.inputs)
        outputs = tuple(Value(out.aval) for out in op.outputs)
        env.update(zip(op.outputs, outputs, strict=True))
        replaced.append(Op(op.eqn, inputs, outputs, op.scope))
    return tuple(replaced)


def with_inputs(program: Program, avals: Sequence[Any], position: int) -> Program:
    """The program with inputs it does not use put in at a position."""
    unused = tuple(Value(aval) for aval in avals)
    before, after = program.inputs[:position], program.inputs[position:]
    return Program(before + unused + after, program.ops, program.outputs, program.names)


def needed(
    ops: Sequence[Op],
    targets: Iterable[Atom],
    given: Iterable[Value] = (),
    keep_effects: bool = False,
) -> tuple[tuple[Op, ...], frozenset[Value]]:
    """The operations that make `targets` out of `given` and whatever has no maker.

    With `keep_effects`, operations with side effects belong to them in any case.

    Returns:
      Those operations in order, and the values they (or the targets) use without one of
      them making it: the given ones that are really used, and inputs.
    """
    always = lambda op: keep_effects and bool(_compat.side_effects(op.eqn))
    kept, used = _resolve.needed(ops, targets, frozenset(given), always)
    return kept, frozenset(v for v in used if isinstance(v, Value))


def prune(program: Program) -> Program:
    """The program without operations that no output needs."""
    ops, _ = needed(program.ops, program.outputs)
    return Program(program.inputs, ops, program.outputs, program.names)


def deduplicate(program: Program) -> Program:
    """The program with equal operations on equal values merged into one.

    Differentiation writes some values twice; kept twice, they would cost twice.
    """
    seen: dict[Any, tuple[Value, ...]] = {}
    same: dict[Value, Value] = {}
    ops: list[Op] = []
    resolve = lambda atom: same.get(atom, atom) if isinstance(atom, Value) else atom
    for op in program.ops:
        inputs = tuple(resolve(atom) for atom in op.inputs)
        key = same_result(op, inputs)
        if key is not None and key in seen:
            same.update(zip(op.outputs, seen[key], strict=True))
            continue
        ops.append(Op(op.eqn, inputs, op.outputs, op.scope))
        if key is not None:
            seen[key] = op.outputs
    outputs = tuple(resolve(atom) for atom in program.outputs)
    names = tuple((name, resolve(atom)) for name, atom in program.names)
    return Program(program.inputs, tuple(ops), outputs, names)


def cannot_recompute(op: Op) -> str | None:
    """Why running an operation twice would not give the same, or None if it would."""
    if op.kind == "rng_uniform":
        return "draws from the device's own random state"
    if effects := _compat.side_effects(op.eqn):
        names = ", ".join(sorted(type(e).__name__ for e in effects))
        return f"{op.kind} has side effects ({names})"
    if op.eqn.params.get("has_side_effect"):
        return f"{op.kind} has side effects"
    return None


def same_result(op: Op, inputs: tuple[Atom, ...]) -> Any:
    """Equal for operations that are bound to give equal results; None if unsure."""
    if cannot_recompute(op):
        return None
    parts: list[Any] = [op.kind]
    for atom in inputs:
        if isinstance(atom, Value):
            parts.append(atom)
        elif is_scalar(atom):
            parts.append((str(atom.aval), np.asarray(atom.value).tobytes()))
        else:
            parts.append(id(atom.value))
    parts += sorted(op.eqn.params.items(), key=lambda item: item[0])
    key = tuple(parts)
    try:
        hash(key)
    except TypeError:
        return None
    return key
