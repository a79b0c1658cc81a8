"""Reversible networks in plain sight: what is traced, reported and searched."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import INVERT, RECOMPUTE, SAVE, reversible
from revremat._cli import main
from revremat.policies import candidates
from tests.reversible.examples import assert_close, quick_jit

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
    (choice,) = rr.trace(stacked(INVERT), *SPECS).fixed_units
    assert (choice.unit.name, choice.actions) == ("stack", (INVERT,) * DEPTH)
    assert (choice.kept_bytes, choice.plain_bytes) == (0, PLAIN_BYTES)


def test_a_stack_under_mixed_actions_shows_each():
    actions = (SAVE,) * 2 + (INVERT,) * (DEPTH - 2)
    (choice,) = rr.trace(stacked(actions), *SPECS).fixed_units
    assert choice.actions == actions
    assert choice.kept_bytes == PLAIN_BYTES * 2 // DEPTH


def test_a_stack_without_actions_is_still_to_be_decided():
    graph = rr.trace(stacked(None), *SPECS)
    assert graph.fixed_units == ()
    assert graph["stack"].invertible
    assert DEPTH * graph["stack"].plain_bytes == PLAIN_BYTES


def unrolled(params, x):
    layer = rr.block(COUPLING.forward, "stack", inverse=COUPLING.inverse)
    for k in range(DEPTH):
        x = layer(jax.tree.map(lambda w, k=k: w[k], params), x)
    return squares(x)


@pytest.mark.parametrize("loss", [stacked(None), unrolled], ids=["loop", "blocks"])
def test_a_plan_may_undo_layers_while_others_gradients_are_computed(loss, float64):
    normal = lambda spec, seed: jax.random.normal(jax.random.key(seed), spec.shape)
    numbers = enumerate(jax.tree.leaves(SPECS))
    args = jax.tree.unflatten(
        jax.tree.structure(SPECS), [normal(spec, seed) / 4 for seed, spec in numbers]
    )
    early = INVERT(ahead=["tanh_0"])
    actions = (SAVE,) + (early,) * (DEPTH - 3) + (INVERT, early)
    plan = rr.trace(loss, *args).plan({"stack": actions})
    gradient = lambda f: quick_jit(jax.grad(f, argnums=(0, 1)))(*args)
    assert_close(gradient(rr.apply(loss, plan)), gradient(loss), 1e-9)


def test_what_plain_autodiff_keeps_is_what_jax_keeps():
    run = stacked(SAVE)
    pullback = jax.eval_shape(lambda p, x: jax.vjp(lambda p: run(p, x), p)[1], *SPECS)
    kept = [a for a in jax.tree.leaves(pullback) if a.shape == (DEPTH, TOKENS, WIDTH)]
    assert sum(a.size * 4 for a in kept) == PLAIN_BYTES


def test_a_chain_of_couplings_shows_what_it_would_have_kept():
    (choice,) = rr.trace(chained, *SPECS).fixed_units
    assert (choice.unit.name, choice.unit.num_layers) == ("chain", DEPTH)
    assert set(choice.actions) == {INVERT}
    assert (choice.kept_bytes, choice.plain_bytes) == (0, PLAIN_BYTES)


def test_a_chain_of_mixed_actions_shows_and_keeps_what_each_says():
    actions = (SAVE, SAVE, INVERT, RECOMPUTE, INVERT, INVERT, SAVE, INVERT)

    def loss(params, x):
        own = [jax.tree.map(lambda w, k=k: w[k], params) for k in range(DEPTH)]
        return squares(reversible.chain([COUPLING] * DEPTH, own, x, actions=actions))

    (choice,) = rr.trace(loss, *SPECS).fixed_units
    assert choice.actions == actions
    # What three keep by plain autodiff, and the two streams that another is given.
    assert choice.kept_bytes == 3 * PLAIN_BYTES // DEPTH + 2 * STREAM.size * 4


@pytest.mark.parametrize(
    ("actions", "said"),
    [
        ((SAVE,) * 3, "was given 3 actions; give one action for each coupling"),
        (INVERT(save=["tanh_0"]), "write SAVE, RECOMPUTE or INVERT as they are"),
    ],
)
def test_actions_that_a_chain_cannot_take(actions, said):
    x = (jnp.ones((2, 2)),) * 2
    with pytest.raises(rr.UserError, match=said):
        reversible.chain([COUPLING], [{"f": 0, "g": 0}], x, actions=actions)


def test_a_chain_that_grows_shows_every_kind_of_coupling():
    pooled = lambda w, x: jnp.tanh(x[::2] @ w)
    raised = lambda w, x: jnp.repeat(jnp.tanh(x @ w), 2, axis=0)
    full = reversible.silo({(0, 1): pooled}, {(1, 0): raised})
    grows = reversible.silo({(0, 1): pooled}, {(1, 0): raised}, num_inputs=1)
    one = {"down_0_1": jnp.eye(WIDTH), "up_1_0": jnp.eye(WIDTH)}

    def loss(params, x):
        couplings, actions = [grows, full, full], (RECOMPUTE, INVERT, SAVE)
        return squares(reversible.chain(couplings, params, (x,), actions=actions))

    found = rr.trace(loss, [one] * 3, STREAM).fixed_units
    layers = {c.unit.name: c.actions for c in found}
    assert layers == {
        "chain/coupling": (RECOMPUTE,),
        "chain/coupling_1": (INVERT, SAVE),
    }
    # A full silo: the finer stream as pooled, half of a stream as pooled's value, what
    # the coarser stream became, half, and the value made of it, half.
    assert found[1].plain_bytes == 2 * (4 * STREAM.size // 2) * 4


def test_choices_survive_json():
    graph = rr.trace(stacked((SAVE,) * 2 + (INVERT,) * (DEPTH - 2)), *SPECS)
    assert rr.Graph.from_json(graph.to_json()) == graph
    assert "6 x INVERT" in str(graph)


@pytest.mark.slow
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
    budget = (least + most) // 2
    plan = rr.search(loss, *specs, budget=budget, target="h100:1", unroll=False)
    assert plan.fits
    assert {"invert", "save"} <= {action.kind for action in plan.actions["stack"]}


@pytest.mark.slow
@pytest.mark.slow
def test_a_mix_that_needs_copies_of_weights_gives_way_to_one_that_fits():
    """By its costs it fits, and it does not as it comes out."""
    weights = jax.ShapeDtypeStruct((DEPTH, 2048, 2048), jnp.float32)
    streams = (jax.ShapeDtypeStruct((256, 2048), jnp.float32),) * 2
    specs, loss = ({"f": weights, "g": weights}, streams), stacked(None)
    graph = rr.trace(loss, *specs)
    inverted, recomputed = (
        rr.measure(
            jax.grad(rr.apply(loss, graph.plan({"stack": action}))),
            *specs,
            target="h100:1",
        )
        for action in (INVERT, RECOMPUTE)
    )
    budget = (inverted.memory.total_bytes + recomputed.memory.total_bytes) // 2
    found = rr.fit(loss, *specs, budget=budget, target="h100:1", unroll=False)
    expected = [row for row in found.rows if row.predicted_bytes is not None]
    assert any(row.predicted_bytes <= budget < row.bytes for row in expected)
    assert found.plan.fits
    assert found.measurement.time.step_us < inverted.time.step_us


def test_undoing_layers_early_is_proposed_where_there_is_something_to_hide_under():
    unit = rr.trace(stacked(None), *SPECS)["stack"]
    names = [[c.name for c in candidates(unit, ahead=on)] for on in (False, True)]
    assert ["invert, ahead" in found for found in names] == [False, True]


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
