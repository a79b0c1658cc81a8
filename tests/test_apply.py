"""apply: the same loss and gradients, other residuals; refusals that say why."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import revremat as rr
from revremat import INVERT, OFFLOAD, RECOMPUTE, SAVE, UserError
from revremat.program.nnx import Stack

LAYERS, WIDTH, BATCH = 4, 8, 4


def layer(w, x):
    return x + rr.name(jnp.tanh(x @ w["a"]), "hidden") @ w["b"]


def scanned(w, x):
    return jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)[0].sum()


def arguments(layers=LAYERS, width=WIDTH):
    rng = np.random.default_rng(0)
    normal = lambda *shape: jnp.asarray(rng.normal(size=shape) / 3, jnp.float32)
    w = {"a": normal(layers, width, width), "b": normal(layers, width, width)}
    return w, normal(BATCH, width)


def assert_same_gradient(loss, planned, *args, rtol=1e-5):
    expected = jax.jit(jax.value_and_grad(loss))(*args)
    found = jax.jit(jax.value_and_grad(planned))(*args)
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())


MIXED = [SAVE, RECOMPUTE, RECOMPUTE(save=["hidden"]), OFFLOAD]


def by_block(w, x):
    one = rr.block(layer, "layer")
    for k in range(LAYERS):
        x = one(jax.tree.map(lambda a, k=k: a[k], w), x)
    return x.sum()


def by_hand(w, x):
    for k in range(LAYERS):
        x = layer(jax.tree.map(lambda a, k=k: a[k], w), x)
    return x.sum()


def of_two_kinds(w, x):
    """The unit's layers do not follow one another."""
    one = rr.block(layer, "layer")
    for k in range(LAYERS):
        x = jnp.sin(one(jax.tree.map(lambda a, k=k: a[k], w), x))
    return x.sum()


def in_a_branch(w, x):
    return jax.lax.cond(x[0, 0] > 5, lambda w, x: x.sum(), scanned, w, x)


def in_a_scan(w, x):
    iteration = lambda total, x: (total + scanned(w, x), None)
    return jax.lax.scan(iteration, 0.0, jnp.stack([x, 2 * x]))[0]


@pytest.mark.every_commit(
    "False-scanned-scan_0_0",
    "True-scanned-scan_0_1",
    "False-by_block-layer",
    "True-by_hand-repeat_0",
    "True-in_a_branch-cond_0/branch_0/scan_0",
    "False-in_a_scan-scan_0/scan_0",
    "True-of_two_kinds-layer",
)
@pytest.mark.parametrize(
    ("loss", "unit"),
    [
        (scanned, "scan_0"),
        (jax.jit(scanned), "scan_0"),
        (by_block, "layer"),
        (by_hand, "repeat_0"),
        (in_a_branch, "cond_0/branch_0/scan_0"),
        (in_a_scan, "scan_0/scan_0"),
        (of_two_kinds, "layer"),
    ],
)
@pytest.mark.parametrize(
    "about",
    [
        {},
        {"gradient_barrier": True},
        {"num_devices": 8},
        {"puts_gradients_off": True},
    ],
    ids=["plain", "barrier", "devices", "put off"],
)
def test_gradients_are_the_same(loss, unit, about):
    args = arguments()
    # A branch has nowhere to keep values on the host.
    actions = [SAVE if loss is in_a_branch and a == OFFLOAD else a for a in MIXED]
    plan = rr.trace(loss, *args).plan({unit: actions}, **about)
    assert_same_gradient(loss, rr.apply(loss, plan), *args)


def of_branches(*forms):
    """A loss that takes one of several branches, each a scan of another width."""

    def branch(scale):
        body = lambda x, w: (jnp.sin(jnp.tanh(x @ w["a"]) @ w["b"]) * scale, None)
        return lambda w, x: jax.lax.scan(body, x, w)[0].sum()

    def loss(w, x, which):
        return jax.lax.switch(which, [branch(float(k + 2)) for k in forms], w, x)

    return loss


@pytest.mark.parametrize(
    "planned_branches",
    [
        (0,),
        pytest.param((1,), marks=pytest.mark.slow),
        pytest.param((0, 1), marks=pytest.mark.slow),
        (0, 2),
        pytest.param((0, 1, 2), marks=pytest.mark.slow),
    ],
)
def test_in_every_branch_that_a_plan_speaks_of_layers_are_recomputed(planned_branches):
    loss, (w, x) = of_branches(0, 1, 2), arguments()
    units = [f"cond_0/branch_{k}/scan_0" for k in planned_branches]
    graph = rr.trace(loss, w, x, 0)
    plan = graph.plan(dict.fromkeys(units, RECOMPUTE))
    planned = rr.apply(loss, plan)
    (cond,) = jax.make_jaxpr(planned)(w, x, 0).jaxpr.eqns[-1:]
    ours = ["custom_vjp" in str(one) for one in cond.params["branches"]]
    assert ours == [k in planned_branches for k in range(3)]
    for which in range(3):
        assert_same_gradient(
            lambda *a, which=which: loss(*a, which),
            lambda *a, which=which: planned(*a, which),
            w,
            x,
        )


def kept_shapes(loss, *args):
    pullback = jax.eval_shape(
        lambda *a: jax.vjp(lambda w: loss(w, *a[1:]), a[0])[1], *args
    )
    return [leaf.shape for leaf in jax.tree.leaves(pullback)]


@pytest.mark.parametrize("loss", [scanned, by_block, by_hand])
def test_what_jax_keeps_is_what_the_plan_says(loss):
    """By JAX's own account: the leaves of its pullback."""
    args = arguments(width=16)
    graph = rr.trace(loss, *args)
    (unit,) = graph.units
    activations = lambda planned: sum(
        int(np.prod(shape)) * 4
        for shape in kept_shapes(planned, *args)
        if shape[-2:] == (BATCH, 16)
    )
    for actions in ([RECOMPUTE] * LAYERS, MIXED, [RECOMPUTE(save=["hidden"])] * LAYERS):
        planned = rr.apply(loss, graph.plan({unit.name: actions}))
        kept = [unit.kept(action) for action in actions]
        assert activations(planned) == sum(k.device_bytes + k.host_bytes for k in kept)


def test_a_plan_that_lies_about_what_is_kept_is_refused():
    args = arguments()
    plan = rr.trace(scanned, *args).plan({"scan_0": RECOMPUTE})
    (unit,) = plan.units
    lie = dataclasses.replace(unit, device_names=(("input", "hidden"),) * LAYERS)
    false_plan = dataclasses.replace(plan, units=(lie,))
    with pytest.raises(UserError, match="keeps input on the device, and the plan says"):
        rr.apply(scanned, false_plan)(*args)


def other_body(w, x):
    return jax.lax.scan(lambda x, w: (x @ w["a"] + x @ w["b"], None), x, w)[0].sum()


@pytest.mark.parametrize(
    ("loss", "args", "message"),
    [
        (by_block, arguments(), "it has a unit 'scan_0', this one has layer"),
        (scanned, arguments(layers=5), "it has 4 layers in unit 'scan_0', this one 5"),
        (scanned, arguments(width=9), "unit 'scan_0' computes something else"),
        (other_body, arguments(), "unit 'scan_0' computes something else"),
        (
            lambda w, x: 2 * scanned(w, x),
            arguments(),
            "the code outside of them does not",
        ),
    ],
)
def test_a_plan_for_another_program_is_refused(loss, args, message):
    plan = rr.trace(scanned, *arguments()).plan({"scan_0": MIXED})
    with pytest.raises(UserError, match=message) as caught:
        rr.apply(loss, plan)(*args)
    assert "\n" not in str(caught.value)
    assert "JAX" not in str(caught.value)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (INVERT, "cannot take INVERT: it has no inverse"),
        (SAVE(unroll=True), "unroll=True.*: it is no loop"),
        (SAVE(segment_length=2), "segment_length=2.*: it is no stack"),
        (RECOMPUTE(ahead=["hidden"]), "it is no stack"),
    ],
)
def test_an_action_written_into_a_plan_by_hand_is_refused(action, message):
    loss = lambda w, x: rr.block(layer, "alone")(
        jax.tree.map(lambda a: a[0], w), x
    ).sum()
    args = arguments()
    plan = rr.trace(loss, *args).plan({"alone": SAVE})
    unit = dataclasses.replace(plan.units[0], actions=(action,))
    by_hand = dataclasses.replace(plan, units=(unit,))
    with pytest.raises(UserError, match=f"unit 'alone' .*{message}"):
        rr.apply(loss, by_hand)(*args)


def test_a_plan_of_another_jax_that_does_not_hold_says_so():
    args = arguments()
    plan = rr.trace(scanned, *args).plan({"scan_0": RECOMPUTE})
    older = dataclasses.replace(plan, jax_version="0.1.2")
    assert_same_gradient(scanned, rr.apply(scanned, older), *args)
    with pytest.raises(UserError, match=f"JAX 0.1.2 and this is {jax.__version__}"):
        rr.apply(by_block, older)(*args)


def test_a_plan_survives_other_names_and_another_jit():
    args = arguments()
    plan = rr.trace(scanned, *args).plan({"scan_0": RECOMPUTE})
    assert_same_gradient(scanned, rr.apply(jax.jit(scanned), plan), *args)


def test_auxiliary_values_and_keywords_pass_through():
    def loss(w, x, scale=1.0):
        total = scanned(w, x) * scale
        return total, {"twice": 2 * total}

    args = arguments()
    planned = rr.apply(loss, rr.trace(loss, *args).plan({"scan_0": RECOMPUTE}))
    (total, aux), _ = jax.value_and_grad(planned, has_aux=True)(*args)
    np.testing.assert_allclose(aux["twice"], 2 * total)
    assert planned.__name__ == "loss"


def scaled(w, x, more=0.5):
    for k in range(4):
        x = x + w["scale"][k] * jnp.tanh(more * (x @ w["up"][k]))
    return x.sum()


def scaled_in_a_loop(w, x, more=0.5):
    def iteration(x, w):
        return x + w["scale"] * jnp.tanh(more * (x @ w["up"])), None

    return jax.lax.scan(iteration, x, w)[0].sum()


@pytest.mark.parametrize("loss", [scaled, scaled_in_a_loop])
def test_a_plan_holds_for_weights_that_are_typed_weakly(loss):
    """As what `jnp.full` makes of a number is, until an optimizer has changed it."""
    w = {"up": jnp.ones((4, 8, 8)) / 9, "scale": jnp.full((4, 8), 0.1)}
    weak = w, jnp.full((2, 8), 0.3), 0.7
    strong = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), weak)
    assert [a["scale"].weak_type for a, *_ in (weak, strong)] == [True, False]
    for made, used in ((strong, weak), (weak, strong)):
        graph = rr.trace(loss, *made)
        (unit,) = graph.units
        assert unit.num_layers == 4
        plan = graph.plan({unit.name: RECOMPUTE(save=["tanh_0"])})
        step = jax.value_and_grad(rr.apply(loss, plan))
        chex.assert_trees_all_close(step(*used), jax.value_and_grad(loss)(*used))


def test_weak_types_that_decide_about_dtypes_stay():
    """Half precision times a weakly typed array is half precision."""
    w = {"up": jnp.ones((4, 8, 8), jnp.bfloat16) / 9, "scale": jnp.full((4, 8), 0.1)}
    x = jnp.ones((2, 8), jnp.bfloat16)
    graph = rr.trace(scaled, w, x)
    (unit,) = graph.units
    plan = graph.plan({unit.name: RECOMPUTE})
    planned = rr.apply(scaled, plan)
    assert planned(w, x).dtype == scaled(w, x).dtype == jnp.bfloat16
    with pytest.raises(UserError, match="another program"):
        planned(jax.tree.map(lambda a: a.astype(a.dtype), w), x)


CONSTANT = np.arange(3)


@pytest.mark.parametrize(
    ("loss", "action"),
    [
        (lambda w, x: (jnp.sin(x @ w).sum(), {"rate": 0.1, "of": CONSTANT}), SAVE),
        (lambda w, x: (jnp.sin(x @ w).sum(), (CONSTANT, CONSTANT, x)), RECOMPUTE),
        (lambda w, x: (0.1, jnp.sin(x @ w)), None),
        (lambda w, x: (w[0, 0], x), None),
    ],
)
def test_what_a_loss_returns_may_be_a_constant_or_an_argument(loss, action):
    w, x = jnp.ones((8, 8)) / 9, jnp.ones((4, 8))
    graph = rr.trace(loss, w, x)
    plan = graph.plan({u.name: action for u in graph.units} if action else {})
    planned = jax.value_and_grad(rr.apply(loss, plan), has_aux=True)
    chex.assert_trees_all_close(
        planned(w, x), jax.value_and_grad(loss, has_aux=True)(w, x)
    )


def test_a_loss_without_operations_has_no_units():
    graph = rr.trace(lambda w: w, jnp.float32(2.0))
    assert graph.units == ()
    assert rr.apply(lambda w: w, graph.plan({}))(jnp.float32(2.0)) == 2.0
    with pytest.raises(UserError, match="nothing to decide"):
        rr.fit(lambda w: w, jnp.float32(2.0), budget="1MiB", target="cpu:1")


ACTIONS = [SAVE, RECOMPUTE, RECOMPUTE(segment_length=2), RECOMPUTE(unroll=True)]


@pytest.mark.parametrize("action", ACTIONS, ids=str)
def test_callbacks_of_backward_passes_run_as_often(action):
    """Those that look at gradients."""
    seen = []

    @jax.custom_vjp
    def show(x):
        return x

    def show_backward(_, g):
        jax.debug.callback(lambda size: seen.append(float(size)), jnp.abs(g).sum())
        return (g,)

    show.defvjp(lambda x: (x, None), show_backward)

    def loss(w, x):
        layer = lambda x, w: (show(jnp.sin(x @ w)), None)
        return jax.lax.scan(layer, x, w)[0].sum()

    w, x = jnp.ones((4, 8, 8)) / 9, jnp.ones((4, 8))
    plan = rr.trace(loss, w, x).plan({"scan_0": action})
    counts = []
    for one in (loss, rr.apply(loss, plan)):
        jax.block_until_ready(jax.grad(one)(w, x))
        jax.effects_barrier()
        counts.append(sorted(seen))
        seen.clear()
    np.testing.assert_allclose(*counts, rtol=1e-5)
    assert len(counts[0]) == 4


@pytest.mark.parametrize("way", [jnp.round, jnp.sign, jnp.floor, jnp.ceil])
def test_numbers_of_iterations_may_be_rounded_weights(way):
    """Nothing is differentiated through that, so the loop may iteration as often."""

    def loss(w, x):
        number = way(1.5 + 0 * jnp.abs(w).sum())

        def layer(x, w):
            iterations = jax.lax.while_loop(
                lambda k: k < number, lambda k: k + 1, 0.0 * number
            )
            return jnp.sin(x @ w) * iterations, None

        return jax.lax.scan(layer, x, w)[0].sum()

    w, x = jnp.ones((4, 8, 8)) / 9, jnp.ones((4, 8))
    plan = rr.trace(loss, w, x).plan({"scan_0": RECOMPUTE})
    chex.assert_trees_all_close(
        jax.value_and_grad(rr.apply(loss, plan))(w, x), jax.value_and_grad(loss)(w, x)
    )


def test_an_argument_may_be_given_by_its_name():
    def loss(w, x):
        return rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()

    w, x = jnp.ones((4, 8, 8)), jnp.ones((2, 8))
    planned = rr.apply(loss, rr.trace(loss, w, x).plan({"stack": rr.RECOMPUTE}))
    assert planned(w, x=x) == planned(x=x, w=w) == planned(w, x)


def test_shardings_are_kept():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    w, x = arguments()
    w = jax.device_put(w, NamedSharding(mesh, P(None, "data", "model")))
    x = jax.device_put(x, NamedSharding(mesh, P("data")))
    plan = rr.trace(scanned, w, x).plan({"scan_0": MIXED})
    assert_same_gradient(scanned, rr.apply(scanned, plan), w, x)


def test_a_reversible_stack_is_offered_its_inverse():
    def couple(w, pair):
        a, b = pair
        a = a + jnp.tanh(b @ w["a"])
        return a, b + jnp.tanh(a @ w["b"])

    def uncouple(w, pair):
        a, b = pair
        b = b - jnp.tanh(a @ w["b"])
        return a - jnp.tanh(b @ w["a"]), b

    def loss(w, x):
        a, b = rr.stack(couple, w, (x, x), inverse=uncouple)
        return (a * b).sum()

    args = arguments()
    graph = rr.trace(loss, *args)
    assert graph["stack"].invertible
    planned = rr.apply(loss, graph.plan({"stack": INVERT}))
    assert_same_gradient(loss, planned, *args, rtol=1e-4)
    kept = [s for s in kept_shapes(planned, *args) if s[-2:] == (BATCH, WIDTH)]
    assert kept.count((LAYERS, BATCH, WIDTH)) == 0


def test_layers_that_follow_one_another_may_be_computed_in_chunks():
    part = lambda a, b, x: jnp.tanh(x @ a) @ b
    mlp = rr.block(part, "mlp", split=(1, 0, None))

    def loss(ws, x):
        for a, b in ws:
            x = mlp(a, b, x)
        return (x**2).sum()

    w, x = arguments()
    ws = list(zip(w["a"], w["b"], strict=True))
    graph = rr.trace(loss, ws, x)
    (unit,) = graph.units
    assert (unit.num_layers, unit.chained) == (LAYERS, True)
    planned = rr.apply(loss, graph.plan({"mlp": RECOMPUTE(chunks=4)}))
    assert_same_gradient(loss, planned, ws, x)


def test_a_large_vocabulary_is_never_held_whole():
    vocabulary = 64

    def loss(w, h, labels):
        return rr.cross_entropy(jnp.tanh(h @ w["a"][0]), w["table"], labels)

    rng = np.random.default_rng(0)
    w, _ = arguments()
    w["table"] = jnp.asarray(rng.normal(size=(WIDTH, vocabulary)), jnp.float32)
    h = jnp.asarray(rng.normal(size=(2, 16, WIDTH)), jnp.float32)
    labels = jnp.asarray(rng.integers(-1, vocabulary, (2, 16)))
    graph = rr.trace(loss, w, h, labels)
    assert graph["head"].splits == (2, 4, 8, 16)
    planned = rr.apply(loss, graph.plan({"head": RECOMPUTE(chunks=8)}))
    assert_same_gradient(loss, planned, w, h, labels)
    text = jax.jit(jax.grad(planned)).lower(w, h, labels).as_text()
    assert "2x2x64x" in text
    assert "2x16x64x" not in text


@pytest.mark.parametrize(
    ("size", "splits"),
    [
        (1, ()),
        (2, (2,)),
        (6, (2, 6)),
        (7, (7,)),
        (12, (2, 4, 12)),
        (16, (2, 4, 8, 16)),
        (256, (2, 4, 8, 16, 32, 64, 128, 256)),
        (512, (2, 4, 8, 16, 32, 64, 128, 256)),  # no more than 256
        (257, ()),
    ],
)
def test_chunks_are_powers_of_two_or_of_one_row_each(size, splits):
    def loss(w, x):
        head = lambda w, x: jnp.tanh(x @ w).sum()
        return rr.block(head, "head", split=(None, 0))(w, x)

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    assert rr.trace(loss, array(2, 2), array(size, 2))["head"].splits == splits


@pytest.mark.parametrize("chunks", [2, 6])
def test_a_block_in_chunks_of_one_row_has_the_same_gradient(chunks):
    def loss(w, x):
        head = lambda w, x: jnp.tanh(x @ w).sum()
        return rr.block(head, "head", split=(None, 0))(w, x)

    rng = np.random.default_rng(0)
    array = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    w, x = array(WIDTH, WIDTH), array(6, WIDTH)
    plan = rr.trace(loss, w, x).plan({"head": RECOMPUTE(chunks=chunks)})
    assert_same_gradient(loss, rr.apply(loss, plan), w, x)


def test_a_block_in_chunks_may_close_over_arrays():
    shift = jnp.arange(float(WIDTH))

    def loss(w, x):
        head = lambda w, x: jnp.tanh(x @ w + shift).sum()
        return rr.block(head, "head", split=(None, 0))(w, x)

    rng = np.random.default_rng(0)
    array = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)
    w, x = array(WIDTH, WIDTH), array(8, WIDTH)
    graph = rr.trace(loss, w, x)
    assert graph["head"].splits == (2, 4, 8)
    planned = rr.apply(loss, graph.plan({"head": RECOMPUTE(chunks=4)}))
    assert_same_gradient(loss, planned, w, x)


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return x + self.dropout(self.norm(jnp.tanh(self.linear(x))))


def leaves_of(state):
    data = lambda x: (
        jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
    )
    return [np.asarray(data(leaf)) for leaf in jax.tree.leaves(state)]


@pytest.mark.parametrize("actions", [SAVE, RECOMPUTE, (SAVE, RECOMPUTE) * 2], ids=str)
def test_dropout_is_replayed_and_statistics_move_once(actions):
    _, x = arguments()

    def run(actions):
        model = Stack(Block, LAYERS, rngs=nnx.Rngs(0), actions=actions)
        gradient = nnx.jit(nnx.value_and_grad(lambda m, x: (m(x) ** 2).sum()))
        steps = [gradient(model, x) for _ in range(2)]
        return leaves_of(steps), leaves_of(nnx.state(model))

    for found, expected in zip(run(actions), run(None), strict=True):
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(b).max())


def test_a_module_stack_is_made_by_any_function_of_its_random_numbers():
    def make(rngs, width=WIDTH):
        return nnx.Linear(width, width, rngs=rngs)

    model = Stack(make, LAYERS, rngs=nnx.Rngs(0))
    assert model.layers.kernel.shape == (LAYERS, WIDTH, WIDTH)
    assert model(jnp.ones((BATCH, WIDTH))).shape == (BATCH, WIDTH)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        (lambda loss, plan: (loss, "plan.json"), "'plan.json' is no plan: write what"),
        (lambda loss, plan: (loss, None), "None is no plan"),
        (lambda loss, plan: (rr.Problem(loss, ()), plan), "a Problem is no loss"),
    ],
)
def test_what_cannot_be_applied_is_told_what_to_write(of, told):
    with pytest.raises(rr.UserError, match=told):
        rr.apply(*of(lambda x: x.sum(), rr.Plan((), program="")))
