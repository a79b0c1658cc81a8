"""What loops keep is computed where it is kept, with no kernel that only copies it."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from experiments.bench.moved_bytes import class_of
from revremat import xla
from revremat.program.engine._lone_reductions import lone_reductions
from revremat.program.ir._ops import flatten

LAYERS, ROWS, WIDTH = 4, 512, 256


def softmax(x):
    e = jnp.exp(x - jax.lax.stop_gradient(x.max(-1, keepdims=True)))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize(
    ("function", "saved", "alone"),
    [
        (lambda x: jnp.exp(x - x.max(-1, keepdims=True)), "exp", ["reduce_max"]),
        (lambda x: softmax(x) * 2, "div", ["reduce_max", "reduce_sum"]),
        (lambda x: jnp.exp(x), "exp", []),
        (lambda x: (x.max(-1) * 2) @ x, "mul", []),  # as few entries as the maximum
        (lambda x: (x - x.max()) @ x, "dot_general", []),  # which is its own kernel
    ],
)
def test_reductions_stay_alone_where_what_follows_elementwise_is_kept(
    function, saved, alone
):
    x = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
    ops = flatten(jax.make_jaxpr(function)(x)).ops
    kept = [out for op in ops for out in op.outputs if op.kind == saved]
    found = lone_reductions(ops, kept[:1])
    kinds = [op.kind for op in ops if found.intersection(op.outputs)]
    assert kinds == alone


def test_of_a_softmax_a_loop_only_copies_what_its_layers_are_given():
    target = rr.target("h100:1")

    def layer(w, x):
        return softmax(x @ w)

    def loss(w, x):
        return (jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)[0] ** 2).sum()

    w = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    x = jax.ShapeDtypeStruct((64 * ROWS, WIDTH), jnp.float32)
    problem = rr.Problem(loss, (w, x))
    save = {unit.name: rr.SAVE for unit in rr.trace(problem).units}
    step, specs = problem.make_step(rr.apply(loss, rr.trace(problem).plan(save)))
    module = xla.Module.from_bytes(xla.compile_step(step, specs, target).hlo)
    entries = x.shape[0] * x.shape[1]
    copies = [
        i.name
        for one in xla.instruction_times(module, target)
        if (i := one.instruction).opcode == "fusion"
        and class_of(i, module) == "residual writes"
        and xla.cost_of(i, module).bytes >= 2 * 4 * entries
    ]
    assert len(copies) == 1
