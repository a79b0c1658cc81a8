"""Multiply-accumulates of a program, counted equation by equation."""

from dataclasses import dataclass
from math import prod

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


@dataclass
class Counts:
    """Of one example.

    Attributes:
      macs: Of convolutions and matrix products.
      conv_outputs: For each convolution, how many numbers it gives.
      biased_outputs: Of those that a bias is added to, how many numbers they give.
      norms: How many times a variance's root is taken.
      upsampled: Numbers that bilinear up-sampling gives.
    """

    macs: int = 0
    conv_outputs: int = 0
    convs: int = 0
    biased_convs: int = 0
    biased_outputs: int = 0
    norms: int = 0
    upsampled: int = 0


def count(f, *specs) -> Counts:
    counts = Counts()
    _walk(jax.make_jaxpr(f)(*specs).jaxpr, counts)
    return counts


def _walk(jaxpr, counts):
    readers = {}
    for eqn in jaxpr.eqns:
        for var in eqn.invars:
            if not hasattr(var, "val"):
                readers.setdefault(var, []).append(eqn)
    for eqn in jaxpr.eqns:
        kind, (out, *_) = eqn.primitive.name, (*eqn.outvars, None)
        if eqn.params.get("name") == "bilinear_upsample":
            counts.upsampled += out.aval.size
            continue
        if kind == "conv_general_dilated":
            kernel = eqn.invars[1].aval
            layout = eqn.params["dimension_numbers"].rhs_spec
            counts.macs += out.aval.size * kernel.size // kernel.shape[layout[0]]
            counts.conv_outputs += out.aval.size
            counts.convs += 1
            if [reader.primitive.name for reader in readers[out]] == ["add"]:
                counts.biased_convs += 1
                counts.biased_outputs += out.aval.size
        elif kind == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            counts.macs += out.aval.size * prod(shape[k] for k in contracted)
        counts.norms += kind == "rsqrt"
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                if isinstance(inner, ClosedJaxpr):
                    _walk(inner.jaxpr, counts)
                elif isinstance(inner, Jaxpr):
                    _walk(inner, counts)
