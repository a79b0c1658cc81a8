"""Arrays in host memory: sent there, and fetched one layer at a time."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from revremat.program._buffers import Each


def to_host(x: Any) -> Any:
    return jax.device_put(x, jax.memory.Space.Host)


def to_device(x: Any) -> Any:
    return jax.device_put(x, jax.memory.Space.Device)


def fetch(stacked: Any, index: Any) -> Any:
    """One layer's array, on its way to the device.

    Where the layers are mapped over, an index into them becomes a gather, and nothing
    gathers in host memory; this one stays a slice.
    """
    if isinstance(stacked, Each):
        return to_device(stacked.items[index])
    return to_device(_at.bind(stacked, jnp.int32(index), axis=0))


def _slice(stacked: Any, index: Any, *, axis: int) -> Any:
    return lax.dynamic_index_in_dim(stacked, index, axis, keepdims=False)


def _mapped(args, dims, *, axis):
    (stacked, index), (batch, of_index) = args, dims
    assert of_index is None, "layers are counted alike in all"
    inner = axis + (batch <= axis)
    return _at.bind(stacked, index, axis=inner), batch - (inner < batch)


def _type(stacked, index, *, axis):
    traced = jax.make_jaxpr(lambda s, i: _slice(s, i, axis=axis))(stacked, index)
    return traced.out_avals[0]


def _tangent(primals, tangents, *, axis):
    out, (tangent, _) = _at.bind(*primals, axis=axis), tangents
    if isinstance(tangent, ad.Zero):
        return out, ad.Zero(jax.typeof(out).to_tangent_aval())
    return out, _slice(tangent, primals[1], axis=axis)


_at = Primitive("layer_in_host_memory")
_at.def_impl(_slice)
_at.def_abstract_eval(_type)
ad.primitive_jvps[_at] = _tangent
batching.primitive_batchers[_at] = _mapped
mlir.register_lowering(_at, mlir.lower_fun(_slice, multiple_results=False))
