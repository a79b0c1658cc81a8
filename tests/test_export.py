"""Plans in the words of JAX, Flax and MaxText, and what those have no words for."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE
from revremat._export._places import Lost, Places, users_place
from revremat._graph import Graph, Operation, Unit, Value

LINES = Path(__file__).read_text().splitlines()
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
    assert any("'cos_0' exist in the derivative alone" in s for s in found.lost)


def test_flax_has_its_own_wrapper():
    text = exported(RECOMPUTE, "nnx").text
    assert "from flax import nnx" in text
    assert "nnx.remat(" in text


def bare(w, x):
    h = x @ w
    return jnp.sin(h) + jnp.cos(x @ w.T)


def test_untagged_values_are_told_with_their_place():
    graph = rr.trace(lambda w, x: rr.stack(bare, w, x).sum(), W, X)
    plan = graph.plan({"stack": RECOMPUTE(save=["dot_general_0", "dot_general_1"])})
    text = rr.export(plan, graph).text
    first = bare.__code__.co_firstlineno
    made = "on the float32[16, 8] that dot_general makes"
    assert re.search(
        rf'"dot_general_0"\) {re.escape(made)} at \S*test_export.py:{first + 1} ', text
    )
    assert re.search(
        rf'"dot_general_1"\) {re.escape(made)} within the expression at '
        rf"\S*test_export.py:{first + 2} ",
        text,
    )
    assert "from jax.ad_checkpoint import checkpoint_name" in text


class Dense(nn.Module):
    """A library makes the product, adds a bias, and returns the sum."""

    tagged: bool

    @nn.compact
    def __call__(self, x, _):
        up = nn.Dense(32)(x)
        up = rr.name(up, "up") if self.tagged else up
        return nn.Dense(8)(jnp.sin(up)), None


def dense(tagged):
    stack = nn.scan(
        Dense, variable_axes={"params": 0}, split_rngs={"params": True}, length=4
    )(tagged)
    params = jax.eval_shape(stack.init, jax.random.key(0), X, None)
    loss = lambda p, x: (stack.apply(p, x, None)[0] ** 2).sum()
    graph = rr.trace(loss, params, X)
    (unit,) = graph.units
    return graph, unit


def product_of(unit, array):
    found = (r for r in unit.residuals if r.name.startswith("dot_general"))
    return next(r.name for r in found if list(r.shape) == array)


def test_what_a_library_makes_is_tagged_where_its_call_returns():
    graph, unit = dense(tagged=False)
    plan = graph.plan({unit.name: RECOMPUTE(save=[product_of(unit, [16, 32])])})
    found = rr.export(plan, graph)
    line = next(i for i, one in enumerate(LINES, 1) if "nn.Dense(32)" in one)
    (tag,) = re.findall(r"# Tag first: (.*)", found.text)
    assert "that the call at" in tag
    assert f"test_export.py:{line} (Dense.__call__) returns" in tag
    (name,) = re.findall(r'checkpoint_name\(x, "(\w+)"\)', tag)
    assert f'policies.save_only_these_names("{name}")' in found.text
    assert found.lost == ()


def test_a_tag_that_is_there_stands_in_for_what_it_is_made_of():
    graph, unit = dense(tagged=True)
    plan = graph.plan({unit.name: RECOMPUTE(save=[product_of(unit, [16, 32])])})
    found = rr.export(plan, graph)
    assert 'policies.save_only_these_names("up")' in found.text
    assert "Tag first" not in found.text
    assert found.lost == ()


def test_a_tag_that_is_there_is_taken_before_an_expression_is_split():
    def layer(x, w):
        return jnp.sin(rr.name(x @ w + 1.0, "up")) @ w, None

    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 8, 8), (16, 8))]
    graph = rr.trace(lambda w, x: jax.lax.scan(layer, x, w)[0].sum(), *shapes)
    plan = graph.plan({"scan_0": RECOMPUTE(save=["dot_general_0"])})
    found = rr.export(plan, graph)
    assert 'policies.save_only_these_names("up")' in found.text
    assert "Tag first" not in found.text


def test_inside_of_a_library_there_is_no_place_and_one_sentence_says_so():
    def layer(w, x):
        return nn.silu(x @ w[0]) * nn.softmax(nn.silu(x) @ w[1])

    graph = rr.trace(
        lambda w, x: rr.stack(lambda w, x: normed(layer(w, x)), w, x).sum(), (W, W), X
    )
    (unit,) = graph.units
    names = [r.name for r in unit.residuals if not r.given]
    found = rr.export(graph.plan({unit.name: RECOMPUTE(save=names)}), graph)
    tagged = re.findall(r'checkpoint_name\(x, "(\w+)"\) on the .*', found.text)
    for line in re.findall(r"# Tag first: .*", found.text):
        assert re.search(r"test_export\.py:\d+", line), line
    policy = re.search(r"save_only_these_names\((.*)\)", found.text)
    assert set(tagged) == set(re.findall(r'"(\w+)"', policy[1]))
    assert 0 < len(found.lost) <= 3
    assert all("rr.apply" in said for said in found.lost)
    assert any("being made inside of library calls" in said for said in found.lost)


def normed(x):
    return nn.LayerNorm(use_bias=False, use_scale=False).apply({}, x)


def test_many_units_and_names_are_told_once():
    def loss(w, x):
        for k in range(6):
            f = rr.block(lambda w, x, k=k: jnp.sin(x @ w) * (k + 1) ** x, f"part{k}")
            x = f(w[0], x)
        return x.sum()

    graph = rr.trace(loss, W, X)
    every = {unit.name: OFFLOAD for unit in graph.units}
    assert len(every) == 6
    found = rr.export(graph.plan(every), graph)
    assert len(found.lost) <= 2
    assert any("and 2 more: " in said for said in found.lost)
    assert all(len(said) <= 400 for said in found.lost)


@pytest.mark.parametrize(
    ("actions", "sentence"),
    [
        (INVERT, "INVERT recomputes a layer's input from its output"),
        (RECOMPUTE(ahead=["qkv_proj"]), "recomputing 'qkv_proj' a layer early"),
        (SAVE(unroll=True), "unrolling; give `unroll=True`"),
        ([SAVE, RECOMPUTE, RECOMPUTE, RECOMPUTE], "one scan whose layers differ"),
        (RECOMPUTE(save=["act"]), "of 'act' (tanh) the derivative keeps another form"),
    ],
)
def test_what_jax_has_no_words_for_is_said(actions, sentence):
    assert any(sentence in said for said in exported(actions).lost)


def test_of_blocks_layers_that_differ_and_chunks_are_said_too():
    total = lambda w, x: jnp.sum(jnp.sin(x @ w) ** 2)
    part = rr.block(total, "part", split=(None, 0))
    loss = lambda w, x: sum(part(w[k], x) for k in range(3))
    graph = rr.trace(loss, W, X)
    (unit,) = graph.units
    mixed = rr.export(graph.plan({unit.name: [SAVE, RECOMPUTE, RECOMPUTE]}), graph)
    assert any("layers that differ: call each by the" in said for said in mixed.lost)
    assert not any("one scan" in said for said in mixed.lost)
    chunks = unit.splits[-1]
    cut = rr.export(graph.plan({unit.name: RECOMPUTE(chunks=chunks)}), graph)
    assert any(f"computing it in {chunks} chunks" in said for said in cut.lost)


@pytest.mark.parametrize("form", ["jax", "maxtext"])
def test_the_gradient_barrier_is_said_to_be_lost(form):
    for gradient_barrier in (True, False):
        plan = GRAPH.plan({"stack": RECOMPUTE}, gradient_barrier=gradient_barrier)
        lost = rr.export(plan, GRAPH, form).lost
        assert any("gradient barrier" in said for said in lost) is gradient_barrier


@pytest.mark.parametrize(
    ("action", "about", "is_lost"),
    [
        (RECOMPUTE(unroll=True), {"num_devices": 8}, True),
        (RECOMPUTE(unroll=True), {"num_devices": 1}, False),
        (RECOMPUTE, {"num_devices": 8}, False),
        (
            RECOMPUTE(unroll=True),
            {"num_devices": 8, "puts_gradients_off": True},
            False,
        ),
    ],
)
def test_over_devices_it_is_said_that_gradients_are_put_off(action, about, is_lost):
    lost = rr.export(GRAPH.plan({"stack": action}, **about), GRAPH).lost
    assert any("put those of unrolled layers off" in one for one in lost) is is_lost


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
            "MaxText has no setting for",
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


@pytest.mark.parametrize("most_first", [True, False])
def test_maxtext_flags_are_those_of_the_unit_of_most_layers(most_first):
    def loss(w, x):
        few = lambda x: rr.stack(lambda w, x: jnp.sin(x @ w), w[:2], x, name="few")
        most = lambda x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x, name="most")
        return (few(most(x)) if most_first else most(few(x))).sum()

    graph = rr.trace(loss, jnp.ones((4, 8, 8)), jnp.ones((2, 8)))
    found = rr.export(graph.plan({"few": OFFLOAD, "most": RECOMPUTE}), graph, "maxtext")
    assert found.text.startswith("remat_policy=full")
    assert "'few'" in "; ".join(found.lost)


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


# ---- To the letter -------------------------------------------------------------------

CODE = """\
import jax
from jax.ad_checkpoint import checkpoint_name

policies = jax.checkpoint_policies
# `layer` is what it was without any remat of its own.

# Unit 'stack', 4 layers, beginning at tests/test_export.py:N (layer).
# Tag first: checkpoint_name(x, "dot_general_1") on the float32[16, 8] that \
dot_general makes within the expression at tests/test_export.py:N (layer)
# Tag first: checkpoint_name(x, "input") on the float32[16, 8] the layer is given
# layer 0
layer_0 = jax.checkpoint(
    layer,
    policy=policies.nothing_saveable,
    prevent_cse=False,
)
# layers 1 to 2
layer_1 = jax.checkpoint(
    layer,
    policy=policies.save_and_offload_only_these_names(
        names_which_can_be_saved=["dot_general_1"],
        names_which_can_be_offloaded=["input", "qkv_proj"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
    prevent_cse=False,
)
# layer 3
layer_3 = layer  # as it is: unwrapped keeps less than everything_saveable"""


def test_the_code_tells_runs_tags_and_policies_in_order():
    moved = RECOMPUTE(save=["dot_general_1"], offload=["qkv_proj", "input"])
    found = exported([RECOMPUTE, moved, moved, SAVE])
    assert re.sub(r"export\.py:\d+", "export.py:N", found.text) == CODE
    assert found.lost == (
        "unit 'stack': one scan whose layers differ: write a scan for each run; "
        "slicing its stacked weights copies them, which `rr.apply` does not",
    )
    again = exported(RECOMPUTE)
    assert "# all layers\nlayer = jax.checkpoint(" in again.text
    assert again.lost == ()
    assert "Tag first" not in again.text
    assert "checkpoint_name" not in again.text


@pytest.mark.parametrize(
    ("reasons", "sentences"),
    [
        ([], ()),
        ([("it", "", ())], ("it",)),
        ([("it", "u", ()), ("it", "v", ()), ("it", "u", ())], ("units 'u', 'v': it",)),
        ([("{names} go", "u", ["a"]), ("{names} go", "", "b")], ("unit 'u': a, b go",)),
        ([("b", "", ()), ("a", "", ())], ("b", "a")),
        ([("{names} go", "", [*"abcd"])], ("a, b, c, d go",)),
        ([("{names} go", "", [*"abcde"])], ("a, b, c, d and 1 more go",)),
    ],
)
def test_a_reason_is_told_once_with_all_units_and_names(reasons, sentences):
    lost = Lost()
    for reason in reasons:
        lost.add(*reason)
    assert lost.sentences() == sentences


def made(*values, operations, outputs, residuals):
    """A unit by hand: of each value its name, its size and whether it has a tag."""
    named = [
        Value(name, given, (1,), "float32", size, "input" if name == "x" else "made")
        for name, size, given in values
    ]
    ops = [
        Operation(kind, inputs, results, 1, kind == "dot_general", effectful, source)
        for kind, inputs, results, effectful, source in operations
    ]
    about = {"weight_bytes": 0, "forward_flops": 1, "backward_flops": 1}
    return Unit(
        *("u", "scan", "", 2),
        tuple(named),
        tuple(ops),
        residuals,
        outputs=outputs,
        **about,
    )


HERE = "mine.py:3 (layer)"
CALLED = f"lib.py:7 (dense), called at {HERE}"


@pytest.mark.parametrize(
    ("kind", "size", "effect", "residuals", "tag"),
    [
        # What is made of one alone stands in for it where it has no place itself.
        ("neg", 4, "", (0,), "n1"),
        ("neg", 2, "", (0,), "n1"),
        ("neg", 5, "", (0,), None),  # it takes more
        ("neg", 4, "", (0, 1), None),  # the derivative reads the first
        ("dot_general", 4, "", (0,), None),  # is made at a cost
        ("neg", 4, "it draws", (0,), None),
    ],
)
def test_the_next_value_stands_in_for_one_without_a_place(
    kind, size, effect, residuals, tag
):
    unit = made(
        *(("x", 4, False), ("n0", 4, False), ("n1", size, False)),
        operations=[("sin", (0,), (1,), "", ""), (kind, (1,), (2,), effect, HERE)],
        outputs=(2,),
        residuals=residuals,
    )
    found = Places(unit).tag("n0")
    assert (found and found.name) == tag


@pytest.mark.parametrize("given", [True, False])
def test_a_tag_that_is_there_comes_before_what_splits_no_expression(given):
    unit = made(
        *(("x", 4, False), ("n0", 4, given), ("n1", 4, False)),
        operations=[("sin", (0,), (1,), "", HERE), ("neg", (1,), (2,), "", HERE)],
        outputs=(2,),
        residuals=(0,),
    )
    found = Places(unit).tag("n0")
    assert (found.name, found.given) == (("n0", True) if given else ("n1", False))
    assert found.array == "float32[1]"
    assert not found.is_within
    assert given or found.where == f"that neg makes at {HERE}"


@pytest.mark.parametrize(
    ("user", "where"),
    [
        ("lib.py:9 (norm)", f"that the call at {HERE} returns"),
        (f"lib.py:9 (norm), called at {HERE}", None),  # goes on inside of it
        ("mine.py:5 (layer)", f"that the call at {HERE} returns"),
    ],
)
def test_what_a_call_returns_is_what_nothing_in_it_takes(user, where):
    unit = made(
        *(("x", 4, False), ("n0", 4, False), ("n1", 8, False)),
        operations=[("sin", (0,), (1,), "", CALLED), ("neg", (1,), (2,), "", user)],
        outputs=(2,),
        residuals=(0, 1),
    )
    found = Places(unit).tag("n0")
    assert (found and found.where) == where


def test_what_the_derivative_makes_has_no_tag_and_results_may_be_kept_otherwise():
    unit = made(
        *(("x", 4, False), ("n0", 4, False), ("n1", 4, False)),
        operations=[("tanh", (0,), (1,), "", HERE), ("cos", (0,), (2,), "", HERE)],
        outputs=(1,),
        residuals=(1, 2),
    )
    places = Places(unit)
    assert places.of_the_derivative == {"n1"}
    assert places.tag("n1") is None
    assert (places.kept_otherwise("n0"), places.kept_otherwise("n1")) == ("tanh", "")
    assert places.kept_otherwise("x") == ""
    assert places.tag("x").where == "the layer is given"


@pytest.mark.parametrize(
    ("tag", "flags", "lost"),
    [
        ("qkv_proj", "decoder_layer_input=device qkv_proj=device", ""),
        ("up", "remat_policy=full", "MaxText has no setting for 'n0'; it recomputes"),
    ],
)
def test_maxtext_has_settings_for_tags_that_stand_in(tag, flags, lost):
    unit = made(
        *(("x", 4, False), ("n0", 4, False), (tag, 4, True)),
        operations=[("sin", (0,), (1,), "", ""), ("neg", (1,), (2,), "", HERE)],
        outputs=(2,),
        residuals=(0, 2),
    )
    graph = Graph((unit,), "", "")
    found = rr.export(graph.plan({"u": RECOMPUTE(save=["n0"])}), graph, "maxtext")
    assert found.text.endswith(flags)
    assert lost in "; ".join(found.lost)


@pytest.mark.parametrize(
    ("source", "place"),
    [("", ""), ("a.py:1 (f)", "a.py:1 (f)"), (CALLED, HERE)],
)
def test_of_calls_the_users_own_line_counts(source, place):
    assert users_place(source) == place
