"""Recompute that a plan asks for is there after compiling, and no more than that.

Matrix products are counted in the compiled programs: those in a loop's body once for
each iteration, as the loop's known trip count says.
"""

import re

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import RECOMPUTE, SAVE
from revremat.xla import Module, compile_step

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


def count_products(module):
    """Matrix products that a compiled program runs, and how many are recompute."""

    def count(computation):
        total = again = 0
        for one in computation.instructions:
            if one.opcode == "dot" or re.search("matmul|gemm", one.custom_call_target):
                total += 1
                again += "rematted_computation" in one.metadata.op_name
            times = module.trip_count(one) if one.opcode == "while" else 1
            for called in module.called(one):
                more = count(called)
                total, again = total + times * more[0], again + times * more[1]
        return total, again

    return count(module.entry)


@pytest.mark.every_commit("scanned-h100:1")
@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (scanned, "cpu:1"),
        (unrolled, "cpu:1"),
        (blocks, "cpu:1"),
        (scanned, "h100:1"),
        (unrolled, "h100:1"),
        (blocks, "h100:1"),
    ],
)
def test_the_compiled_program_recomputes_what_the_plan_says(loss, target):
    graph = rr.trace(loss, *specs())
    (unit,) = graph.units
    forward_and_backward = 3 * 3 * LAYERS
    found, expected = {}, {}
    for name in PLANS if target == "cpu:1" else ON_GPU:
        actions = PLANS[name]
        plan = graph.plan({unit.name: actions})
        expected[name] = sum(
            unit.kept(action).recomputed.count("dot_general") for action in actions
        )
        step = jax.grad(rr.apply(loss, plan), argnums=(0, 1))
        module = Module.from_bytes(compile_step(step, specs(), rr.target(target)).hlo)
        total, again = count_products(module)
        found[name] = again
        assert total == forward_and_backward + again, name
    assert found == expected
