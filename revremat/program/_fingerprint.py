"""A program's identity: equal computations, equal fingerprints.

Values are numbered by first use, so neither what variables are called nor the order of
a dictionary's keys changes anything; calls are inlined before, so neither does
`jax.jit`. Names given with `rr.name` and `rr.block` do not count; shapes and dtypes do.
"""

import enum
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from revremat.program._ops import (
    BLOCK_PREFIX,
    Constant,
    Op,
    Program,
    as_closed,
    flatten,
    is_scalar,
)

# Equal in meaning, or private to a process, or decided by the caller.
IGNORED = {
    *("name", "ctx_mesh", "mesh", "sharding", "out_sharding", "in_shardings", "inline"),
    *("out_shardings", "donated_invars", "keep_unused", "debug_info", "prevent_cse"),
    *("policy", "in_layouts", "out_layouts", "compiler_options_kvs", "ft_in", "ft_out"),
}


def fingerprint(program: Program, marked: Sequence[bool] = (), more: str = "") -> str:
    """Sixteen hexadecimal digits that identify what a program computes.

    Args:
      program: The program, flat.
      marked: Inputs to tell from the others, such as those that are differentiated.
      more: Anything else that counts.
    """
    text = describe(program, marked) + more
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def describe(program: Program, marked: Sequence[bool] = ()) -> str:
    """The program as text, the same for equal computations."""
    marks = {v for v, on in zip(program.inputs, marked, strict=False) if on}
    numbers: dict[Any, int] = {}

    def atom(a: Any) -> str:
        if isinstance(a, Constant):
            if is_scalar(a):
                return f"{a.aval.dtype}:{np.asarray(a.value).tolist()!r}"
            return f"const:{_aval(a.aval)}"
        mark = "*" if a in marks else ""
        return f"%{numbers.setdefault(a, len(numbers))}{mark}:{_aval(a.aval)}"

    lines = []
    for op in program.ops:
        if op.kind == "name":
            numbers[op.outputs[0]] = numbers.setdefault(op.inputs[0], len(numbers))
            continue
        inputs = ",".join(map(atom, op.inputs))
        outputs = ",".join(map(atom, op.outputs))
        kind = "call" if op.kind in ("jit", "pjit", "closed_call") else op.kind
        lines.append(f"{outputs}={kind}[{_params(op.eqn.params)}]({inputs})")
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
    """What an operation does and on which shapes, whatever its values are."""
    inputs = ",".join(_aval(atom.aval) for atom in op.inputs)
    outputs = ",".join(_aval(out.aval) for out in op.outputs)
    return f"{outputs}={op.kind}[{_params(op.eqn.params)}]({inputs})"


def _aval(aval: Any) -> str:
    shape = ",".join(map(str, getattr(aval, "shape", ())))
    return f"{getattr(aval, 'dtype', type(aval).__name__)}[{shape}]"


def _params(params: dict[str, Any]) -> str:
    return ";".join(
        f"{key}={_param(params[key])}" for key in sorted(params) if key not in IGNORED
    )


def _param(value: Any) -> str:
    if hasattr(value, "eqns") or hasattr(value, "jaxpr"):
        return "{" + describe(flatten(as_closed(value))) + "}"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, str | int | float | bool | complex | None | np.generic):
        return repr(value.item() if isinstance(value, np.generic) else value)
    if isinstance(value, np.dtype):
        return str(value)
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{_param(v)}" for k, v in value.items()) + "}"
    if hasattr(value, "_asdict"):
        return _param(value._asdict())
    if isinstance(value, frozenset | set):
        return "(" + ",".join(sorted(map(_param, value))) + ")"
    if isinstance(value, tuple | list):
        return "(" + ",".join(map(_param, value)) + ")"
    if hasattr(value, "__dataclass_fields__"):
        fields = {key: getattr(value, key) for key in value.__dataclass_fields__}
        return type(value).__name__ + _param(fields)
    return type(value).__name__


def block_name(name: str) -> str:
    """What the user called a block, from the name of its call."""
    return name.removeprefix(BLOCK_PREFIX).partition("#")[0]
