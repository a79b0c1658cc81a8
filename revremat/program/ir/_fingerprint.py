"""A program's identity: equal computations, equal fingerprints.

Values are numbered by first use, so neither what variables are called nor the order of
a dictionary's keys changes anything; calls are inlined before, so neither does
`jax.jit`. Names given with `rr.name` and `rr.block` do not count; shapes and dtypes do.
Nor does it count whether an array is typed weakly, as `jnp.full((8,), 0.1)` is and what
an optimizer makes of it is not, as long as the same is computed.
"""

import enum
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from revremat import _compat
from revremat._primitives import CALLS, OWN_DERIVATIVE
from revremat.program.arrays._avals import is_differentiable, zero_cotangent
from revremat.program.ir._ops import (
    BLOCK_PREFIX,
    Constant,
    Op,
    Program,
    as_closed,
    flatten,
    is_scalar,
)
from revremat.program.ir._passes import pick

# Equal in meaning, or private to a process, or decided by the caller.
IGNORED = {
    *("name", "ctx_mesh", "mesh", "sharding", "out_sharding", "in_shardings", "inline"),
    *("out_shardings", "donated_invars", "keep_unused", "debug_info", "prevent_cse"),
    *("policy", "in_layouts", "out_layouts", "compiler_options_kvs", "ft_in", "ft_out"),
}
_WHERE = {"mesh", "sharding", "out_sharding", "in_shardings", "out_shardings"}
"""Of those, where arrays lie: another mesh is no other program, another layer it is."""


def fingerprint(program: Program, marked: Sequence[bool] = (), more: str = "") -> str:
    """Sixteen hexadecimal digits that identify what a program computes.

    Args:
      program: The program, flat.
      marked: Inputs to tell from the others, such as those that are differentiated.
      more: Anything else that counts.
    """
    text = describe(program, marked) + more
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(
    program: Program, marked: Sequence[bool] = (), how: "_How | None" = None
) -> str:
    """The program as text, the same for equal computations."""
    how = how or STABLE
    marks = {v for v, on in zip(program.inputs, marked, strict=False) if on}
    numbers: dict[Any, int] = {}
    same: dict[Any, Any] = {}

    def atom(a: Any) -> str:
        a = same.get(a, a)
        if isinstance(a, Constant):
            if is_scalar(a):
                return f"{a.aval.dtype}:{np.asarray(a.value).tolist()!r}"
            return f"const:{_aval(a.aval)}" + (_digest(a.value) if how.exact else "")
        mark = "*" if a in marks else ""
        return f"%{numbers.setdefault(a, len(numbers))}{mark}:{_aval(a.aval)}"

    lines = []
    for op in program.ops:
        if op.kind == "name" or (op.drops_weak_type and not how.exact):
            (given,), (made,) = op.inputs, op.outputs
            same[made] = same.get(given, given)
            continue
        inputs = ",".join(map(atom, op.inputs))
        outputs = ",".join(map(atom, op.outputs))
        kind = "call" if op.kind in CALLS else op.kind
        lines.append(f"{outputs}={kind}[{_params(op, how)}]({inputs})")
    lines.append("return " + ",".join(map(atom, program.outputs)))
    return "\n".join(lines)


def input_order(program: Program) -> tuple[int, ...]:
    """The inputs in order of first use; unused ones come last."""
    first: dict[Any, int] = {}
    for op in program.ops:
        for atom in op.inputs:
            first.setdefault(atom, len(first))
    for out in program.outputs:
        first.setdefault(out, len(first))
    places = [first.get(v, len(first)) for v in program.inputs]
    order = sorted(range(len(places)), key=places.__getitem__)
    return tuple(order)


def describe_op(op: Op) -> str:
    """What an operation does and on which shapes, whatever its values are.

    Two that read the same can stand for one another, in the backward pass as well. Not
    for another process: Python functions that are called back are told apart.
    """
    if op not in _described:
        inputs = ",".join(_aval(atom.aval) for atom in op.inputs)
        outputs = ",".join(_aval(out.aval) for out in op.outputs)
        _described[op] = f"{outputs}={op.kind}[{_params(op, ALIKE)}]({inputs})"
    return _described[op]


def describe_form(op: Op) -> str:
    """On which shapes an operation works and how it is called, its numbers apart."""
    inputs = ",".join(_aval(atom.aval) for atom in op.inputs)
    outputs = ",".join(_aval(out.aval) for out in op.outputs)
    return f"{outputs}={op.kind}({inputs})"


_described: WeakKeyDictionary[Op, str] = WeakKeyDictionary()


def _aval(aval: Any) -> str:
    dtype = getattr(aval, "dtype", type(aval).__name__)
    return _typed(getattr(aval, "shape", ()), dtype)


@lru_cache(maxsize=4096)
def _typed(shape: tuple[Any, ...], dtype: Any) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


@dataclass(frozen=True)
class _How:
    """How much of what a text cannot say is told apart.

    Attributes:
      exact: Python functions by identity, arrays by their numbers, where they lie, and
        all else that JAX knows of by whether it is equal.
      derivatives: Derivatives of functions that have their own, by what they compute.
    """

    exact: bool = False
    derivatives: bool = False


STABLE = _How()
"""The same in every process."""
ALIKE = _How(exact=True, derivatives=True)
"""What may stand for one another in this process."""
_INSIDE_DERIVATIVES = _How(exact=True)  # a derivative may call its own function again


def _params(op: Op, how: _How) -> str:
    params, own = op.eqn.params, op.kind.startswith(OWN_DERIVATIVE)
    if not own and not any(map(_holds_more, params.values())):
        return _plain_params(_ById(op.eqn), how)
    found = [_compat.how_it_runs(op.eqn)] if how.exact else []
    for key in _counting(params, how):
        # New objects each time a function is traced: what counts is what they compute.
        opaque = own and not _is_program(params[key])
        found.append(f"{key}={_param(params[key], STABLE if opaque else how)}")
    if own and how.derivatives:
        found.append(f"derivative={_derivative(_ById(op.eqn))}")
    return ";".join(found)


def _holds_more(value: Any) -> bool:
    """Whether a parameter holds what a cache should not hold on to."""
    if isinstance(value, tuple | list):
        return any(map(_holds_more, value))
    is_array = isinstance(value, np.ndarray | jax.Array)
    return is_array or _is_program(value) or callable(value)


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def _param(value: Any, how: _How) -> str:
    inside = lambda value: _param(value, how)
    if _is_program(value):
        return "{" + describe(flatten(as_closed(value)), how=how) + "}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str | int | float | bool | complex | None | np.generic):
        return repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{inside(v)}" for k, v in value.items()) + "}"
    if hasattr(value, "_asdict"):
        return inside(value._asdict())
    if isinstance(value, frozenset | set):
        return "(" + ",".join(sorted(map(inside, value))) + ")"
    if isinstance(value, tuple | list):
        return "(" + ",".join(map(inside, value)) + ")"
    if hasattr(value, "__dataclass_fields__"):
        fields = {key: getattr(value, key) for key in value.__dataclass_fields__}
        return type(value).__name__ + inside(fields)
    if isinstance(value, partial):
        return inside((value.func, value.args, value.keywords))
    name = type(value).__name__
    if how.exact and isinstance(value, np.ndarray | jax.Array):
        return name + _digest(value)
    if not how.exact:
        return name
    return f"{name}@{id(value) if callable(value) else _number(value)}"


def _number(value: Any) -> int:
    """Equal for what is equal, as JAX's own caches see it."""
    try:
        return _numbered(value)
    except TypeError:  # it cannot be hashed
        return id(value)


@lru_cache(maxsize=4096)
def _numbered(value: Any) -> int:
    return next(_NUMBERS)


_NUMBERS = itertools.count()


def _digest(value: Any) -> str:
    # Keys have no numbers to read, nor has the memory that a part of a kernel works in.
    if _compat.is_tracer(value) or jnp.issubdtype(value.dtype, jax.dtypes.extended):
        return f"@{id(value)}"
    return hashlib.sha256(np.asarray(value).tobytes()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class _ById:
    """An equation, as the key of a cache."""

    eqn: JaxprEqn

    def __hash__(self) -> int:
        return id(self.eqn)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ById) and other.eqn is self.eqn


@lru_cache(maxsize=2**14)
def _plain_params(key: _ById, how: _How) -> str:
    params = key.eqn.params
    runs = [_compat.how_it_runs(key.eqn)] if how.exact else []
    listed = (f"{k}={_param(params[k], how)}" for k in _counting(params, how))
    return ";".join([*runs, *listed])


def _counting(params: dict[str, Any], how: _How) -> list[str]:
    ignored = IGNORED - _WHERE if how.exact else IGNORED
    return [key for key in sorted(params) if key not in ignored]


def _cotangent(out: Any) -> Any:
    if jnp.issubdtype(out.dtype, jnp.inexact):
        return jnp.ones_like(out)
    return zero_cotangent(jax.typeof(out))


@lru_cache(maxsize=4096)
def _derivative(key: _ById) -> str:
    """What the derivative of a function with its own computes.

    If it cannot be traced here, it is like no other.
    """
    eqn = key.eqn
    avals: list[Any] = [v.aval for v in eqn.invars]
    on = list(map(is_differentiable, avals))
    scope = _compat.Scope().within(eqn)

    def f(args: Any, some: Any) -> Any:
        given = iter(some)
        values = [next(given) if m else a for a, m in zip(args, on, strict=True)]
        outs = _compat.bind(eqn, values, scope)
        return list(filter(is_differentiable, outs))

    def pushed(args: Any, tangents: Any) -> Any:
        return jax.jvp(lambda *some: f(args, some), pick(args, on), tangents)[1]

    def pulled(args: Any) -> Any:
        outs, pull = jax.vjp(lambda *some: f(args, some), *pick(args, on))
        return pull(list(map(_cotangent, outs)))

    try:
        if eqn.primitive.name.startswith("custom_jvp"):  # its author wrote that one
            tangents = [aval.to_tangent_aval() for aval in pick(avals, on)]
            closed = jax.make_jaxpr(pushed)(avals, tangents)
        else:
            closed = jax.make_jaxpr(pulled)(avals)
    except Exception:  # whatever a user's function raises
        return f"unknown@{id(eqn)}"
    return "{" + describe(flatten(closed), how=_INSIDE_DERIVATIVES) + "}"


def block_name(name: str) -> str:
    """What the user called a block, from the name of its call."""
    return name.removeprefix(BLOCK_PREFIX).partition("#")[0]
