"""Kernels in a small program that has each of them once.

An unrolled program has the kernels of a layer again for each layer, and XLA tiles all
of them, for slices begin elsewhere. A program of one kernel each is tiled in a fraction
of that time. It is written from what kernels compute, and XLA fuses it anew: whether
the same kernels come of that has to be looked up in its dump.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.layout import Format, Layout, with_layout_constraint
from jax.sharding import SingleDeviceSharding

from revremat.xla.hlo._hlo import dtype_of

WAYS: tuple[tuple[str, ...], ...] = (("transpose-folding", "dot_decomposer"), ())
"""Passes of XLA to leave out, one way after the other. Those named here make transposed
operands a part of a product, or take them out: of a kernel that is made already they
make another one. Some kernels come only with them."""

_PRECISIONS = (lax.Precision.DEFAULT, lax.Precision.HIGH, lax.Precision.HIGHEST)

_ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
    "abs": lax.abs,
    "add": lax.add,
    "and": lax.bitwise_and,
    "ceil": lax.ceil,
    "clamp": lax.clamp,
    "cosine": lax.cos,
    "divide": lax.div,
    "erf": lax.erf,
    "exponential": lax.exp,
    "exponential-minus-one": lax.expm1,
    "floor": lax.floor,
    "is-finite": lax.is_finite,
    "log": lax.log,
    "log-plus-one": lax.log1p,
    "logistic": lax.logistic,
    "maximum": lax.max,
    "minimum": lax.min,
    "multiply": lax.mul,
    "negate": lax.neg,
    "not": lax.bitwise_not,
    "or": lax.bitwise_or,
    "power": lax.pow,
    "rsqrt": lax.rsqrt,
    "select": lax.select,
    "sign": lax.sign,
    "sine": lax.sin,
    "sqrt": lax.sqrt,
    "subtract": lax.sub,
    "tanh": lax.tanh,
    "xor": lax.bitwise_xor,
}
_COMPARISONS = {
    "EQ": lax.eq,
    "GE": lax.ge,
    "GT": lax.gt,
    "LE": lax.le,
    "LT": lax.lt,
    "NE": lax.ne,
}


def can_stand_alone(body: Any) -> bool:
    """Whether all that a kernel's computation does can be written here."""
    opcodes = {one.opcode for one in body.instructions}
    dtypes = {one.id: dtype_of(one.shape) for one in body.instructions}
    return opcodes <= {*_ELEMENTWISE, *_OTHERS, *_WITH_CONTEXT} and all(
        dtypes[one.id]
        and (one.opcode != "bitcast" or dtypes[one.operand_ids[0]] == dtypes[one.id])
        and (one.opcode != "dot" or not one.precision.algorithm)
        for one in body.instructions
    )


def traced_alone(bodies: Sequence[Any], device: Any) -> jax.stages.Traced:
    """A program that computes what kernels do, each from arrays of its own.

    Args:
      bodies: Their computations, of which `can_stand_alone` is true.
      device: Where.
    """

    def kernels(arrays: Sequence[Any]) -> list[Any]:
        return [_computed(b, given) for b, given in zip(bodies, arrays, strict=True)]

    where = SingleDeviceSharding(device)
    arrays = [_arguments(body, where) for body in bodies]
    formats = [Format(_layout(_root(body).shape), where) for body in bodies]
    with jax.enable_x64(True):
        return jax.jit(kernels, out_shardings=formats).trace(arrays)


def _arguments(body: Any, where: SingleDeviceSharding) -> list[jax.ShapeDtypeStruct]:
    found = [one for one in body.instructions if one.opcode == "parameter"]
    shapes = [one.shape for one in sorted(found, key=lambda one: one.parameter_number)]
    return [
        jax.ShapeDtypeStruct(
            tuple(one.dimensions), dtype_of(one), sharding=Format(_layout(one), where)
        )
        for one in shapes
    ]


def _root(body: Any) -> Any:
    return next(one for one in body.instructions if one.id == body.root_id)


def _computed(body: Any, arrays: Sequence[Any]) -> Any:
    known = {one.id: one for one in body.instructions}
    products = [one for one in body.instructions if one.opcode == "dot"]
    multiplied = {i for one in products for i in one.operand_ids}
    values: dict[int, Any] = {}
    for place, one in enumerate(body.instructions):
        operands = [values[i] for i in one.operand_ids]
        if one.opcode == "parameter":
            value = arrays[one.parameter_number]
        elif one.opcode == "constant":
            value = _constant(one.shape, place)
        elif one.opcode == "bitcast":
            value = _bitcast(operands[0], known[one.operand_ids[0]].shape, one.shape)
        elif (write := _ELEMENTWISE.get(one.opcode)) is not None:
            value = write(*operands)
        else:
            value = _OTHERS[one.opcode](one, operands)
        if one.id in multiplied:  # else XLA may lay them out another way
            value = with_layout_constraint(value, _layout(one.shape))
        values[one.id] = value
    return values[body.root_id]


_WITH_CONTEXT = {"parameter", "constant", "bitcast"}
"""Which depend on more than their operands."""


def _constant(shape: Any, place: int) -> Any:
    """Any value will do but 0 and 1, which XLA simplifies, and equal ones, which it
    makes one constant of."""
    dtype = jnp.dtype(dtype_of(shape))
    value = True if dtype == jnp.bool_ else 2 + place
    return jnp.full(tuple(shape.dimensions), value, dtype)


def _bitcast(value: Any, before: Any, after: Any) -> Any:
    """The same memory, read as another shape."""
    value = lax.transpose(value, _order(before))
    order = _order(after)
    value = lax.reshape(value, [after.dimensions[i] for i in order])
    return lax.transpose(value, [order.index(i) for i in range(len(order))])


def _order(shape: Any) -> tuple[int, ...]:
    """An array's dimensions as they lie in memory, the slowest first."""
    return tuple(reversed(shape.layout.minor_to_major))


def _layout(shape: Any) -> Layout:
    return Layout(_order(shape))


def _dot(one: Any, operands: Sequence[Any]) -> Any:
    (lhs, rhs), dims = operands, one.dot
    contracting = tuple(dims.lhs_contracting), tuple(dims.rhs_contracting)
    batch = tuple(dims.lhs_batch), tuple(dims.rhs_batch)
    return lax.dot_general(
        lhs,
        rhs,
        (contracting, batch),
        precision=tuple(_PRECISIONS[i] for i in one.precision.operands) or None,
        preferred_element_type=jnp.dtype(dtype_of(one.shape)),
    )


def _slice(one: Any, operands: Sequence[Any]) -> Any:
    return lax.slice(
        operands[0],
        [cut.start for cut in one.slices],
        [cut.limit for cut in one.slices],
        [cut.stride for cut in one.slices],
    )


_OTHERS: Mapping[str, Callable[[Any, Sequence[Any]], Any]] = {
    "broadcast": lambda one, operands: lax.broadcast_in_dim(
        operands[0], tuple(one.shape.dimensions), tuple(one.dimensions)
    ),
    "compare": lambda one, operands: _COMPARISONS[one.comparison_direction](*operands),
    "concatenate": lambda one, operands: lax.concatenate(operands, one.dimensions[0]),
    "convert": lambda one, operands: lax.convert_element_type(
        operands[0], jnp.dtype(dtype_of(one.shape))
    ),
    "dot": _dot,
    "reshape": lambda one, operands: lax.reshape(
        operands[0], tuple(one.shape.dimensions)
    ),
    "slice": _slice,
    "transpose": lambda one, operands: lax.transpose(
        operands[0], tuple(one.dimensions)
    ),
}
