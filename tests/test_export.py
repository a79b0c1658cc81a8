"""Plans in the words of JAX, Flax and MaxText, and what those have no words for."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE

W = jax.ShapeDtypeStruct((4, 8, 8), jnp.float32)
X = jax.ShapeDtypeStruct((16, 8), jnp.float32)


def layer(w, x):
    up = rr.name(x @ w, "qkv_proj")
    act = rr.name(jnp.tanh(up), "act")
    return x + jnp.sin(act @ w.T)


def undo(w, y):
    return y


def loss(w, x):
    return rr.stack(layer, w, x, inverse=undo).sum()


GRAPH = rr.trace(loss, W, X)


def exported(actions, form="jax"):
    return rr.export(GRAPH.plan({"stack": actions}), GRAPH, form)


@pytest.mark.parametrize(
    ("action", "policy"),
    [
        (RECOMPUTE, "policy=policies.nothing_saveable,"),
        (
            RECOMPUTE(save=["qkv_proj"]),
            'policy=policies.save_only_these_names("qkv_proj"),',
        ),
        (RECOMPUTE(offload=["qkv_proj"]), 'names_which_can_be_offloaded=["qkv_proj"],'),
        (RECOMPUTE(offload=["input"]), 'names_which_can_be_offloaded=["input"],'),
        (SAVE, "layer = layer"),
    ],
)
def test_an_action_is_a_policy(action, policy):
    assert policy in exported(action).text


def test_the_code_saves_what_the_plan_saves():
    """The text is run, and JAX then keeps what the plan keeps."""
    plan = GRAPH.plan({"stack": RECOMPUTE(save=["qkv_proj"])})
    scope = {"layer": layer}
    exec(rr.export(plan, GRAPH, "jax").text, scope)

    def wrapped(w, x):
        return jax.lax.scan(lambda x, w: (scope["layer"](w, x), None), x, w)[0].sum()

    ours = rr.measure(jax.grad(rr.apply(loss, plan)), W, X, target="h100:1")
    theirs = rr.measure(jax.grad(wrapped), W, X, target="h100:1")
    kept = 4 * 2 * 16 * 8 * 4  # four layers' inputs and products
    assert theirs.memory.total_bytes >= kept
    assert ours.memory.total_bytes <= 1.05 * theirs.memory.total_bytes


def test_layers_that_differ_have_names_of_their_own():
    """Each is wrapped once: a wrapper around another would keep less."""
    scope = {"layer": layer}
    exec(exported([SAVE, RECOMPUTE, RECOMPUTE(save=["act"]), RECOMPUTE]).text, scope)
    assert scope["layer"] is scope["layer_0"] is layer
    assert len({id(scope[f"layer_{k}"]) for k in range(4)}) == 4


def test_an_offloaded_input_is_to_be_tagged():
    assert 'checkpoint_name(x, "input")' in exported(RECOMPUTE(offload=["input"])).text


@pytest.mark.parametrize("action", [RECOMPUTE(save=["cos_0"]), OFFLOAD])
def test_what_the_derivative_makes_is_not_to_be_tagged(action):
    found = exported(action)
    assert '"cos_0"' not in found.text
    assert any("'cos_0' is made by the derivative alone" in s for s in found.lost)


def test_flax_has_its_own_wrapper():
    text = exported(RECOMPUTE, "nnx").text
    assert "from flax import nnx" in text
    assert "nnx.remat(" in text


def test_untagged_values_are_told_with_their_place():
    graph = rr.trace(
        lambda w, x: rr.stack(lambda w, x: jnp.sin(x @ w), w, x).sum(), W, X
    )
    plan = graph.plan({"stack": RECOMPUTE(save=["dot_general_0"])})
    text = rr.export(plan, graph).text
    assert 'checkpoint_name(x, "dot_general_0") on the float32[16, 8] made at' in text
    assert "test_export.py:" in text


@pytest.mark.parametrize(
    ("actions", "sentence"),
    [
        (INVERT, "INVERT rebuilds a layer's input from its output"),
        (RECOMPUTE(ahead=["qkv_proj"]), "rebuilding qkv_proj a layer early"),
        (SAVE(unroll=True), "writing layers out"),
        ([SAVE, RECOMPUTE, RECOMPUTE, RECOMPUTE], "one scan whose layers differ"),
        (RECOMPUTE(save=["act"]), "'act' is the result of tanh"),
    ],
)
def test_what_jax_has_no_words_for_is_said(actions, sentence):
    assert any(sentence in said for said in exported(actions).lost)


@pytest.mark.parametrize("form", ["jax", "maxtext"])
def test_that_gradients_come_in_order_is_said_to_be_lost(form):
    for in_order in (True, False):
        plan = GRAPH.plan({"stack": RECOMPUTE}, in_order=in_order)
        lost = rr.export(plan, GRAPH, form).lost
        assert any("gradients in order" in said for said in lost) is in_order


@pytest.mark.parametrize(
    ("actions", "flags", "lost"),
    [
        (RECOMPUTE, "remat_policy=full", ""),
        (RECOMPUTE(unroll=True), "remat_policy=full scan_layers=False", ""),
        (
            RECOMPUTE(save=["qkv_proj"]),
            "remat_policy=custom decoder_layer_input=device qkv_proj=device",
            "",
        ),
        (
            RECOMPUTE(offload=["qkv_proj"]),
            "remat_policy=custom decoder_layer_input=device qkv_proj=offload",
            "",
        ),
        (
            OFFLOAD,
            "remat_policy=custom decoder_layer_input=offload",
            "is no tensor that MaxText has a setting for",
        ),
        (SAVE, "remat_policy=minimal_with_context", "keeps no layer whole"),
        (
            [SAVE, RECOMPUTE, RECOMPUTE, RECOMPUTE],
            "remat_policy=full",
            "the flags of 3 of 4 layers",
        ),
    ],
)
def test_maxtext_flags(actions, flags, lost):
    found = exported(actions, "maxtext")
    assert found.text.startswith(flags)
    assert lost in "; ".join(found.lost)


def test_recompute_outside_of_loops_is_kept_from_being_merged():
    assert "prevent_cse=False" in exported(RECOMPUTE).text
    assert "prevent_cse=True" in exported(RECOMPUTE(unroll=True)).text
    assert "layer = layer" in exported(SAVE(unroll=True)).text


def test_mistakes_are_told_in_a_sentence():
    with pytest.raises(rr.UserError, match="unknown form 'keras': write one of jax"):
        exported(RECOMPUTE, "keras")
    other = rr.trace(lambda w, x: rr.stack(layer, w, x).mean(), W, X)
    with pytest.raises(rr.UserError, match="made for another program"):
        rr.export(other.plan({"stack": RECOMPUTE}), GRAPH)
