"""Types that values in layers have, beyond a shape and a dtype: one stack of each kind.

A kind is a layer, `layer(w, x) -> x`, the weights of all layers, stacked along their
first axis, and what the first layer is given. Nothing here sets a mesh.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.linen import fp8_ops
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import io_callback, primal_tangent_dtype
from jax.sharding import AxisType, NamedSharding, auto_axes, explicit_axes, reshard
from jax.sharding import PartitionSpec as P

LAYERS, ROWS, WIDTH = 4, 8, 8

convert = jax.lax.convert_element_type
to_host = lambda a: jax.device_put(a, jax.memory.Space.Host)
to_device = lambda a: jax.device_put(a, jax.memory.Space.Device)


@dataclass(frozen=True)
class Kind:
    """One stack, as plain arrays and functions.

    Attributes:
      layer: `layer(w, x) -> x`.
      w: The weights, `[LAYERS, ...]`.
      x: What the first layer is given; its first leaf is `[ROWS, WIDTH]`.
      enter: Makes of `(w, x)` what cannot leave a jitted function.
      around: Put around the function of `(w, x)` that runs all layers.
      rtol: How far gradients may be off, relative to the largest one.
    """

    layer: Callable[[Any, Any], Any]
    w: Any
    x: Any
    enter: Callable[[Any, Any], Any] = lambda w, x: (w, x)
    around: Callable[..., Any] = lambda run: run
    rtol: float = 1e-10


def normal(seed, *shape):
    drawn = np.random.default_rng(seed).normal(size=shape) / 2
    return jnp.asarray(drawn, jnp.result_type(float))


def weights():
    return {"up": normal(0, LAYERS, WIDTH, WIDTH), "down": normal(1, LAYERS, WIDTH, 8)}


def plain(w, x):
    return x + jax.nn.softmax(jnp.tanh(x @ w["up"])) @ w["down"]


# Meshes -------------------------------------------------------------------------------


def mesh_of(*types):
    kinds = {"e": AxisType.Explicit, "a": AxisType.Auto}
    names = ("data", "model")[: len(types)]
    sizes = {1: (8,), 2: (2, 4)}[len(types)]
    return jax.make_mesh(sizes, names, axis_types=tuple(kinds[t] for t in types))


def placed(mesh, tree, spec):
    return jax.tree.map(lambda a: jax.device_put(a, NamedSharding(mesh, spec)), tree)


def sharded(mesh, layer=plain, **more):
    w, x = placed(mesh, weights(), P()), placed(mesh, normal(2, 8, 8), P("data"))
    return Kind(layer, w, x, **more)


def data_parallel():
    return sharded(jax.make_mesh((8,), ("data",)))


def fully_sharded():
    mesh = jax.make_mesh((8,), ("data",))
    whole = NamedSharding(mesh, P(None, None))

    def layer(w, x):
        return plain(jax.tree.map(lambda a: reshard(a, whole), w), x)

    w = placed(mesh, weights(), P(None, "data"))
    return Kind(layer, w, placed(mesh, normal(2, ROWS, WIDTH), P("data")))


def tensor_parallel():
    mesh = mesh_of("e", "e")
    rows = NamedSharding(mesh, P("data", None))

    def layer(w, x):
        hidden = jnp.tanh(x @ w["up"])
        return x + jnp.matmul(hidden, w["down"], out_sharding=rows)

    w = weights()
    w = {
        "up": placed(mesh, w["up"], P(None, None, "model")),
        "down": placed(mesh, w["down"], P(None, "model", None)),
    }
    return Kind(layer, w, placed(mesh, normal(2, ROWS, WIDTH), P("data", None)))


def one_axis_explicit():
    return sharded(mesh_of("e", "a"))


def auto_within_explicit():
    inner = auto_axes(plain, axes="data", out_sharding=P("data", None))
    return sharded(mesh_of("e"), lambda w, x: jnp.sin(inner(w, x)))


def auto_around():
    around = lambda run: auto_axes(run, axes="data", out_sharding=P("data", None))
    return sharded(mesh_of("e"), around=around)


def explicit_around():
    """One axis of an Auto mesh is Explicit for all layers."""
    mesh = mesh_of("a", "a")

    def around(run):
        specs = (jax.tree.map(lambda _: P(), weights()), P("data", None))
        inner = explicit_axes(run, axes=("data",), in_sharding=specs)

        def call(w, x):
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                return inner(w, x)

        return call

    return sharded(mesh, around=around)


def mapped_layers():
    """Layers mapped over devices: arrays know over which axes they vary."""
    mesh = mesh_of("e")

    def within(w, x):
        return plain(w, x) + jax.lax.psum(x.sum(), "data") / 64

    specs = ({"up": P(), "down": P()}, P("data"))
    layer = jax.shard_map(within, in_specs=specs, out_specs=P("data"), mesh=mesh)
    return sharded(mesh, layer)


def mapped_around():
    mesh = mesh_of("e")

    def within(w, x):
        return plain(w, x) + jax.lax.psum(x.sum(), "data") / 64

    def around(run):
        specs = ({"up": P(), "down": P()}, P("data"))
        return jax.shard_map(run, in_specs=specs, out_specs=P("data"), mesh=mesh)

    return sharded(mesh, within, around=around)


# Memory -------------------------------------------------------------------------------


def weights_on_the_host():
    def layer(w, x):
        return plain(jax.tree.map(to_device, w), x)

    return Kind(layer, jax.tree.map(to_host, weights()), normal(2, ROWS, WIDTH))


def offloads_by_itself():
    keep = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["h"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def one(x, w):
        return x + jnp.tanh(checkpoint_name(x, "h") @ w), None

    inner = jax.checkpoint(one, policy=keep, prevent_cse=False)

    def layer(w, x):
        return jax.lax.scan(inner, x, jnp.stack([w["up"], w["down"]]))[0]

    return Kind(layer, weights(), normal(2, ROWS, WIDTH))


def input_on_the_host():
    """A carry that stays on the host, of which no gradient is wanted."""

    def layer(w, x):
        x, far = x
        return plain(w, x) * to_device(far), far

    def around(run):
        far = lambda x: to_host(jax.lax.stop_gradient(jnp.cos(x)))
        return lambda w, x: run(w, (x, far(x)))[0]

    return Kind(layer, weights(), normal(2, ROWS, WIDTH), around=around)


# Dtypes -------------------------------------------------------------------------------


def keys():
    def layer(w, x):
        x, key = x
        key, own = jax.random.split(key)
        kept = jax.random.bernoulli(own, 0.8, x.shape)
        mask = jax.random.bernoulli(w["key"], 0.8, x.shape)
        return plain(w, jnp.where(kept & mask, x, 0)), key

    w = weights() | {"key": jax.random.split(jax.random.key(0), LAYERS)}
    return Kind(layer, w, (normal(2, ROWS, WIDTH), jax.random.key(1)))


meta = fp8_ops.fp32_max_grad


def scaled(w, x, own):
    x32 = x.astype(jnp.float32)
    args = (jnp.float32, jnp.float8_e4m3fn, x32, own["scale"], own["history"])
    return plain(w, fp8_ops.in_qdq(*args).astype(x.dtype))


def scales(lead=()):
    made = {"scale": jnp.ones((*lead, 1)), "history": jnp.zeros((*lead, 3))}
    return jax.tree.map(lambda a: a.astype(jnp.float32), made)


def as_scales(tree):
    return jax.tree.map(lambda a: convert(a, meta), tree)


def scales_by_maximum():
    """Scales whose cotangents are their next values, of which the largest counts."""

    def enter(w, x):
        return w | {"own": as_scales(w["own"])}, x

    w = weights() | {"own": scales((LAYERS,))}
    return Kind(lambda w, x: scaled(w, x, w["own"]), w, normal(2, 8, 8), enter)


def carried_scales():
    def layer(w, x):
        x, own = x
        return scaled(w, x, own), own

    x = (normal(2, ROWS, WIDTH), scales())
    return Kind(layer, weights(), x, lambda w, x: (w, (x[0], as_scales(x[1]))))


int8 = primal_tangent_dtype(jnp.int8, jnp.float32)


@jax.custom_vjp
def quantized(x):
    return convert(jnp.round(x * 16).astype(jnp.int8), int8)


@jax.custom_vjp
def dequantized(q):
    return convert(q, jnp.int8).astype(jnp.float32) / 16


quantized.defvjp(lambda x: (quantized(x), None), lambda _, ct: (ct,))
dequantized.defvjp(lambda q: (dequantized(q), None), lambda _, ct: (ct,))


def integers_with_a_gradient():
    """A carry of 8-bit integers whose cotangents are of 32-bit floats."""

    def layer(w, x):
        x, q = x
        other = dequantized(q).astype(x.dtype)
        x = plain(w, x + other)
        return x, quantized(jnp.sin(other + x).astype(jnp.float32))

    def enter(w, x):
        return w, (x, quantized(jnp.cos(x).astype(jnp.float32)))

    return Kind(layer, weights(), normal(2, ROWS, WIDTH), enter, rtol=1e-6)


def counts_and_flags():
    def layer(w, x):
        x, count, flag, small = x
        x = jnp.where(flag[:, None], plain(w, x), x) / (count + 1)
        return x, count + 1, ~flag, (small + 1).astype(small.dtype)

    x = normal(2, ROWS, WIDTH)
    return Kind(
        layer, weights(), (x, jnp.int32(1), x[:, 0] > 0, jnp.ones((2,), jnp.int4))
    )


def weakly_typed():
    def layer(w, x):
        x, scale = x
        return plain(w, x) * scale, scale * 0.9

    return Kind(layer, weights(), (normal(2, ROWS, WIDTH), jnp.asarray(0.5) * 1.0))


def narrow_floats():
    def layer(w, x):
        x, half, tiny = x
        half = jnp.tanh(half * 1.5 + x.astype(half.dtype))
        tiny = (tiny.astype(jnp.float32) * 0.5).astype(tiny.dtype)
        return plain(w, x + half.astype(x.dtype)), half, tiny

    x = normal(2, ROWS, WIDTH)
    x = (x, x.astype(jnp.bfloat16), x.astype(jnp.float8_e4m3fn))
    return Kind(layer, weights(), x, rtol=2e-2)


def complex_numbers():
    def layer(w, x):
        x, z = x
        z = jnp.exp(0.1j * z) * x
        return plain(w, x) + z.real * z.imag, z

    x = normal(2, ROWS, WIDTH)
    return Kind(layer, weights(), (x, x + 1j * x[::-1]))


def nothing_and_numbers():
    def layer(w, x):
        x, number, none = x
        x = plain(w, x) * number + none.sum()
        return x, jnp.sin(number + x.mean()), jnp.sin(none)

    x = normal(2, ROWS, WIDTH)
    return Kind(layer, weights(), (x, x[0, 0], x[:0]))


def stopped():
    """What has no gradient though its dtype would allow one, and float0."""

    def layer(w, x):
        x, y = x
        return plain(w, x) * jax.lax.stop_gradient(y), jnp.floor(jnp.exp(y))

    x = normal(2, ROWS, WIDTH)
    return Kind(layer, weights(), (x, x))


def prints_in_order():
    def layer(w, x):
        jax.debug.callback(lambda _: None, x.sum(), ordered=True)
        return plain(w, x)

    return Kind(layer, weights(), normal(2, ROWS, WIDTH))


def calls_in_order():
    def layer(w, x):
        count = io_callback(
            lambda: np.int32(3), jax.ShapeDtypeStruct((), jnp.int32), ordered=True
        )
        return plain(w, x) / count

    return Kind(layer, weights(), normal(2, ROWS, WIDTH))


KINDS = {
    make.__name__: make
    for make in (
        data_parallel,
        fully_sharded,
        tensor_parallel,
        one_axis_explicit,
        auto_within_explicit,
        auto_around,
        explicit_around,
        mapped_layers,
        mapped_around,
        weights_on_the_host,
        offloads_by_itself,
        input_on_the_host,
        keys,
        scales_by_maximum,
        carried_scales,
        integers_with_a_gradient,
        counts_and_flags,
        weakly_typed,
        narrow_floats,
        complex_numbers,
        nothing_and_numbers,
        stopped,
        prints_in_order,
        calls_in_order,
    )
}
