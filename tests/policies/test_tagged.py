"""Of values as large, with no product between, the one that has a tag is kept."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import INVERT, RECOMPUTE, SAVE
from revremat.policies import (
    PRESETS,
    Candidate,
    Joint,
    Pool,
    candidates,
    equivalents,
    front,
    keep_written,
    with_tags,
)

WIDTH, HEADS, ROWS, LENGTH = 64, 4, 8, 128
W = {
    "up": jax.ShapeDtypeStruct((2, WIDTH, 4 * WIDTH), jnp.float32),
    "bias": jax.ShapeDtypeStruct((2, 4 * WIDTH), jnp.float32),
    "down": jax.ShapeDtypeStruct((2, 4 * WIDTH, WIDTH), jnp.float32),
    "out": jax.ShapeDtypeStruct((2, WIDTH, WIDTH), jnp.float32),
}
X = jax.ShapeDtypeStruct((ROWS, LENGTH, WIDTH), jnp.float32)


def unit_of(layer):
    run = lambda w, x: jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)[0]
    graph = rr.trace(lambda w, x: run(w, x).sum(), W, X)
    return graph, graph.units[0]


def with_bias(w, x):
    up = rr.name(x @ w["up"] + w["bias"], "up")
    return x + jnp.sin(jnp.tanh(up)) @ w["down"]


def in_heads(w, x):
    up = (x @ w["up"]).reshape(ROWS, LENGTH, HEADS, WIDTH)
    up = rr.name(up.transpose(0, 2, 1, 3), "up")
    up = jnp.sin(jnp.tanh(up)).transpose(0, 2, 1, 3).reshape(ROWS, LENGTH, -1)
    return x + up @ w["down"]


def scaled(w, x):
    up = rr.name(0.125 * (x @ w["up"]), "up")
    return x + jnp.sin(jnp.tanh(up)) @ w["down"]


def tagged_before(w, x):
    up = rr.name(x @ w["up"], "up") + w["bias"]
    return x + jnp.sin(jnp.tanh(up)) @ w["down"]


UNTAGGED = {
    with_bias: {"dot_general_0"},
    in_heads: {"dot_general_0", "reshape_0"},
    scaled: {"dot_general_0"},
    tagged_before: {"broadcast_in_dim_0", "add_0"},
}
"""Beside `up`, what is nothing but it in another form."""


@pytest.mark.parametrize("layer", UNTAGGED)
def test_candidates_keep_the_tagged_one(layer):
    _, unit = unit_of(layer)
    found = [c for c in candidates(unit) if c.name not in PRESETS]
    kept = {name for c in found for name in unit.kept(c.action).saved}
    assert "up" in kept
    assert not kept & UNTAGGED[layer]


@pytest.mark.parametrize("layer", UNTAGGED)
def test_the_tag_costs_no_byte_and_no_product(layer):
    _, unit = unit_of(layer)
    joint = Joint(unit)
    product = unit.position[
        "dot_general_0" if "dot_general_0" in unit.position else "up"
    ]
    for k, value in enumerate(unit.values):
        if value.name and value.role == "made":
            before, after = {k, product}, with_tags(joint, {k, product})
            assert joint.cost(after).bytes <= joint.cost(before).bytes
            run = lambda kept: [
                unit.operations[n].kind
                for n in joint.needed(kept)[1]
                if unit.operations[n].compute_intensive
            ]
            assert len(run(after)) <= len(run(before))


def attention(w, x):
    """As MaxText writes it: the sum of weights divides the product, which is tagged."""
    heads = x.reshape(ROWS, LENGTH, HEADS, -1)
    logits = jnp.einsum("bthk,bshk->bhts", heads, heads)
    weights = jnp.exp(logits - jax.lax.stop_gradient(logits.max(-1, keepdims=True)))
    out = jnp.einsum("bhts,bshk->bthk", weights, heads)
    out = out / weights.sum(-1).transpose(0, 2, 1)[..., None]
    out = rr.name(out, "attention_out")
    x = x + out.reshape(x.shape) @ w["out"]
    return x + jnp.tanh(x @ w["up"]) @ w["down"]


def test_not_where_a_product_would_have_to_run_again():
    """The derivative of a quotient takes what is divided."""
    _, unit = unit_of(attention)
    (divided,) = (op.inputs[0] for op in unit.operations if op.kind == "div")
    assert unit.maker[divided].kind == "transpose"
    kept = {divided}
    assert with_tags(Joint(unit), kept) == kept
    assert "attention_out" in equivalents(unit, unit.values[divided].name)


def test_there_the_tag_stands_in_where_a_plan_is_written_for_maxtext():
    graph, unit = unit_of(attention)
    (divided,) = (op.inputs[0] for op in unit.operations if op.kind == "div")
    name = unit.values[divided].name
    plan = graph.plan({unit.name: rr.RECOMPUTE(save=[name])})
    found = rr.export(plan, graph, "maxtext")
    assert "attention_out=device" in found.text
    (lost,) = found.lost
    assert f"'{name}' (attention_out)" in lost
    assert "as many bytes" in lost


def test_equivalents_are_as_large_and_nothing_intensive_lies_between():
    _, unit = unit_of(with_bias)
    assert equivalents(unit, "dot_general_0") == ["up"]
    assert equivalents(unit, "tanh_0") == ["up"]
    assert equivalents(unit, "dot_general_1") == []


WRITTEN = {
    with_bias: "dot_general_0",
    in_heads: "reshape_0",  # the product, before it is transposed
    scaled: "dot_general_0",
    tagged_before: "up",
}
"""What is kept in place of `up` where nothing is copied into a stack."""


@pytest.mark.parametrize("layer", WRITTEN)
def test_without_a_stack_what_a_product_writes_is_kept(layer):
    _, unit = unit_of(layer)
    joint = Joint(unit, stacked=False)
    tagged = RECOMPUTE(save=["up"])(unroll=True)
    written = keep_written(joint, tagged)
    assert written == RECOMPUTE(save=[WRITTEN[layer]])(unroll=True)
    position = unit.position[WRITTEN[layer]]
    assert with_tags(joint, {position}) == {position}
    cost = lambda action: joint.cost(unit.position[name] for name in action.save)
    assert cost(written).bytes == cost(tagged).bytes
    assert (cost(written).traffic < cost(tagged).traffic) == (written != tagged)


@pytest.mark.parametrize("layer", [*WRITTEN, attention])
def test_no_action_keeps_more_or_runs_another_product_for_that(layer):
    _, unit = unit_of(layer)
    joint = Joint(unit, stacked=False)
    (name, *_) = unit.kept(SAVE).saved
    others = [SAVE, INVERT, RECOMPUTE(ahead=[name]), RECOMPUTE(offload=[name])]
    assert [keep_written(joint, action) for action in others] == others
    for candidate in candidates(unit, offload=True, most=24):
        before, after = candidate.action, keep_written(joint, candidate.action)
        assert after.offload == before.offload
        (before, after) = unit.kept(before), unit.kept(after)
        assert after.device_bytes <= before.device_bytes
        assert after.recompute_flops <= before.recompute_flops + 2 * X.size * 4


def test_a_sum_of_two_values_is_not_kept_as_one_of_them():
    """Both would have to be read again."""
    layer = lambda w, x: jnp.sin(rr.name(x + x[::-1] @ w["out"], "sum")) @ w["out"]
    _, unit = unit_of(layer)
    action = RECOMPUTE(save=["sum"])(unroll=True)
    assert keep_written(Joint(unit, stacked=False), action) == action


def residual(w, x):
    """A block of which a part is dropped, and a sum that the next block takes, too."""
    kept = x @ w["out"].T > 0
    x = x + jnp.where(kept, rr.name(x @ w["out"] + 1, "block"), 0)
    return x + jnp.tanh(x / jnp.abs(x).mean() @ w["out"])


def test_without_a_stack_the_sum_after_a_tagged_value_is_kept_in_its_place():
    _, unit = unit_of(residual)
    pool = Pool(unit)
    saved = lambda sets: {name for one in sets for name in one.action.save}
    assert "block" in saved(pool.sets)
    (add,) = [o for o in unit.operations if o.kind == "add" and 0 in o.inputs]
    name = unit.values[add.outputs[0]].name
    assert unit.values[0].name == "input"
    assert "block" not in saved(pool.unrolled_sets)
    assert name in saved(pool.unrolled_sets)
    kept = {unit.position[name]}
    assert with_tags(pool.joint, kept) == {unit.position["block"]}


def test_sets_of_unrolled_layers_are_minimum_cuts_with_names_of_their_own():
    _, unit = unit_of(attention)
    pool = Pool(unit)
    cuts = [corner.cost.bytes for corner in front(pool.unrolled)]
    assert [pool.cost(one).bytes for one in pool.unrolled_sets] == cuts
    names = [one.name for one in (*pool.sets, *pool.unrolled_sets)]
    assert len(set(names)) == len(names)


def test_estimates_of_unrolled_layers_know_of_no_stack():
    _, unit = unit_of(with_bias)
    pool, loop = Pool(unit), Candidate("up", RECOMPUTE(save=["up"]))
    whole, few = (Candidate("up", loop.action(unroll=n)) for n in (True, 4))
    assert pool.cost(whole).bytes == pool.cost(loop).bytes
    assert pool.cost(whole).traffic < pool.cost(loop).traffic == pool.cost(few).traffic
