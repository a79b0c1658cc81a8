"""Multiply-accumulates of a program, counted equation by equation."""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import jax

NOT_COUNTED = ("bilinear_upsample",)


def num_macs(f: Callable[..., Any], *specs: Any) -> int:
    """Of the convolutions and matrix products of `f`; loops count every iteration.

    Up-sampling, which JAX writes as matrix products, counts as nothing, as everywhere.
    The transpose of a convolution with strides multiplies the zeros between its
    input's entries; those are not counted.
    """
    return _of(jax.make_jaxpr(f)(*specs).jaxpr)


def _of(jaxpr: Any) -> int:
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.params.get("name") in NOT_COUNTED:
            continue
        iterations = eqn.params["length"] if eqn.primitive.name == "scan" else 1
        total += _own(eqn) + iterations * sum(map(_of, _inner(eqn)))
    return total


def _own(eqn: Any) -> int:
    kind = eqn.primitive.name
    out: Any = eqn.outvars[0].aval if eqn.outvars else None
    if kind == "conv_general_dilated":
        kernel = eqn.invars[1].aval
        features = kernel.shape[eqn.params["dimension_numbers"].rhs_spec[0]]
        each = kernel.size // features
        return out.size * each // prod(eqn.params["lhs_dilation"])
    if kind == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        return out.size * prod(eqn.invars[0].aval.shape[k] for k in contracted)
    return 0


def _inner(eqn: Any) -> Iterator[Any]:
    for value in eqn.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield inner
