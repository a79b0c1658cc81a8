"""Data parallelism: inverting takes the batch's sums over from the forward pass."""

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import revremat as rr
from revremat import xla
from revremat.reversible import RevNet, RevNetConfig, _chain
from revremat.xla.hlo._schema import HloProto

CONFIG = RevNetConfig(num_classes=3, channels=(4,), blocks=(2,))


def num_all_reduces(target, *, reversible):
    """In the compiled gradient step of a RevNet; loops count once."""
    mesh = target.mesh({"data": target.num_devices})
    model = nnx.eval_shape(
        lambda: RevNet(CONFIG, rngs=nnx.Rngs(0), reversible=reversible)
    )
    graph, params, state = nnx.split(model, nnx.Param, ...)

    def loss(params, state, x):
        model = nnx.merge(graph, params, state, copy=True)
        y = model(x)
        return (y * jnp.cos(y)).mean(), nnx.split(model, nnx.Param, ...)[2]

    def placed(tree, *axes):
        sharding = NamedSharding(mesh, P(*axes))
        put = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding)
        return jax.tree.map(put, tree)

    images = jax.ShapeDtypeStruct((16, 8, 8, 3), jnp.float32)
    specs = (placed(params), placed(state), placed(images, "data"))
    step = jax.grad(loss, has_aux=True)
    module = HloProto.FromString(xla.compile_step(step, specs, target).hlo).hlo_module
    return sum(
        instruction.opcode in ("all-reduce", "all-reduce-start")
        for computation in module.computations
        for instruction in computation.instructions
    )


@pytest.mark.every_commit("h100:8")
@pytest.mark.parametrize("spec", ["cpu:8", "h100:8"])
def test_inverting_adds_no_collective(spec, monkeypatch):
    target = rr.target(spec)
    plain = num_all_reduces(target, reversible=False)
    assert num_all_reduces(target, reversible=True) <= plain
    # The count itself: were the statistics computed again, there would be more.
    monkeypatch.setattr(_chain, "recall", lambda rest, aux: rest)
    assert num_all_reduces(target, reversible=True) > plain
