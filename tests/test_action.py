"""Which action a unit may take: told once, and heeded wherever plans come in."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE, UserError
from revremat._action import (
    KINDS,
    Action,
    Facts,
    check_actions,
    for_each,
    read_action,
)
from revremat.policies import Pool, candidates, sent_to_host
from tests.policies.units import drawn_units

STACK = Facts(
    num_layers=4,
    is_loop=True,
    is_stack=True,
    has_inverse=True,
    splits=(),
    names=("h", "a"),
    listed=("h",),
    unrepeatable="",
    in_branch=False,
    num_scans=1,
)
BLOCK = dataclasses.replace(STACK, is_loop=False, is_stack=False, has_inverse=False)
CHAIN = dataclasses.replace(STACK, is_loop=False)
HEAD = dataclasses.replace(BLOCK, splits=(2, 8))
BOTH = dataclasses.replace(CHAIN, splits=(2,))
RANDOM = dataclasses.replace(STACK, unrepeatable="rng_uniform draws at random")
BRANCH = dataclasses.replace(STACK, in_branch=True)
DEEP = dataclasses.replace(STACK, num_scans=3)
UNNAMED = dataclasses.replace(STACK, names=None)


@pytest.mark.parametrize(
    ("action", "facts", "reason"),
    [
        (SAVE, BLOCK, None),
        (RECOMPUTE(save=["h"]), BLOCK, None),
        (INVERT, STACK, None),
        (INVERT, CHAIN, None),
        (INVERT, BLOCK, "it has no inverse; give one with `inverse=`"),
        (INVERT, dataclasses.replace(BLOCK, has_inverse=True), "it is no stack"),
        (INVERT(chunks=2), BOTH, "its chunks have no inverse"),
        (RECOMPUTE(chunks=2), STACK, "it cannot be split"),
        (RECOMPUTE(chunks=2), HEAD, None),
        (OFFLOAD(chunks=8), HEAD, None),
        (RECOMPUTE(chunks=4), HEAD, "can be computed in 1, 2, 8 chunks, not 4"),
        (RECOMPUTE(ahead=["h"], chunks=2), BOTH, "chunks recompute nothing ahead"),
        (
            RECOMPUTE(segment_length=2, chunks=2),
            BOTH,
            "`segment_length` goes with SAVE and RECOMPUTE",
        ),
        (RECOMPUTE(segment_length=2), STACK, None),
        (SAVE(segment_length=2, save=["h"]), CHAIN, None),
        (RECOMPUTE(segment_length=2), BLOCK, "no neighbours to share an input with"),
        (
            OFFLOAD(segment_length=2),
            STACK,
            "`segment_length` goes with SAVE and RECOMPUTE",
        ),
        (
            INVERT(segment_length=2),
            STACK,
            "`segment_length` goes with SAVE and RECOMPUTE",
        ),
        (
            RECOMPUTE(segment_length=2, ahead=["h"]),
            STACK,
            "`segment_length` goes with SAVE",
        ),
        (
            RECOMPUTE(segment_length=2),
            RANDOM,
            "as `segment_length` would: rng_uniform draws at random",
        ),
        (RECOMPUTE, RANDOM, None),
        (SAVE(unroll=True), STACK, None),
        (SAVE(unroll=True), CHAIN, "it is no loop"),
        (SAVE(unroll=4), STACK, None),
        (SAVE(unroll=4), CHAIN, "it is no loop"),
        (SAVE(unroll=5), STACK, "it has only 4 layers; write `unroll=True`"),
        (OFFLOAD(unroll=2), STACK, "that XLA puts together on the host"),
        (SAVE(offload=["h"], unroll=2), STACK, "XLA puts together on the host"),
        (OFFLOAD(unroll=True), STACK, None),
        (RECOMPUTE(ahead=["h"]), CHAIN, None),
        (RECOMPUTE(ahead=["h"]), BLOCK, "nothing of it can be recomputed ahead"),
        (SAVE(save=["z"]), STACK, "it has no value named 'z'; it has: h"),
        (RECOMPUTE(ahead=["b", "c"]), STACK, "it has no value named 'b', 'c'"),
        (RECOMPUTE(offload=["z", "h"]), STACK, "it has no value named 'z'"),
        (RECOMPUTE(save=["z"]), UNNAMED, None),
        (
            RECOMPUTE(save=["h"], offload=["h"]),
            STACK,
            "both `save` and `offload` list 'h'",
        ),
        (OFFLOAD, STACK, None),
        (OFFLOAD, BRANCH, "hands on nothing in host memory"),
        (RECOMPUTE(offload=["h"]), BRANCH, "hands on nothing in host memory"),
        (RECOMPUTE, BRANCH, None),
        (OFFLOAD, DEEP, "inside 3 scans, which would all keep in host memory"),
        (SAVE(offload=["a"]), DEEP, "inside 3 scans"),
        (SAVE, DEEP, None),
    ],
    ids=str,
)
def test_what_a_unit_may_take(action, facts, reason):
    found = action.refused_by(facts)
    assert (found is None) == (reason is None)
    assert (reason or "") in (found or "")
    layers = (SAVE, SAVE, action, action)
    if reason is None:
        check_actions("unit 'u'", layers, facts)
    else:
        with pytest.raises(UserError) as caught:
            check_actions("unit 'u'", layers, facts)
        assert str(caught.value) == f"unit 'u' cannot take {action!r}: {found}."


@pytest.mark.parametrize("unroll", [0, 1, -4, 2.0, "yes", type(None)])
def test_how_much_is_unrolled_is_a_flag_or_two_layers_and_more(unroll):
    with pytest.raises(UserError, match="write True for all layers"):
        Action("save", unroll=unroll)
    written = {**_written(SAVE(unroll=4)), "unroll": unroll}
    with pytest.raises(ValueError, match="'unroll' is"):
        read_action(written)


@pytest.mark.parametrize(
    ("action", "number"),
    [
        (SAVE, 1),
        (SAVE(unroll=True), 1),
        (SAVE(unroll=4), 4),
        (RECOMPUTE(segment_length=3), 3),
        (RECOMPUTE(segment_length=3, unroll=2), 6),
    ],
    ids=str,
)
def test_an_iteration_has_layers(action, number):
    assert action.layers_per_iteration == number
    assert read_action(_written(action)) == action


def _written(action):
    return json.loads(json.dumps(dataclasses.asdict(action)))


@pytest.mark.parametrize("number", [0, 3, 5])
def test_every_layer_has_an_action(number):
    said = f"unit 'u' has 4 layers and was given {number} actions"
    with pytest.raises(UserError, match=said):
        check_actions("unit 'u'", (SAVE,) * number, STACK)
    check_actions("unit 'u'", (SAVE,) * number, STACK, shortened=True)


# ---- Units drawn at random -----------------------------------------------------------


@st.composite
def drawn_actions(draw, names=("h", "a", "z")):
    """Any action, of these names."""
    listed = lambda: draw(st.lists(st.sampled_from(names), max_size=2))
    rarely = lambda *values: draw(st.sampled_from([values[0]] * 4 + [*values]))
    action = Action(draw(st.sampled_from(KINDS)))
    return action(
        *(listed() if rarely(False, True) else () for _ in range(3)),
        chunks=rarely(1, 2, 3),
        segment_length=rarely(1, 2),
        unroll=rarely(False, True, 2),
    )


FACTS = st.builds(
    Facts,
    num_layers=st.integers(1, 5),
    is_loop=st.booleans(),
    is_stack=st.booleans(),
    has_inverse=st.booleans(),
    splits=st.sampled_from([(), (2,), (2, 3)]),
    names=st.sampled_from([None, ("h",), ("h", "a")]),
    listed=st.just(("h",)),
    unrepeatable=st.sampled_from(["", "it draws"]),
    in_branch=st.booleans(),
    num_scans=st.integers(0, 3),
)
ALLOWED = {
    "is_loop": True,
    "is_stack": True,
    "has_inverse": True,
    "names": None,
    "unrepeatable": "",
    "in_branch": False,
    "num_scans": 0,
}


@given(drawn_actions(), FACTS, st.sampled_from([*ALLOWED]))
def test_a_unit_that_can_do_more_refuses_no_more(action, facts, what):
    more = dataclasses.replace(facts, **{what: ALLOWED[what]})
    assert action.refused_by(more) is None or action.refused_by(facts) is not None


@given(drawn_actions(), FACTS)
def test_a_reason_goes_on_where_a_sentence_begins(action, facts):
    if (reason := action.refused_by(facts)) is not None:
        assert reason.startswith(
            ("it ", "its ", "both `", "`segment_length` ", "chunks ")
        )
        assert not reason.endswith(".")
        assert "\n" not in reason
        assert len(f"unit 'layer' cannot take {action!r}: {reason}.") <= 400


@settings(max_examples=40, deadline=None)
@given(
    drawn_units(),
    st.sampled_from([1, 4, 40]),
    st.sampled_from([(), (2,), (2, 8)]),
    st.tuples(*[st.booleans()] * 4),
)
def test_nothing_is_proposed_that_is_refused(unit, num_layers, splits, flags):
    is_stack, knows_inverse, in_branch, is_loop = flags
    unit = dataclasses.replace(
        unit,
        kind="scan" if is_loop else "block",
        num_layers=num_layers,
        splits=splits,
        chained=is_stack or is_loop,
        invertible=knows_inverse and (is_stack or is_loop),
        in_branch=in_branch,
    )
    proposed = [*candidates(unit, offload=True, ahead=True), *Pool(unit).sets]
    sent = [more for one in proposed for more in sent_to_host(unit, one)]
    for candidate in (*proposed, *sent):
        assert candidate.action.refused_by(unit.facts) is None, candidate


# ---- Where plans come in -------------------------------------------------------------

W, X = jnp.ones((4, 2, 2)), jnp.ones((4, 2))


def half(w, x):
    return rr.name(jnp.tanh(x @ w), "hidden")


def couple(w, x):
    return x + jnp.sin(w).sum()


def uncouple(w, y):
    return y - jnp.sin(w).sum()


def printing(w, x):
    jax.debug.print("{}", x[0, 0])
    return half(w, x)


def stack(w, x, actions=None):
    return rr.stack(half, w, x, actions=actions).sum()


def reversible(w, x, actions=None):
    return rr.stack(couple, w, x, inverse=uncouple, actions=actions).sum()


def effects(w, x, actions=None):
    return rr.stack(printing, w, x, actions=actions).sum()


def lone(w, x):
    return (rr.block(couple, "stack", inverse=uncouple)(w[0], x) ** 2).sum()


def apart(w, x):
    block = rr.block(couple, "stack", inverse=uncouple)
    return (block(w[0], x) * block(w[1], x)).sum()


def chain(w, x):
    block = rr.block(half, "stack")
    for k in range(3):
        x = block(w[k], x)
    return x.sum()


def sums(c, rows):
    return (jnp.sin(rows)[:, None] * jnp.cos(c)).sum(0)


def head(w, x):
    return rr.block(sums, "stack", split=(None, 0))(x[0], w[:, 0, 0]).sum()


def heads(w, x):
    block, c = rr.block(sums, "stack", split=(None, 0)), x[0]
    for k in range(3):
        c = block(c, w[:, 0, k % 2])
    return c.sum()


def branch(w, x):
    layers = lambda x: rr.stack(half, w, x)
    return jax.lax.cond(x[0, 0] > 0, layers, jnp.sin, x).sum()


def deep(w, x):
    one = lambda x, w: (rr.stack(half, w, x), None)
    two = lambda x, w: jax.lax.scan(one, x, w)
    return jax.lax.scan(two, x, jnp.stack([jnp.stack([w] * 2)] * 2))[0].sum()


MANY = 8
"""Of each: every one is traced several times."""
LOSSES = (stack, reversible, effects, lone, apart, chain, head, heads, branch, deep)


@functools.cache
def traced(loss):
    graph = rr.trace(loss, W, X)
    return graph, graph.units[-1]


def gradient(loss):
    return jax.eval_shape(jax.grad(loss), W, X)


def refusal(call):
    """The reason for which actions are refused; None if they are taken."""
    try:
        call()
    except UserError as error:
        return str(error).partition(" cannot take ")[2] or str(error)
    return None


def by_hand(loss, actions):
    """A plan of these actions that nothing has looked at."""
    graph, unit = traced(loss)
    plan = graph.plan({unit.name: SAVE})
    return dataclasses.replace(
        plan, units=(dataclasses.replace(plan.units[0], actions=actions),)
    )


def layers_of(unit, pair):
    return tuple(pair[k % 2] for k in range(unit.num_layers))


@pytest.mark.parametrize("loss", LOSSES)
@settings(max_examples=MANY, deadline=None)
@given(data=st.data())
def test_what_one_door_refuses_no_other_takes(loss, data):
    graph, unit = traced(loss)
    drawn = drawn_actions((*[*unit.position] * 3, "z"))
    actions = layers_of(unit, data.draw(st.tuples(drawn, drawn)))
    refused = refusal(lambda: graph.plan({unit.name: actions}))
    if refused:
        told = refusal(lambda: gradient(rr.apply(loss, by_hand(loss, actions))))
        assert told is not None
        # Which names there are is listed in full there.
        assert told.partition("; it has")[0] == refused.partition("; it has")[0]
    else:
        gradient(rr.apply(loss, graph.plan({unit.name: actions})))
    if loss in (stack, reversible, effects):
        told = refusal(lambda: gradient(functools.partial(loss, actions=actions)))
        assert (told is None) == (refused is None), (told, refused)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_proposed_is_taken_everywhere(loss):
    graph, unit = traced(loss)
    facts = graph.facts(unit.name)
    may_send = OFFLOAD.refused_by(facts) is None
    for candidate in candidates(unit, offload=may_send, ahead=True, most=4):
        plan = graph.plan({unit.name: candidate.action})
        gradient(rr.apply(loss, plan))


@pytest.mark.parametrize(
    ("loss", "actions"),
    [
        (lone, (INVERT,)),
        (heads, (RECOMPUTE, RECOMPUTE(chunks=2), SAVE)),
        (heads, (SAVE(chunks=2), RECOMPUTE(ahead=["sin_1"]), RECOMPUTE)),
        (heads, (SAVE, RECOMPUTE(offload=["cos_1"], chunks=2), SAVE(chunks=4))),
        (
            heads,
            (
                RECOMPUTE(segment_length=2),
                RECOMPUTE(segment_length=2),
                OFFLOAD(chunks=4),
            ),
        ),
        (reversible, (INVERT, SAVE, INVERT, RECOMPUTE(segment_length=2))),
    ],
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_what_is_taken_has_the_same_gradient(loss, actions):
    graph, unit = traced(loss)
    planned = rr.apply(loss, graph.plan({unit.name: actions}))
    args = (jnp.arange(16.0).reshape(4, 2, 2) / 9, jnp.arange(8.0).reshape(4, 2) / 7)
    found, expected = (jax.grad(f, argnums=(0, 1))(*args) for f in (planned, loss))
    for one, other in zip(found, expected, strict=True):
        assert jnp.allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("key", ["save", "offload", "ahead"])
def test_a_text_is_no_list_of_names(key):
    with pytest.raises(UserError, match=rf"{key}='up' is a text.*write {key}=\['up'\]"):
        RECOMPUTE(**{key: "up"})


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (SAVE, (SAVE, SAVE)),
        ([SAVE, RECOMPUTE], (SAVE, RECOMPUTE)),
        (iter([RECOMPUTE]), (RECOMPUTE,)),
    ],
)
def test_one_action_is_for_all_layers_and_a_list_for_each(given, found):
    assert for_each(given, 2) == found


@pytest.mark.parametrize("given", ["SAVE", 3, None, [SAVE, "RECOMPUTE"]])
def test_what_is_no_action_is_told_what_to_write(given):
    with pytest.raises(UserError, match=r"is no action: write rr.SAVE, rr.RECOMPUTE"):
        for_each(given, 2)
