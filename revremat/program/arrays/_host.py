"""Arrays in host memory: sent there, and fetched one layer at a time."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from revremat import _compat
from revremat.program.arrays._buffers import Each
from revremat.program.arrays._once import once


def to_host(x: Any) -> Any:
    return move(x, jax.memory.Space.Host)


def to_device(x: Any) -> Any:
    return move(x, jax.memory.Space.Device)


def move(x: Any, space: Any) -> Any:
    """The array in host memory or in the device's.

    What `jax.device_put` does, for programs with ordered effects too: JAX cannot lower
    those with a `device_put` to host memory.
    """
    return x if jax.typeof(x).memory_space is space else _move.bind(x, space=space)


def fetch(stacked: Any, index: Any) -> Any:
    """One layer's array, on its way to the device.

    Where the layers are mapped over, an index into them becomes a gather, and nothing
    gathers in host memory; this one stays a slice.
    """
    if isinstance(stacked, Each):
        return to_device(stacked.items[index])
    fetched = to_device(_at.bind(stacked, jnp.int32(index), axis=0))
    return once(fetched, _WHY_ONCE)


_WHY_ONCE = (
    "the gradient of a gradient cannot be collected in host memory, where OFFLOAD has "
    "the values of a loop: write OFFLOAD(unroll=True) or RECOMPUTE"
)
_KINDS = {jax.memory.Space.Host: "pinned_host", jax.memory.Space.Device: "device"}


def _moved(args, dims, *, space):
    return _move.bind(*args, space=space), dims[0]


def _move_back(cotangent, x, *, space):
    del space
    return [move(cotangent, x.aval.memory_space)]


_move = Primitive("move_to_memory")
_move.def_impl(lambda x, *, space: jax.device_put(x, space))
_move.def_abstract_eval(lambda x, *, space: x.update(memory_space=space))
ad.deflinear2(_move, _move_back)
batching.primitive_batchers[_move] = _moved
mlir.register_lowering(_move, lambda ctx, x, *, space: [x])
for _platform in ("tpu", "gpu"):
    mlir.register_lowering(
        _move,
        lambda ctx, x, *, space: _compat.lowered_to_memory(ctx, x, _KINDS[space]),
        platform=_platform,
    )


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
    # Not `_slice`: of tangents that are mapped over, as a Hessian's, it would gather.
    return out, _at.bind(tangent, primals[1], axis=axis)


_at = Primitive("layer_in_host_memory")
_at.def_impl(_slice)
_at.def_abstract_eval(_type)
ad.primitive_jvps[_at] = _tangent
batching.primitive_batchers[_at] = _mapped
mlir.register_lowering(_at, mlir.lower_fun(_slice, multiple_results=False))
