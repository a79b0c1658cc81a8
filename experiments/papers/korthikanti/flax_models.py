"""The paper's layer as a Linen and as an NNX module, with logical axes alone.

No mesh and no layout is in the models: their dimensions have names, and
`revremat.sharding.under` lays them out. What their layers keep is left to a plan.

Shapes: B batch, L length, D width, H heads, K width of a head, F hidden width.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx
from flax.linen.spmd import with_logical_constraint
from jax.sharding import NamedSharding

import revremat as rr
from experiments.papers.korthikanti.model import (
    LENGTH,
    STREAM,
    Gradients,
    Scheme,
    weight_shapes,
)
from experiments.papers.korthikanti.published import Size
from revremat import layers, sharding

RATE = 0.1
SCHEME = "tp+sp+selective"
"""How rows of these models are spread, and what they keep."""
WHOLE = "batch", "length", "embed"
HEADS = "batch", "length", "heads", "kv"
HIDDEN = "batch", "length", "mlp"


def layer(w: Mapping[str, Any], x_BLD: Any, key: Any) -> Any:
    """Layer norm, attention, dropout; layer norm, GELU MLP, dropout."""
    pin, name = with_logical_constraint, rr.name
    of_pairs, after_attention, after_mlp = jax.random.split(key, 3)
    x_BLD = name(pin(x_BLD, STREAM), "x1")
    y_BLD = layers.layer_norm(x_BLD, w["scale1"], w["bias1"])
    y_BLD = pin(name(pin(y_BLD, STREAM), "norm1"), WHOLE)
    qkv = jnp.einsum("bld,dxhk->blxhk", y_BLD, w["qkv"])
    q, k, v = (name(pin(qkv[:, :, i], HEADS), "qkv"[i]) for i in range(3))
    ctx = layers.attention(q, k, v, causal=True, key=of_pairs, rate=RATE)
    ctx = name(pin(ctx, HEADS), "ctx")
    out_BLD = pin(jnp.einsum("blhk,hkd->bld", ctx, w["out"]), STREAM)
    dropped = layers.dropout(out_BLD, after_attention, RATE, name="mask1")
    x_BLD = name(pin(x_BLD + dropped, STREAM), "x2")
    y_BLD = layers.layer_norm(x_BLD, w["scale2"], w["bias2"])
    y_BLD = pin(name(pin(y_BLD, STREAM), "norm2"), WHOLE)
    up_BLF = name(pin(y_BLD @ w["up"], HIDDEN), "up")
    act_BLF = name(pin(layers.gelu(up_BLF), HIDDEN), "act")
    out_BLD = pin(act_BLF @ w["down"], STREAM)
    dropped = layers.dropout(out_BLD, after_mlp, RATE, name="mask2")
    return pin(x_BLD + dropped, STREAM)


class LinenLayer(nn.Module):
    """One layer, as `nn.scan` takes it.

    Attributes:
      size: Of the model.
      dtype: Of its weights.
    """

    size: Size
    dtype: Any

    @nn.compact
    def __call__(self, x_BLD: Any, _: Any = None) -> tuple[Any, None]:
        """The next layer's input."""
        normal = nn.initializers.normal(0.02)
        w = {
            name: self.param(
                name, nn.with_logical_partitioning(normal, names), shape, self.dtype
            )
            for name, (shape, names) in weight_shapes(self.size).items()
        }
        return layer(w, x_BLD, self.make_rng("dropout")), None


class NnxLayer(nnx.Module):
    """One layer.

    Args:
      size: Of the model.
      dtype: Of its weights.
      rngs: For its weights.
    """

    def __init__(self, size: Size, dtype: Any, *, rngs: nnx.Rngs):
        normal = nnx.initializers.normal(0.02)
        self.w = nnx.Dict(
            {
                name: nnx.Param(normal(rngs.params(), shape, dtype), out_sharding=names)
                for name, (shape, names) in weight_shapes(size).items()
            }
        )

    def __call__(self, x_BLD: Any, key: Any) -> Any:
        """The next layer's input."""
        return layer({name: w[...] for name, w in self.w.items()}, x_BLD, key)


def linen(size: Size, num_layers: int, dtype: Any) -> tuple[Any, Any]:
    """How a Linen stack is made, and how it is run."""
    stack = nn.scan(
        LinenLayer,
        variable_axes={"params": 0},
        split_rngs={"params": True, "dropout": True},
        length=num_layers,
        metadata_params={nn.PARTITION_NAME: "layers"},
    )(size, dtype)

    def init(x_BLD):
        keys = {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        return stack.init(keys, x_BLD)

    def run(params, x_BLD, key):
        return stack.apply(params, x_BLD, rngs={"dropout": key})[0]

    return init, run


def nnx_stack(size: Size, num_layers: int, dtype: Any) -> tuple[Any, Any]:
    """How an NNX stack is made, and how it is run."""

    @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: "layers"})
    def make(key):
        return NnxLayer(size, dtype, rngs=nnx.Rngs(key))

    def init(x_BLD):
        del x_BLD
        return nnx.state(make(jax.random.split(jax.random.key(0), num_layers)))

    def run(params, x_BLD, key):
        with nnx.use_eager_sharding(False):
            graph = nnx.graphdef(
                nnx.eval_shape(lambda: NnxLayer(size, dtype, rngs=nnx.Rngs(0)))
            )

        def one(x_BLD, given):
            weights, key = given
            return nnx.merge(graph, weights, copy=True)(x_BLD, key), None

        keys = jax.random.split(key, num_layers)
        return jax.lax.scan(one, x_BLD, (params, keys))[0]

    return init, run


MODELS: Mapping[str, Callable[..., tuple[Any, Any]]] = {
    "linen": linen,
    "nnx": nnx_stack,
}


def problem(
    model: str,
    size: Size,
    scheme: Scheme,
    num_layers: int,
    mesh: Any,
    *,
    length: int = LENGTH,
    dtype: Any = jnp.bfloat16,
) -> rr.Problem:
    """The gradient of a stack of layers, without a plan.

    Args:
      model: A name in `MODELS`.
      size: Of it.
      scheme: How it is spread.
      num_layers: Of the stack.
      mesh: With the axes `data` and `model`.
      length: Of a sequence.
      dtype: Of weights and activations.
    """
    init, run = MODELS[model](size, num_layers, dtype)
    rules, shape = scheme.rules, (size.micro_batch, length, size.width)
    where = rules.spec(STREAM, shape, dict(mesh.shape))
    x = jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, where))
    params = sharding.abstract_state(init, [sharding.Logical(rules)], mesh, x)
    whole = NamedSharding(mesh, jax.P())
    key_data = jax.ShapeDtypeStruct((2,), jnp.uint32, sharding=whole)

    @sharding.under(mesh, rules)
    def loss(params, x_BLD, key_data):
        y_BLD = run(params, x_BLD, jax.random.wrap_key_data(key_data))
        wide = jnp.promote_types(y_BLD.dtype, jnp.float32)
        return jnp.sum(y_BLD.astype(wide) ** 2)

    specs = params, x, key_data
    make = lambda loss: (Gradients(loss, (params, x)), specs)
    layout = sharding.Layout(mesh, rules)
    return rr.Problem(loss, specs, make, name=model, layout=layout)


def step(
    model: str, size: Size, scheme: Scheme, num_layers: int, mesh: Any, **how: Any
) -> rr.Step:
    """The same with a plan, by which layers keep what a scheme says.

    Args:
      model: A name in `MODELS`.
      size: Of it.
      scheme: How it is spread, and what it keeps.
      num_layers: Of the stack.
      mesh: With the axes `data` and `model`.
      **how: As for `problem`.
    """
    without = problem(model, size, scheme, num_layers, mesh, **how)
    graph = rr.trace(without)
    (unit,) = (u.name for u in graph.units if not u.enclosing)
    plan = graph.plan({unit: rr.RECOMPUTE(save=scheme.saved)})
    function, specs = without.make_step(rr.apply(without.loss, plan))
    return rr.Step(function, specs, name=model)
