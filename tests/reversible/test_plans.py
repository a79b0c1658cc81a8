"""Reversible networks in plain sight: what is traced, reported and searched."""

import jax
import jax.numpy as jnp

import revremat as rr
from revremat import INVERT, SAVE, reversible
from revremat._cli import main

DEPTH, WIDTH, TOKENS = 8, 8, 64


def dense(w, x):
    return jnp.tanh(x @ w)


COUPLING = reversible.additive(dense, dense)
WEIGHTS = jax.ShapeDtypeStruct((DEPTH, WIDTH, WIDTH), jnp.float32)
STREAM = jax.ShapeDtypeStruct((TOKENS, WIDTH), jnp.float32)
SPECS = ({"f": WEIGHTS, "g": WEIGHTS}, (STREAM, STREAM))
# Of a layer: what each map reads, and its value, of which tanh's derivative is made.
PLAIN_BYTES = DEPTH * 4 * STREAM.size * 4


def squares(streams):
    return sum((s**2).sum() for s in streams)


def stacked(actions):
    def loss(params, x):
        run = COUPLING.forward
        y = rr.stack(run, params, x, actions=actions, inverse=COUPLING.inverse)
        return squares(y)

    return loss


def chained(params, x):
    own = [jax.tree.map(lambda w, k=k: w[k], params) for k in range(DEPTH)]
    return squares(reversible.chain([COUPLING] * DEPTH, own, x))


def test_a_stack_that_is_inverted_shows_what_it_would_have_kept():
    (choice,) = rr.trace(stacked(INVERT), *SPECS).choices
    assert (choice.unit.name, choice.actions) == ("stack", (INVERT,) * DEPTH)
    assert (choice.kept_bytes, choice.plain_bytes) == (0, PLAIN_BYTES)


def test_a_stack_under_mixed_actions_shows_each():
    actions = (SAVE,) * 2 + (INVERT,) * (DEPTH - 2)
    (choice,) = rr.trace(stacked(actions), *SPECS).choices
    assert choice.actions == actions
    assert choice.kept_bytes == PLAIN_BYTES * 2 // DEPTH


def test_a_stack_without_actions_is_still_to_be_decided():
    graph = rr.trace(stacked(None), *SPECS)
    assert graph.choices == ()
    assert graph["stack"].invertible
    assert DEPTH * graph["stack"].plain_bytes == PLAIN_BYTES


def test_what_plain_autodiff_keeps_is_what_jax_keeps():
    run = stacked(SAVE)
    pullback = jax.eval_shape(lambda p, x: jax.vjp(lambda p: run(p, x), p)[1], *SPECS)
    kept = [a for a in jax.tree.leaves(pullback) if a.shape == (DEPTH, TOKENS, WIDTH)]
    assert sum(a.size * 4 for a in kept) == PLAIN_BYTES


def test_a_chain_of_couplings_shows_what_it_would_have_kept():
    (choice,) = rr.trace(chained, *SPECS).choices
    assert (choice.unit.name, choice.unit.num_layers) == ("chain", DEPTH)
    assert set(choice.actions) == {INVERT}
    assert (choice.kept_bytes, choice.plain_bytes) == (0, PLAIN_BYTES)


def test_a_chain_that_grows_shows_every_kind_of_coupling():
    pooled = lambda w, x: jnp.tanh(x[::2] @ w)
    raised = lambda w, x: jnp.repeat(jnp.tanh(x @ w), 2, axis=0)
    full = reversible.silo({(0, 1): pooled}, {(1, 0): raised})
    grows = reversible.silo({(0, 1): pooled}, {(1, 0): raised}, num_inputs=1)
    one = {"down_0_1": jnp.eye(WIDTH), "up_1_0": jnp.eye(WIDTH)}

    def loss(params, x):
        return squares(reversible.chain([grows, full, full], params, (x,)))

    found = rr.trace(loss, [one] * 3, STREAM).choices
    layers = {c.unit.name: c.unit.num_layers for c in found}
    assert layers == {"chain/coupling": 1, "chain/coupling_1": 2}
    # A full silo: the finer stream as pooled, half of a stream as pooled's value, what
    # the coarser stream became, half, and the value made of it, half.
    assert found[1].plain_bytes == 2 * (4 * STREAM.size // 2) * 4


def test_choices_survive_json():
    graph = rr.trace(stacked((SAVE,) * 2 + (INVERT,) * (DEPTH - 2)), *SPECS)
    assert rr.Graph.from_json(graph.to_json()) == graph
    assert "6 x INVERT" in str(graph)


def test_a_search_mixes_inverted_layers_with_stored_ones():
    """Wide layers, whose maps cost more time than their values' way to memory."""
    weights = jax.ShapeDtypeStruct((DEPTH, 4096, 4096), jnp.float32)
    streams = (jax.ShapeDtypeStruct((4096, 4096), jnp.float32),) * 2
    specs, loss = ({"f": weights, "g": weights}, streams), stacked(None)
    graph = rr.trace(loss, *specs)
    least, most = (
        rr.measure(
            jax.grad(rr.apply(loss, graph.plan({"stack": action}))),
            *specs,
            target="h100:1",
        ).memory.total_bytes
        for action in (INVERT, SAVE)
    )
    plan = rr.search(loss, *specs, budget=(least + most) // 2, target="h100:1")
    assert plan.fits
    assert {"invert", "save"} <= {action.kind for action in plan.actions["stack"]}


PROGRAM = """
import jax, jax.numpy as jnp, revremat as rr
from revremat import reversible

def problem(target):
    one = lambda w, x: jnp.tanh(x @ w)
    c = reversible.additive(one, one)
    w = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
    x = jax.ShapeDtypeStruct((64, 8), jnp.float32)

    def loss(p, x):
        y = rr.stack(c.forward, p, (x, x), actions=rr.INVERT, inverse=c.inverse)
        return y[0].sum() + y[1].sum()

    return rr.Problem(loss, ({"f": w, "g": w}, x))
"""


def test_the_report_shows_it(tmp_path, capsys):
    (tmp_path / "program.py").write_text(PROGRAM)
    assert main(["report", f"{tmp_path / 'program.py'}:problem"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    wanted = "stack: 4 x INVERT keeps 0 B of its layers' activations"
    assert f"{wanted} where plain autodiff would have kept 32.0 KiB" in said
