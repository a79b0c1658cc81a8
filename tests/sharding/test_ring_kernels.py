"""Kernels of others in a ring: what each finds of a piece is joined, both ways."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import revremat as rr
from revremat import UserError, _compat, sharding
from tests.sharding.rings import assert_is_as_by_one_device, in_order


def scores_of(q, k, causal, scale):
    """Of one head, `[N, M]`; what is not seen is minus infinity."""
    scores = jax.lax.dot_general(q, k, (((1,), (1,)), ((), ()))) * scale
    rows, columns = (jax.lax.broadcasted_iota(int, scores.shape, i) for i in (0, 1))
    return jnp.where(rows >= columns, scores, -jnp.inf) if causal else scores


def attend_to_a_piece(q_ref, k_ref, v_ref, y_ref, log_sums_ref, *, causal, scale):
    scores = scores_of(q_ref[...], k_ref[...], causal, scale)
    most = scores.max(-1, keepdims=True)
    weights = jnp.exp(scores - most)
    total = weights.sum(-1, keepdims=True)
    y_ref[...] = (weights / total) @ v_ref[...]
    log_sums_ref[...] = (most + jnp.log(total))[:, 0]


def differentiate_a_piece(
    q_ref, k_ref, v_ref, y_ref, log_sums_ref, g_ref, dq_ref, dk_ref, dv_ref, **how
):
    scale, (q, k, v, y, g) = (
        how["scale"],
        (ref[...] for ref in (q_ref, k_ref, v_ref, y_ref, g_ref)),
    )
    weights = jnp.exp(scores_of(q, k, **how) - log_sums_ref[...][:, None])
    dscores = weights * (g @ v.T - (g * y).sum(-1, keepdims=True)) * scale
    dq_ref[...], dk_ref[...], dv_ref[...] = dscores @ k, dscores.T @ q, weights.T @ g


@dataclass(frozen=True)
class InPallas:
    """A kernel of one's own, a program for each example and head.

    Attributes:
      interpret: Whether it runs as JAX does, where there is no GPU.
    """

    interpret: bool = True

    def forward(self, q, k, v, *, causal, scale):
        batch, length, heads, _ = q.shape
        like = jax.typeof(q)
        shapes = like, like.update(shape=(batch, heads, length))
        return self._call(attend_to_a_piece, (q, k, v), shapes, causal, scale)

    def backward(self, q, k, v, y, log_sums, g, *, causal, scale):
        arrays = q, k, v, y, log_sums, g
        shapes = tuple(map(jax.typeof, (q, k, v)))
        return self._call(differentiate_a_piece, arrays, shapes, causal, scale)

    def _call(self, kernel, arrays, shapes, causal, scale):
        def of_a_head(x):
            if x.ndim == 3:  # log sums
                return pl.BlockSpec((None, None, x.shape[2]), lambda b, h: (b, h, 0))
            block = None, x.shape[1], None, x.shape[3]
            return pl.BlockSpec(block, lambda b, h: (b, 0, h, 0))

        return pl.pallas_call(
            functools.partial(kernel, causal=causal, scale=scale),
            grid=(arrays[0].shape[0], arrays[0].shape[2]),
            in_specs=[*map(of_a_head, arrays)],
            out_specs=[*map(of_a_head, shapes)],
            out_shape=shapes,
            interpret=self.interpret,
        )(*arrays)


@dataclass(frozen=True)
class Written:
    """The protocol by plain products, all at once."""

    def forward(self, q, k, v, *, causal, scale):
        scores = self._scores(q, k, causal, scale)
        y = jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), v)
        return y, jax.scipy.special.logsumexp(scores, axis=-1)

    def backward(self, q, k, v, y, log_sums, g, *, causal, scale):
        weights = jnp.exp(self._scores(q, k, causal, scale) - log_sums[..., None])
        shared = jnp.einsum("blhk,blhk->bhl", g, y)[..., None]
        dscores = jnp.einsum("blhk,bmhk->bhlm", g, v) - shared
        dscores = scale * weights * dscores
        return (
            jnp.einsum("bhlm,bmhk->blhk", dscores, k),
            jnp.einsum("bhlm,blhk->bmhk", dscores, q),
            jnp.einsum("bhlm,blhk->bmhk", weights, g),
        )

    def _scores(self, q, k, causal, scale):
        scores = jnp.einsum("blhk,bmhk->bhlm", q, k) * scale
        seen = jnp.tril(jnp.ones(scores.shape[2:], bool))
        return jnp.where(seen, scores, -jnp.inf) if causal else scores


def by_ring(kernel, causal, parts, *arrays):
    others = {1: 1, 4: 2, 8: 1}[parts]  # which have all of it
    sizes = {"data": 1, "context": parts, "model": others}
    mesh = sharding.make_mesh(sizes, jax.devices()[: parts * others])
    layout = sharding.Layout(mesh, sharding.context_parallel("context"))
    attend = functools.partial(sharding.ring_attention, layout, kernel=kernel)
    return in_order(attend, parts, causal, *arrays)


@pytest.mark.every_commit("Written-False-4", "InPallas-False-4")
@pytest.mark.parametrize("parts", [1, 4, 8])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make", [Written, InPallas])
def test_values_and_gradients_are_those_of_one_device(make, causal, parts):
    ring = functools.partial(by_ring, make(), causal, parts)
    assert_is_as_by_one_device(ring, causal)


def measured(kernel, parts, causal, length, dtype=jnp.bfloat16):
    target = rr.target(f"h100:{parts}")
    mesh = target.mesh({"data": 1, "context": parts})
    layout = sharding.Layout(mesh, sharding.context_parallel("context"))

    def loss(q, k, v):
        y = sharding.ring_attention(layout, q, k, v, causal=causal, kernel=kernel)
        return (y.astype(jnp.float32) ** 2).sum()

    where = jax.NamedSharding(mesh, jax.P(None, "context"))
    x = jax.ShapeDtypeStruct((1, length, 8, 128), dtype, sharding=where)
    gradient = jax.grad(loss, (0, 1, 2))
    calls = str(jax.make_jaxpr(gradient)(x, x, x)).count("dot_product_attention_bwd")
    return rr.measure(gradient, x, x, x, target=target), calls


@pytest.mark.every_commit("False")
@pytest.mark.parametrize("causal", [False, "zigzag"])
def test_cudnn_attends_in_a_ring(causal):
    """No scores in memory, and nothing but the ring's own sends."""
    plain, _ = measured(None, 4, causal, 8192)
    found, calls = measured(sharding.CudnnKernel(), 4, causal, 8192)
    kinds = {one.kind for one in found.collectives if one.bytes > 8}
    assert kinds == {"collective-permute"}
    assert calls >= 2
    assert found.memory.temp_bytes < plain.memory.temp_bytes
    assert found.time.step_us < plain.time.step_us


def test_cudnn_is_handed_the_result_and_the_log_sums_of_all_pieces():
    """Its backward call takes four arguments of ours, and these two; no other call."""
    like = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    x = like(1, 256, 2, 64)
    sums = jax.ShapeDtypeStruct((1, 2, 256), jnp.float32)
    _compat.trace_absent_kernels()
    kernel = functools.partial(sharding.CudnnKernel().backward, causal=True, scale=0.1)
    jaxpr = jax.make_jaxpr(kernel)(x, x, x, x, sums, x).jaxpr
    calls = [e for e in jaxpr.eqns if "dot_product_attention" in e.primitive.name]
    (call,) = calls
    assert "bwd" in call.primitive.name
    given = [jaxpr.invars.index(v) for v in call.invars if v in jaxpr.invars]
    assert sorted(given) == [0, 1, 2, 3, 4, 5]
    assert call.params["scale"] == 0.1
    assert "CAUSAL" in str(call.params["mask_type"])


@pytest.mark.parametrize(
    ("kernel", "dtype", "sentence"),
    [
        (jnp.sin, jnp.bfloat16, "has no forward and backward; write sharding.Cudnn"),
        (sharding.CudnnKernel(), jnp.float32, "cuDNN cannot attend to .*; write bf"),
    ],
)
def test_what_is_no_kernel_is_told(kernel, dtype, sentence):
    with pytest.raises(UserError, match=sentence):
        measured(kernel, 2, False, 256, dtype)
