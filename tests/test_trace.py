"""What trace finds in a program: units, residuals, names, fingerprints."""

import functools
import json

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import RECOMPUTE, SAVE, UserError

LAYERS, WIDTH, BATCH = 3, 8, 2


def layer(w, x):
    return x + rr.name(jnp.tanh(x @ w["a"]), "hidden") @ w["b"]


def scanned(w, x):
    return jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)[0].sum()


def specs(batch=BATCH, dtype=jnp.float32):
    one = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), dtype)
    return {"a": one, "b": one}, jax.ShapeDtypeStruct((batch, WIDTH), dtype)


def at(w, k):
    return jax.tree.map(lambda a: a[k], w)


def unrolled(w, x):
    for k in range(LAYERS):
        x = layer(at(w, k), x)
    return x.sum()


def checkpointed(w, x):
    for k in range(LAYERS):
        x = jax.checkpoint(layer)(at(w, k), x)
    return x.sum()


def blocks(w, x):
    for k in range(LAYERS):
        x = rr.block(layer, "layer")(at(w, k), x)
    return rr.block(lambda x: jnp.sin(x).sum(), "head")(x)


def plain(w, x):
    return layer(at(w, 0), x).sum()


def elementwise(w, x):
    """Layers without a product, which make all there is."""
    for k in range(LAYERS):
        x = x + jnp.tanh(x * w["a"][k, 0]) * jax.nn.sigmoid(x)
    return x.sum()


def mostly_a_product(w, x):
    """Three alike that make next to nothing beside one product."""
    small = x[:1, :1]
    for k in range(LAYERS):
        small = small + jnp.tanh(small * w["a"][k, 0, 0])
    return (layer(at(w, 0), x) * small).sum()


@pytest.mark.parametrize(
    ("loss", "units"),
    [
        (scanned, [("scan_0", "scan", LAYERS)]),
        (jax.jit(scanned), [("scan_0", "scan", LAYERS)]),
        (unrolled, [("repeat_0", "repeat", LAYERS)]),
        (checkpointed, [("checkpoint_0", "checkpoint", LAYERS)]),
        (blocks, [("layer", "block", LAYERS), ("head", "block", 1)]),
        (plain, [("whole_0", "whole", 1)]),
        (elementwise, [("repeat_0", "repeat", LAYERS)]),
        (mostly_a_product, [("whole_0", "whole", 1)]),
        (
            lambda w, x: scanned(w, x) + scanned(w, 2 * x),
            [("scan_0", "scan", LAYERS), ("scan_1", "scan", LAYERS)],
        ),
        (lambda w, x: rr.stack(layer, w, x).sum(), [("stack", "scan", LAYERS)]),
        (
            lambda w, x: jax.lax.cond(x[0, 0] > 0, scanned, plain, w, x),
            [("cond_0/branch_1/scan_0", "scan", LAYERS)],
        ),
    ],
)
def test_units(loss, units):
    graph = rr.trace(loss, *specs())
    assert [(u.name, u.kind, u.num_layers) for u in graph.units] == units


@pytest.mark.parametrize("loss", [scanned, unrolled, checkpointed, blocks])
def test_residuals_of_a_layer(loss):
    unit = rr.trace(loss, *specs()).units[0]
    found = {r.name: (r.num_bytes, r.recompute_flops, r.plain) for r in unit.residuals}
    size = BATCH * WIDTH
    product = 2 * size * WIDTH
    assert found == {
        "input": (4 * size, 0, True),
        "dot_general_0": (4 * size, product, False),
        "hidden": (4 * size, product + size, True),
        "one_minus_square_0": (4 * size, product + 2 * size, True),
        "dot_general_1": (4 * size, 2 * product + size, False),
    }
    assert [r.name for r in unit.residuals if r.given] == ["hidden"]


def test_what_an_action_keeps_and_recomputes():
    unit = rr.trace(scanned, *specs())["scan_0"]
    saved = lambda action: unit.kept(action).saved
    assert saved(RECOMPUTE) == ("input",)
    assert saved(SAVE) == ("input", "hidden", "one_minus_square_0")
    assert saved(RECOMPUTE(save=["hidden"])) == ("input", "hidden")
    assert unit.kept(RECOMPUTE).recomputed == (
        "dot_general",
        "tanh",
        "one_minus_square",
    )
    assert unit.kept(RECOMPUTE(save=["hidden"])).recomputed == ("one_minus_square",)
    assert unit.kept(RECOMPUTE(save=["dot_general_1"])).unused == ("dot_general_1",)
    assert unit.kept(RECOMPUTE(offload=["input"])).host_bytes == 4 * BATCH * WIDTH
    shared = lambda n: unit.kept(RECOMPUTE(segment_length=n)).device_bytes
    input_bytes = 4 * BATCH * WIDTH
    assert [shared(n) for n in (1, 2, 3)] == [input_bytes, 32, 22]  # rounded up


def test_bytes_per_device_come_from_the_caller():
    graph = rr.trace(scanned, *specs(), bytes_of=lambda aval: aval.size)
    (hidden,) = [r for r in graph["scan_0"].residuals if r.given]
    assert hidden.num_bytes == BATCH * WIDTH


def test_what_a_library_makes_is_found_where_it_was_called():
    dense = nn.Dense(WIDTH)

    def layer(w, x):
        return jnp.tanh(dense.apply(w, x))

    x = jax.ShapeDtypeStruct((2, WIDTH), jnp.float32)
    w = jax.eval_shape(dense.init, jax.random.key(0), x)
    (unit,) = rr.trace(lambda w, x: rr.block(layer, "one")(w, x).sum(), w, x).units
    found = {op.kind: op.source for op in unit.operations}
    library, here = found["dot_general"].split(", called at ")
    assert "linear.py:" in library
    assert here.endswith(".layer)")
    assert "test_trace.py:" in here
    assert found["tanh"].endswith(".layer)")
    assert "called at" not in found["tanh"]


def test_a_problem_is_traced_as_its_loss():
    assert rr.trace(rr.Problem(scanned, specs())) == rr.trace(scanned, *specs())


def renamed(w, x):
    inner = lambda p, y: y + rr.name(jnp.tanh(y @ p["z"]), "other") @ p["k"]
    return jax.lax.scan(lambda y, p: (inner(p, y), None), x, w)[0].sum()


def test_fingerprints_ignore_names_key_order_and_jit():
    w, x = specs()
    same = [
        rr.trace(scanned, w, x),
        rr.trace(jax.jit(scanned), w, x),
        rr.trace(renamed, {"z": w["a"], "k": w["b"]}, x),
    ]
    assert len({g.fingerprint for g in same}) == 1
    assert len({g.units[0].fingerprint for g in same}) == 1


@pytest.mark.parametrize(
    ("loss", "args"),
    [
        (scanned, specs(batch=4)),
        (scanned, specs(dtype=jnp.bfloat16)),
        (lambda w, x: scanned(w, x * 2) * 2, specs()),
        (unrolled, specs()),
    ],
)
def test_fingerprints_tell_programs_apart(loss, args):
    other = rr.trace(loss, *args)
    assert other.fingerprint != rr.trace(scanned, *specs()).fingerprint


@pytest.mark.parametrize("tag", ["sin_0", "dot_general_0", "dot_general_1"])
def test_a_tag_may_be_what_another_value_would_be_called(tag):
    def loss(w, x):
        once = rr.name(jnp.tanh(x @ w["a"][0]), tag)
        return (jnp.sin(once) @ w["b"][0]).sum()

    (unit,) = rr.trace(loss, *specs()).units
    named = [value.name for value in unit.values if value.role == "made"]
    assert len(set(named)) == len(named)
    assert {tag, f"{tag}_"} <= set(named)
    (given,) = (value for value in unit.values if value.given)
    assert given.name == tag
    assert rr.fit(loss, *specs(), budget="1GiB", target="cpu:1").plan.fits
    saved = rr.apply(loss, rr.trace(loss, *specs()).plan({unit.name: rr.SAVE}))
    w, x = jax.tree.map(lambda a: jnp.full(a.shape, 0.1, a.dtype), specs())
    chex.assert_trees_all_close(jax.grad(saved)(w, x), jax.grad(loss)(w, x))


@pytest.mark.parametrize("tag", ["input", "input_0", "input_1"])
def test_a_tag_may_be_what_an_input_would_be_called(tag):
    def loss(w, x):
        def layer(x, w):
            return tuple(jnp.tanh(rr.name(jnp.sin(x[0] @ w), tag)) for _ in "a") * 2

        layers = lambda x, w: (layer(x, w), None)
        return jax.lax.scan(layers, (x, x), w["a"])[0][0].sum()

    (unit,) = rr.trace(loss, *specs()).units
    (given,) = (value for value in unit.values if value.given)
    named = [v.name for v in unit.values if v.role not in ("held", "free")]
    assert (given.name, given.role) == (tag, "made")
    assert len(set(named)) == len(named)


def written_in_layers(w, x):
    for k in range(LAYERS):
        seen = jax.new_ref(jnp.zeros_like(x))
        seen[...] = x @ w["a"][k]
        x = jnp.sin(seen[...])
    return x.sum()


def written_in_a_loop(w, x):
    seen = jax.new_ref(jnp.zeros(()))

    def layer(x, w):
        seen[...] += jax.lax.stop_gradient(x).mean()
        return jnp.sin(x @ w), None

    return jax.lax.scan(layer, x, w["a"])[0].sum()


@pytest.mark.parametrize("loss", [written_in_layers, written_in_a_loop])
def test_memory_that_is_written_is_refused_by_its_line(loss):
    told = rf"test_trace.py:\d+ \({loss.__name__}\).*: what a jax.Ref holds changes"
    with pytest.raises(UserError, match=told):
        rr.trace(loss, *specs())


def test_made_up_names_do_not_depend_on_code_elsewhere():
    names = lambda loss: [r.name for r in rr.trace(loss, *specs())["scan_0"].residuals]
    more = lambda w, x: scanned(w, jnp.sin(x @ w["a"][0])) * 3
    assert names(more) == names(scanned)


def test_a_scan_that_nothing_is_differentiated_in_is_no_unit():
    def loss(w, x):
        steps = jax.lax.scan(lambda c, _: (c * 2, None), jnp.ones(3), None, length=4)[0]
        return plain(w, x) + steps.sum()

    assert [u.kind for u in rr.trace(loss, *specs()).units] == ["whole"]


def test_what_has_side_effects_is_kept_and_the_reason_given():
    def noisy(w, x):
        y = jnp.tanh(x @ w["a"])
        shape = jax.ShapeDtypeStruct(y.shape, y.dtype)
        seen = jax.experimental.io_callback(
            lambda y: y, shape, jax.lax.stop_gradient(y)
        )
        return y * seen

    loss = lambda w, x: jax.lax.scan(lambda x, w: (noisy(w, x), None), x, w)[0].sum()
    unit = rr.trace(loss, *specs())["scan_0"]
    (effectful,) = [r for r in unit.residuals if r.effectful]
    assert effectful.name == "io_callback_0"
    assert "side effects" in effectful.effectful
    assert "io_callback_0" in unit.kept(RECOMPUTE).saved
    w, x = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype) / 9, specs())
    planned = rr.apply(loss, rr.trace(loss, w, x).plan({"scan_0": RECOMPUTE}))
    found, expected = jax.grad(planned)(w, x), jax.grad(loss)(w, x)
    assert all(map(jnp.allclose, jax.tree.leaves(found), jax.tree.leaves(expected)))


def test_a_graph_comes_back_from_json():
    graph = rr.trace(blocks, *specs())
    assert rr.Graph.from_json(graph.to_json()) == graph


def test_a_graph_without_a_schema_is_of_the_first_one():
    graph = rr.trace(blocks, *specs())
    old = json.loads(graph.to_json())
    del old["schema"]
    old["choices"] = old.pop("fixed_units")
    for unit in old["units"]:
        unit["inside"] = unit.pop("enclosing")
        unit["handed_on"] = unit.pop("carried_out")
        for op in unit["operations"]:
            op["dear"] = op.pop("compute_intensive")
            op["pinned"] = op.pop("effectful")
    assert rr.Graph.from_json(json.dumps(old)) == graph


def test_a_graph_prints_its_residuals():
    text = str(rr.trace(scanned, *specs()))
    assert "scan_0 (scan, 3 layers" in text
    assert "hidden" in text


def twice(w, x):
    once = rr.name(jnp.tanh(x @ w["a"][0]), "hidden")
    return rr.name(jnp.sin(once), "hidden").sum()


def until(w, x):
    turn = lambda x: x @ w["a"][0].T @ w["a"][0]
    return jax.lax.while_loop(lambda x: x.sum() > 1, turn, x).sum()


SIZED = jax.ShapeDtypeStruct(("a", 8), jnp.float32)


@pytest.mark.parametrize(
    ("loss", "args", "message"),
    [
        (lambda w, x: x @ w["a"][0], specs(), r"not float32\[2, 8\]; take the mean"),
        (lambda w, x: x.astype(int).sum(), specs(), r"not int32\[\]"),
        (lambda w, x: {"loss": x.sum()}, specs(), "not a tree of arrays"),
        (lambda w, x: 1j * x.sum(), specs(), r"not complex64\[\]; take its real part"),
        (
            lambda w, x: x.sum(),
            specs()[:1],
            r"takes \(w, x\), and is given 1 argument$",
        ),
        (lambda w, x: x.sum(), (*specs(), 1), r"\(w, x\), and is given 3 arguments"),
        (until, specs(), r"test_trace.py:\d+ \(until\): a loop without a fixed number"),
        (lambda w, x: x.sum(), (specs()[0], SIZED), r"argument 1 has the shape \('a'"),
        (
            lambda n, x: x.sum() * n[0],
            (jnp.arange(3), jnp.ones(2)),
            "nothing to differ",
        ),
        (lambda w, x, m: x.sum(), (*specs(), "gelu"), "argument 2 is 'gelu', which"),
        (lambda w, x, m: x.sum(), (*specs(), {"n": [{1}]}), r"argument 2\['n'\]\[0\]"),
        (twice, specs(), "'hidden' tags two values"),
        (3, specs(), "a loss is a function of parameters and data; this is a int"),
        (rr.Problem(scanned, specs()), specs(), "has its own specs"),
    ],
)
def test_a_mistake_is_one_sentence(loss, args, message):
    with pytest.raises(UserError, match=message) as caught:
        rr.trace(loss, *args)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("passes", [2, 3, 4])
def test_layers_of_several_passes_are_layers_not_the_passes(passes):
    """As in a loss of pairs: the same network, on several views."""

    def network(ws, x):
        for w in ws:
            x = x + jnp.tanh(x @ w) @ w.T
        return jnp.square(x).mean()

    def loss(ws, xs):
        return sum(network(ws, x) for x in xs)

    w, x = jax.ShapeDtypeStruct((16, 16), jnp.float32), jnp.ones((4, 16))
    (unit,) = rr.trace(loss, [w] * 6, [x] * passes).units
    assert unit.num_layers == 6 * passes


def test_the_first_layer_is_one_wherever_it_first_reads_the_data():
    """A batch is cast in the midst of a layer, as what another layer gives would be."""

    def layer(w, x, condition):
        scale = jax.nn.silu(condition) @ w
        high = x.astype(jnp.float32)
        normed = (high / jnp.abs(high).max()).astype(x.dtype)
        return x + jnp.tanh(normed @ w * scale) @ w.T

    def loss(ws, x, condition):
        for w in ws:
            x = layer(w, x, condition)
        return jnp.square(x.astype(jnp.float32)).mean()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    args = ([array(16, 16)] * 4, array(4, 16), array(4, 16))
    (unit,) = rr.trace(loss, *args).units
    assert (unit.kind, unit.num_layers) == ("repeat", 4)


def test_a_scan_within_a_scan_is_a_part_of_its_layers_and_plans_speak_of_one():
    def inner(h, x):
        h = jnp.tanh(h + x)
        return h, h

    def outer(x, w):
        return jax.lax.scan(inner, x[0] @ w, x)[1] + x, None

    loss = lambda w, x: jax.lax.scan(outer, x, w)[0].sum()
    w = jax.ShapeDtypeStruct((6, 8, 8), jnp.float32)
    x = jax.ShapeDtypeStruct((5, 4, 8), jnp.float32)
    graph = rr.trace(loss, w, x)
    assert [(u.name, u.enclosing) for u in graph.units] == [
        ("scan_0", ""),
        ("scan_0/scan_0", "scan_0"),
    ]
    with pytest.raises(rr.UserError, match="is a part of every layer of unit 'scan_0'"):
        graph.plan({u.name: rr.SAVE for u in graph.units})
    both = rr.Plan(
        units=tuple(u.plan((rr.SAVE,) * u.num_layers) for u in graph.units),
        program=graph.fingerprint,
    )
    with pytest.raises(rr.UserError, match="is a part of every layer of unit 'scan_0'"):
        jax.eval_shape(rr.apply(loss, both), w, x)


def test_what_the_backward_pass_reads_whole_is_what_products_take():
    unit = rr.trace(scanned, *specs())["scan_0"]
    read = {unit.values[k].name for k in unit.read_whole} - {""}
    assert read == {"input", "hidden"}  # 1 - tanh^2 is only multiplied with
    assert [unit.values[k].name for k in unit.outputs] == ["add_0"]
    graph = rr.trace(scanned, *specs())
    assert rr.Graph.from_json(graph.to_json()) == graph


@pytest.mark.parametrize("look", [rr.trace, None], ids=["trace", "measure"])
def test_what_python_decides_by_is_to_be_bound(look):
    look = look or (lambda f, *args: rr.measure(f, *args, target="cpu:1"))
    x = jax.ShapeDtypeStruct((8,), jnp.float32)

    def by_flag(x, train):
        return (2 * x if train else x).sum()

    def by_count(x, n):
        return sum(x[k] for k in range(n))

    for loss, value in ((by_flag, True), (by_count, 3)):
        with pytest.raises(rr.UserError, match=f"argument 1 is {value}; if it is that"):
            look(loss, x, value)
        with pytest.raises(rr.UserError, match=r"argument 1\['a'\] is"):
            look(lambda x, more, loss=loss: loss(x, more["a"]), x, {"a": value})
    # Of arrays JAX says it better: it names the line.
    with pytest.raises(jax.errors.TracerBoolConversionError):
        look(by_flag, x, jnp.ones((), bool))


def down(x):
    return jax.lax.while_loop(lambda x: x.sum() > 1, lambda x: x / 2, x)


def layers_and_loops(w, x):
    for k in range(LAYERS):
        x = x + jnp.tanh(x @ w["a"][k])
    return (down(jax.lax.stop_gradient(x)) + until(w, x)).sum()


def one_unit_with_loops(w, x):
    return (down(jax.lax.stop_gradient(x)) + until(w, x)).sum()


@pytest.mark.parametrize("loss", [one_unit_with_loops, layers_and_loops])
def test_of_several_loops_the_one_without_a_backward_pass_is_named(loss):
    told = r"test_trace.py:\d+ \(until\): a loop without a fixed number"
    with pytest.raises(UserError, match=told):
        rr.fit(loss, *specs(), budget="1GiB", target="cpu:1")


def test_what_a_loss_gets_wrong_inside_is_its_own_error():
    """However its wrapper calls it."""

    def inner(setting, w, x):
        return (x @ x).sum()

    @functools.wraps(inner)
    def loss(w, x):
        return inner(1, w, x)

    with pytest.raises(TypeError, match="dot_general"):
        rr.trace(loss, *specs())


SYMBOLIC = {
    "one symbol": ("b, 4", "b"),
    "a product": ("3, 2*b", r"2\*b"),
    "a sum": ("b + 1, b", r"b \+ 1"),
}
VERBS = {
    "trace": lambda loss, x: rr.trace(loss, x),
    "measure": lambda loss, x: rr.measure(loss, x, target="cpu:1"),
    "search": lambda loss, x: rr.search(loss, x, budget="1GiB", target="cpu:1"),
    "apply": lambda loss, x: jax.eval_shape(rr.apply(loss, rr.Plan((), "")), x),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("case", SYMBOLIC)
def test_sizes_that_are_symbols_are_refused(case, verb):
    shape, named = SYMBOLIC[case]
    x = jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape), jnp.float32)
    with pytest.raises(UserError, match=f"whole numbers: write one for {named},"):
        VERBS[verb](lambda x: jnp.sin(x).sum(), x)
