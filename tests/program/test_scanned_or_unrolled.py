"""Layers in a Python loop take what the same layers in a scan take."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import RECOMPUTE, SAVE

BATCH, LENGTH, WIDTH, HEADS, LAYERS = 64, 256, 128, 4, 6


def layer(x, w):
    """Causal attention and an MLP in bfloat16, weights in float32."""
    w = jax.tree.map(lambda a: a.astype(jnp.bfloat16), w)
    split = lambda a: a.reshape(BATCH, LENGTH, HEADS, -1)
    q, k, v = (split(x @ w[name]) for name in "qkv")
    scores = jnp.einsum("bthd,bshd->bhts", q, k).astype(jnp.float32)
    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
    scores = jax.nn.softmax(jnp.where(mask, scores, -1e30))
    ctx = jnp.einsum("bhts,bshd->bthd", scores.astype(x.dtype), v)
    x = x + rr.name(ctx.reshape(x.shape), "ctx") @ w["out"]
    return x + jax.nn.gelu(rr.name(x @ w["up"], "up")) @ w["down"]


def square(x):
    return (x.astype(jnp.float32) ** 2).mean()


def scanned(w, x):
    return square(jax.lax.scan(lambda x, w: (layer(x, w), None), x, w)[0])


def in_a_loop(ws, x):
    for w in ws:
        x = layer(x, w)
    return square(x)


def arguments(make=jax.ShapeDtypeStruct):
    shapes = dict.fromkeys(("q", "k", "v", "out"), (WIDTH, WIDTH))
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    x = make((BATCH, LENGTH, WIDTH), jnp.bfloat16)
    stacked = {n: make((LAYERS, *s), jnp.float32) for n, s in shapes.items()}
    each = [{n: make(s, jnp.float32) for n, s in shapes.items()} for _ in range(LAYERS)]
    return (stacked, x), (each, x)


@pytest.fixture(scope="module")
def graphs():
    return [
        (loss, specs, rr.trace(loss, *specs))
        for loss, specs in zip((scanned, in_a_loop), arguments(), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "action",
    [
        pytest.param(SAVE, id="save"),
        pytest.param(RECOMPUTE, id="recompute"),
        pytest.param(RECOMPUTE(save=("ctx", "up")), id="save some"),
    ],
)
def test_under_a_plan_both_take_the_same(graphs, action):
    sizes, times = [], []
    for loss, specs, graph in graphs:
        (unit,) = graph.units
        unrolled = action(unroll=True) if unit.kind == "scan" else action
        step = jax.value_and_grad(rr.apply(loss, graph.plan({unit.name: unrolled})))
        found = rr.measure(step, *specs, target="h100:1")
        sizes.append(found.memory.total_bytes)
        times.append(found.time.step_us)
    assert sizes[1] == pytest.approx(sizes[0], rel=0.06)
    assert times[1] == pytest.approx(times[0], rel=0.05)


def test_masks_and_casts_of_weights_are_made_inside_of_the_layers(graphs):
    """What stands for a layer takes its weights as they are, and no mask."""
    _, _, graph = graphs[1]
    (unit,) = graph.units
    assert (unit.kind, unit.num_layers) == ("repeat", LAYERS)
    inputs = [v for v in unit.values if v.role in ("input", "held")]
    taken = {(v.shape, str(v.dtype)) for v in inputs}
    assert taken == {
        ((BATCH, LENGTH, WIDTH), "bfloat16"),
        ((WIDTH, WIDTH), "float32"),
        ((WIDTH, 4 * WIDTH), "float32"),
        ((4 * WIDTH, WIDTH), "float32"),
    }
