"""Recompute that a plan asks for is there after compiling, and no more than that.

Matrix products are counted in the compiled programs: those in a loop's body once for
each turn, as the loop's known trip count says.
"""

import re

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import RECOMPUTE, SAVE

LAYERS, WIDTH, TOKENS = 6, 64, 256

PLANS = {
    "save": (SAVE,) * LAYERS,
    "recompute": (RECOMPUTE,) * LAYERS,
    "one name": (RECOMPUTE(save=["up"]),) * LAYERS,
    "two runs": (SAVE,) * 2 + (RECOMPUTE,) * 4,
    "alternating": (RECOMPUTE, SAVE) * 3,
    "irregular": (SAVE, RECOMPUTE, RECOMPUTE(save=["up"]), RECOMPUTE, SAVE, SAVE),
    "ahead": (RECOMPUTE(ahead=["up"]),) * LAYERS,
}


ON_GPU = ("alternating", "irregular", "ahead")


def layer(w, x):
    x = x + jnp.tanh(rr.name(x @ w[0], "up")) @ w[1]
    return x + jnp.sin(x @ w[2])


def scanned(w, x):
    return (rr.stack(layer, w, x) ** 2).mean()


def unrolled(w, x):
    for k in range(LAYERS):
        x = layer(jax.tree.map(lambda a, k=k: a[k], w), x)
    return (x**2).mean()


def blocks(w, x):
    for k in range(LAYERS):
        x = rr.block(layer, "layer")(jax.tree.map(lambda a, k=k: a[k], w), x)
    return (x**2).mean()


def specs():
    square = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    return (square,) * 3, jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.float32)


def count_products(text):
    """Matrix products that a compiled program runs, and how many are recompute."""
    bodies, name = {}, ""
    for line in text.splitlines():
        if found := re.match(r"(?:ENTRY )?%?([\w.\-]+) .*\{$", line):
            name = found[1]
        bodies.setdefault(name, []).append(line)
    entry = re.search(r"ENTRY %?([\w.\-]+)", text)[1]

    def count(name, seen):
        total = again = 0
        for line in bodies.get(name, ()):
            is_product = re.search(
                r" dot\(|custom_call_target=\"\S*(?:matmul|gemm)", line
            )
            if is_product:
                total += 1
                again += "rematted_computation" in line
            times = 1
            if trips := re.search(r'known_trip_count":\{"n":"(\d+)"', line):
                times = int(trips[1])
            called = re.findall(r"(?:body|calls|to_apply)=%?([\w.\-]+)", line)
            called += re.findall(
                r"%([\w.\-]+)",
                "".join(
                    re.findall(
                        r"(?:branch_computations|called_computations)=\{([^}]*)\}", line
                    )
                ),
            )
            for inner in called:
                if inner not in seen:
                    more = count(inner, seen | {inner})
                    total, again = total + times * more[0], again + times * more[1]
        return total, again

    return count(entry, {entry})


def compiled_text(f, platform):
    args = specs()
    if platform == "cpu":
        return jax.jit(f).trace(*args).lower().compile().as_text()
    target = rr.target("h100:1")
    mesh = target.mesh({"x": 1})
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    args = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=sharding), args
    )
    lowered = jax.jit(f).trace(*args).lower(lowering_platforms=("cuda",))
    # There is no card to try kernels on.
    return lowered.compile({"xla_gpu_autotune_level": 0}).as_text()


@pytest.mark.parametrize(
    ("loss", "platform"),
    [
        (scanned, "cpu"),
        (unrolled, "cpu"),
        (blocks, "cpu"),
        (scanned, "h100"),
        (unrolled, "h100"),
        pytest.param(blocks, "h100", marks=pytest.mark.slow),
    ],
)
def test_the_compiled_program_recomputes_what_the_plan_says(loss, platform):
    graph = rr.trace(loss, *specs())
    (unit,) = graph.units
    forward_and_backward = 3 * 3 * LAYERS
    found, expected = {}, {}
    for name in PLANS if platform == "cpu" else ON_GPU:
        actions = PLANS[name]
        plan = graph.plan({unit.name: actions})
        expected[name] = sum(
            unit.kept(action).rebuilt.count("dot_general") for action in actions
        )
        text = compiled_text(jax.grad(rr.apply(loss, plan), argnums=(0, 1)), platform)
        total, again = count_products(text)
        found[name] = again
        assert total == forward_and_backward + again, name
    assert found == expected
