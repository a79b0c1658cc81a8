"""Blocks under each table of rules: gradients of one device, and no more collectives.

Counted against the closed form: an all-to-all each way for each move of rows to
columns, or of tokens to experts; ring attention sends keys and values on.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat import layers, sharding

B, L, D, H = 8, 16, 16, 8
EXPERTS, CAPACITY = 8, 4


RATE = 0.25


def normed(stats, x):
    """Batch norm: what it gives, and its new statistics."""
    mean, var = x.mean((0, 1)), x.var((0, 1))
    moved = {"mean": 0.9 * stats["mean"] + 0.1 * mean, "var": stats["var"] + var}
    return (x - mean) * jax.lax.rsqrt(var + 1e-3), moved


def experts(layout, w, stats, x):
    """Each token goes to one expert; who finds no room there is left out."""
    x, stats = normed(stats, layout(x, "batch", "length", "embed"))
    chosen = jax.nn.one_hot(jnp.argmax(x @ w["route"], -1), EXPERTS, dtype=x.dtype)
    place = jnp.cumsum(chosen, 1) * chosen - 1
    sent = jax.nn.one_hot(place.astype(int), CAPACITY, dtype=x.dtype)  # [B, L, E, C]
    given = jnp.einsum("blec,bld->becd", sent, x)
    given = layout(given, "batch", "all_experts", None, "embed")
    given = layout(given, "all_batch", "expert", None, "embed")
    hidden = jnp.tanh(jnp.einsum("becd,edf->becf", given, w["up"]))
    hidden = layers.dropout(hidden, jax.random.key(1), RATE)
    made = jnp.einsum("becf,efd->becd", hidden, w["down"])
    made = layout(made, "all_batch", "expert", None, "embed")
    made = layout(made, "batch", "all_experts", None, "embed")
    return x + jnp.einsum("blec,becd->bld", sent, made), stats


EXPERT_NAMES = {
    "scale": (("embed",), (D,)),
    "route": (("embed", None), (D, EXPERTS)),
    "up": (("expert", "embed", None), (EXPERTS, D, 2 * D)),
    "down": (("expert", None, "embed"), (EXPERTS, 2 * D, D)),
}


def attended(x, w, number):
    """Self-attention over the second axis from the right, with two heads."""
    q, k, v = jnp.split(x @ w, 3, -1)
    heads = lambda a: a.reshape(-1, a.shape[-2], 2, a.shape[-1] // 2)
    key = jax.random.key(number)
    return layers.attention(*map(heads, (q, k, v)), key=key, rate=RATE).reshape(q.shape)


def rows_and_columns(layout, w, stats, x):
    """Attention along rows, then along columns, as in an Evoformer."""
    by_row = lambda y: layout(y, "rows", "all_columns", "embed")
    by_column = lambda y: layout(y, "all_rows", "columns", "embed")
    x, stats = normed(stats, by_row(x))
    x = by_row(x + attended(x, w["rows"], 1))
    x = by_column(x).swapaxes(0, 1)
    x = x + attended(x, w["columns"], 2)
    return by_row(by_column(x.swapaxes(0, 1))), stats


AXIAL_NAMES = {
    "scale": (("embed",), (D,)),
    "rows": (("embed", None), (D, 3 * D)),
    "columns": (("embed", None), (D, 3 * D)),
}
EXPERT_RULES = sharding.megatron(
    "model", data="data", expert="data", more={"all_experts": (), "all_batch": ()}
)
BLOCKS = {
    "experts": (experts, EXPERT_NAMES, EXPERT_RULES, (B, L, D)),
    "axial": (
        rows_and_columns,
        AXIAL_NAMES,
        sharding.axial("data", data=()),
        (B, L, D),
    ),
}


def problem(case, mesh, dtype=jnp.float64):
    block, names, rules, shape = BLOCKS[case]
    layout = sharding.Layout(mesh, rules)

    def loss(w, stats, x):
        y, stats = block(layout, w, stats, x * w["scale"])
        return (jnp.sin(y) ** 2).mean(), stats

    def like(names, shape):
        spec = rules.spec(names, shape, dict(mesh.shape), is_weight=True)
        where = jax.NamedSharding(mesh, spec)
        return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

    first = "batch" if case == "experts" else "rows"
    w = {name: like(*of) for name, of in names.items()}
    x = like((first, None, None), shape)
    stats = dict.fromkeys(("mean", "var"), like((None,), (D,)))
    return loss, (w, stats, x), layout


@pytest.mark.every_commit("experts-float64-1e-10", "axial-float64-1e-10")
@pytest.mark.parametrize(("dtype", "error"), [("float64", 1e-10), ("float32", 1e-6)])
@pytest.mark.parametrize("case", BLOCKS)
def test_gradients_and_statistics_are_those_of_one_device(case, dtype, error):
    with jax.enable_x64(dtype == "float64"):
        found = []
        for data in (1, 8):
            random = np.random.default_rng(0)
            devices = jax.devices()[:data]
            mesh = sharding.make_mesh({"data": data, "model": 1}, devices)
            loss, specs, _ = problem(case, mesh, jnp.dtype(dtype))
            args = jax.tree.map(
                lambda s, r=random: jax.device_put(
                    r.normal(size=s.shape).astype(s.dtype) / 4, s.sharding
                ),
                specs,
            )
            grad = jax.grad(loss, (0, 2), has_aux=True)
            found.append(jax.jit(grad)(*args))
    for one, other in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=error)


@pytest.mark.parametrize("case", BLOCKS)
def test_moves_are_two_all_to_alls_each_way(case):
    target = rr.target("h100:8")
    mesh = target.mesh({"data": 8, "model": 1})
    loss, specs, layout = problem(case, mesh, jnp.float32)
    found = rr.measure(rr.Problem(loss, specs, layout=layout), target=target)
    times = {}
    for one in found.collectives:
        if one.kind != "all-reduce" or one.bytes > 10_000:  # gradients of weights
            times[one.kind] = times.get(one.kind, 0) + one.times
    assert times == {"all-to-all": 4}
    assert not [note for note in found.notes if note.startswith("unexpected")]
