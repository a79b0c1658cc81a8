"""Parts of layers: values and gradients of plain JAX, and how little they keep."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import UserError, layers, sharding


def plain_layer_norm(x, scale, bias):
    normed = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return normed * scale + bias


def plain_rms_norm(x, scale):
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * scale


def plain_softmax(x):
    return jax.nn.softmax(0.5 * x)


def masked(softmax):
    where = jnp.tril(jnp.ones((4, 4), bool))
    return lambda x: softmax(x[:, :4], where=where)


def attention(q, k, v):
    return layers.attention(q, k, v, causal=True)


def plain_attention(q, k, v, scale=0.5, causal=True):
    scores = jnp.einsum("blhk,bmhk->bhlm", q, k) * scale
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[2:], bool)), scores, -jnp.inf)
    return jnp.einsum("bhlm,bmhk->blhk", jax.nn.softmax(scores), v)


def cross(q, k, v):
    return layers.attention(q, k[:, :3], v[:, :3], scale=0.3)


def plain_cross(q, k, v):
    return plain_attention(q, k[:, :3], v[:, :3], 0.3, causal=False)


ROWS, PAIRS = (4, 8), (2, 5, 3, 4)
CASES = {
    "layer_norm": (layers.layer_norm, plain_layer_norm, (ROWS, (8,), (8,))),
    "rms_norm": (layers.rms_norm, plain_rms_norm, (ROWS, (8,))),
    "gelu": (layers.gelu, jax.nn.gelu, (ROWS,)),
    "softmax": (functools.partial(layers.softmax, scale=0.5), plain_softmax, (ROWS,)),
    "masked": (masked(layers.softmax), masked(jax.nn.softmax), (ROWS,)),
    "attention": (attention, plain_attention, (PAIRS,) * 3),
    "cross": (cross, plain_cross, (PAIRS,) * 3),
}


def arrays(shapes, dtype):
    random = np.random.default_rng(0)
    return [jnp.asarray(random.normal(size=shape), dtype) for shape in shapes]


@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-12), ("float32", 2e-6)])
@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients_are_those_of_plain_autodiff(case, dtype, error):
    ours, plain, shapes = CASES[case]
    with jax.enable_x64(dtype == "float64"):
        args = arrays(shapes, dtype)
        weigh = lambda f: lambda *args: (f(*args) * jnp.cos(f(*args))).sum()
        found, expected = (
            jax.jit(jax.value_and_grad(weigh(f), range(len(args))))(*args)
            for f in (ours, plain)
        )
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=error, atol=error)


KEPT = {
    "layer_norm": ((layers.layer_norm), (ROWS, (8,), (8,)), ["4,8", "8", "8"]),
    "rms_norm": (layers.rms_norm, (ROWS, (8,)), ["4,8", "8"]),
    "gelu": (layers.gelu, (ROWS,), ["4,8"]),
    "softmax": (layers.softmax, (ROWS,), ["4,8"]),
}


@pytest.mark.parametrize("case", KEPT)
def test_derivatives_keep_no_more_than_they_say_in_16_bits(case):
    function, shapes, expected = KEPT[case]
    _, pullback = jax.vjp(function, *arrays(shapes, jnp.bfloat16))
    kept = [leaf for leaf in jax.tree.leaves(pullback) if leaf.ndim]
    assert [",".join(map(str, leaf.shape)) for leaf in kept] == expected
    assert {str(leaf.dtype) for leaf in kept} == {"bfloat16"}


def test_a_row_of_which_no_score_counts_is_zero():
    scores = jnp.ones((2, 3))
    where = jnp.array([[True, True, False], [False] * 3])
    y, pullback = jax.vjp(lambda x: layers.softmax(x, where=where), scores)
    np.testing.assert_allclose(y, [[0.5, 0.5, 0], [0, 0, 0]])
    assert not jnp.isnan(pullback(y)[0]).any()


def test_attention_names_what_it_keeps():
    def layer(w, x, key):
        q = (x @ w).reshape(1, 8, 2, 4)
        y = layers.attention(q, q, q, key=key, rate=0.5)
        return x + y.reshape(x.shape)

    w, x = jnp.ones((3, 8, 8)), jnp.ones((1, 8, 8))
    loss = lambda w, x, keys: rr.stack(layer, w, x, keys).sum()
    graph = rr.trace(loss, w, x, jax.random.split(jax.random.key(0), 3))
    named = {one.name: one.dtype for one in graph["stack"].residuals}
    assert named["probs"] == named["probs_dropped"] == "float32"
    assert named["probs_mask"] == "bool"


@pytest.mark.parametrize("rate", [-0.1, 1.0, 2])
def test_a_rate_is_a_share(rate):
    with pytest.raises(UserError, match=r"write 0 or more, below 1"):
        layers.dropout(jnp.ones(2), jax.random.key(0), rate)


def test_dropout_scales_what_it_leaves():
    x = jnp.ones(1000)
    y = layers.dropout(x, jax.random.key(0), 0.25)
    np.testing.assert_allclose(jnp.unique(y), [0, 4 / 3], rtol=1e-6)
    assert y.mean() == pytest.approx(1, abs=0.1)
    assert layers.dropout(x, None, 0.25) is x


def dropped(mesh, make_key):
    """Dropout of ones within `shard_map`, each shard by the key that it makes."""

    def part(x):
        return layers.dropout(x, make_key(jax.random.key(0)), 0.5)

    cut = jax.P(*mesh.axis_names)
    return jax.jit(jax.shard_map(part, mesh=mesh, in_specs=cut, out_specs=cut))


def test_shards_have_masks_of_their_own():
    mesh = sharding.make_mesh({"data": 2, "model": 4})
    rules = sharding.megatron(sequence=True)
    layout = sharding.Layout(mesh, rules)
    own = dropped(mesh, lambda key: layout.key(key, "batch", "norm_length"))
    found = np.asarray(own(jnp.ones((8, 32)))).reshape(2, 4, 4, 8)
    blocks = {found[i, :, j].tobytes() for i in range(2) for j in range(4)}
    assert len(blocks) == 8
    with pytest.raises(UserError, match=r"along \['data', 'model'\] have one key"):
        dropped(mesh, lambda key: key)(jnp.ones((8, 32)))


def test_on_an_explicit_mesh_a_mask_lies_where_its_values_do():
    types = (jax.sharding.AxisType.Explicit,)
    mesh = jax.make_mesh((8,), ("model",), axis_types=types)
    with jax.set_mesh(mesh):
        x = jax.device_put(jnp.ones((8, 4)), jax.P("model"))
        jaxpr = jax.make_jaxpr(lambda x: layers.dropout(x, jax.random.key(0), 0.5))(x)
    masks = [
        eqn.invars[0].aval
        for eqn in jaxpr.eqns
        if eqn.primitive.name in ("select_n", "jit") and eqn.invars[0].aval.ndim == 2
    ]
    assert {tuple(mask.sharding.spec) for mask in masks} == {("model", None)}
