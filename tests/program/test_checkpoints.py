"""An author's `jax.checkpoint` is a proposal: it hides no unit, and may be kept."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

import revremat as rr
from revremat import RECOMPUTE, SAVE

LAYERS, WIDTH, ROWS = 4, 8, 6
POLICIES = jax.checkpoint_policies

plainly = lambda f: f


def layer(w, x):
    return x + jnp.tanh(jnp.sin(x @ w["up"])) @ w["down"]


def over(run):
    """A loss of stacked weights, from how all layers are run."""
    return lambda w, x: jnp.square(run(w, x)).mean()


def at(w, k):
    return jax.tree.map(lambda a: a[k], w)


def scanned(w, x):
    return jax.lax.scan(lambda x, w: (layer(w, x), None), x, w)[0]


def in_turn(layers):
    def run(w, x):
        for k in range(LAYERS):
            x = layers[k % len(layers)](at(w, k), x)
        return x

    return run


def repeated(run, times=3):
    """In a loop of which every iteration runs all layers."""

    def loop(w, x):
        return jax.lax.scan(lambda x, _: (run(w, x), None), x, None, length=times)[0]

    return loop


def nested(step, lengths, wrap, x):
    """A loop over time as loops in checkpointed bodies of loops."""
    if len(lengths) == 1:
        return jax.lax.scan(step, x, None, length=lengths[0])[0]
    body = wrap(lambda x, _: (nested(step, lengths[1:], wrap, x), None))
    return jax.lax.scan(body, x, None, length=lengths[0])[0]


def in_time(*lengths):
    def make(wrap):
        step = lambda w: lambda x, _: (x + jnp.tanh(jnp.sin(x @ w["up"][0, :, :8])), ())
        return over(lambda w, x: nested(step(w), lengths, wrap, x))

    return make


def with_loop(w, x):
    """A layer with a loop inside."""
    more = lambda x, _: (x + jnp.sin(jnp.sin(x)), None)
    return jax.lax.scan(more, layer(w, x), None, length=3)[0]


def half(wrap):
    inner = wrap(lambda w, x: jnp.tanh(jnp.sin(x @ w)))
    return lambda w, x: x + inner(w["up"], x) @ w["down"]


def both_halves(wrap):
    up = wrap(lambda w, x: jnp.tanh(jnp.sin(x @ w)))
    down = wrap(lambda w, x, h: x + h @ w)
    return lambda w, x: down(w["down"], x, up(w["up"], x))


def in_a_branch(wrap):
    layers = wrap(scanned)
    pick = lambda w, x: jax.lax.cond(x.sum() > 0, layers, lambda w, x: 2 * x, w, x)
    return over(pick)


def saving(policy):
    return lambda wrap: (
        plainly if wrap is plainly else functools.partial(jax.checkpoint, policy=policy)
    )


dots = saving(POLICIES.dots_saveable)
nothing_cse = lambda f: jax.checkpoint(f, prevent_cse=False)

PROGRAMS = {
    "two levels of loops": in_time(4, 3),
    "three levels of loops": in_time(2, 3, 2),
    "around a scan": lambda wrap: over(wrap(scanned)),
    "around a scan in a loop": lambda wrap: over(repeated(wrap(scanned))),
    "around a loop in a loop": lambda wrap: over(wrap(repeated(scanned))),
    "twice around": lambda wrap: over(repeated(wrap(wrap(scanned)))),
    "with a policy": lambda wrap: over(repeated(dots(wrap)(scanned))),
    "around all layers": lambda wrap: over(wrap(in_turn([layer]))),
    "around all and each": lambda wrap: over(wrap(in_turn([wrap(layer)]))),
    "around every second layer": lambda wrap: over(in_turn([layer, wrap(layer)])),
    "around half of each": lambda wrap: over(in_turn([half(wrap)])),
    "around both halves": lambda wrap: over(in_turn([both_halves(wrap)])),
    "around layers with loops": lambda wrap: over(in_turn([wrap(with_loop)])),
    "in a jitted function": lambda wrap: over(jax.jit(wrap(jax.jit(scanned)))),
    "in a branch": in_a_branch,
}

FAST = {"two levels of loops", "around a scan", "around every second layer"}


def some(names, fast):
    return [n if n in fast else pytest.param(n, marks=pytest.mark.slow) for n in names]


def arguments(make=lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)):
    up, down = (LAYERS, WIDTH, 2 * WIDTH), (LAYERS, 2 * WIDTH, WIDTH)
    return {"up": make(*up), "down": make(*down)}, make(ROWS, WIDTH)


def numbers(*shape):
    return jnp.asarray(np.random.default_rng(sum(shape)).normal(size=shape) / 3)


def units(loss, *args, **how):
    found = rr.trace(loss, *args, **how).units
    return [(u.name, u.num_layers, u.enclosing, u.fingerprint) for u in found]


@pytest.mark.parametrize("name", PROGRAMS)
def test_units_are_those_of_the_program_without_it(name):
    make = PROGRAMS[name]
    bare = units(make(plainly), *arguments())
    assert bare
    assert units(make(jax.checkpoint), *arguments()) == bare
    assert units(make(nothing_cse), *arguments()) == bare


def linen_layers(wrap):
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            hidden = nn.Dense(2 * WIDTH)(x)
            return x + nn.Dense(WIDTH)(jnp.tanh(jnp.sin(hidden))), None

    across = {"variable_axes": {"params": 0}, "split_rngs": {"params": True}}
    model = (nn.remat if wrap else lambda m: m)(
        nn.scan(Layer, **across, length=LAYERS)
    )()
    x = arguments()[1]
    params = jax.eval_shape(model.init, jax.random.key(0), x, None)
    return over(lambda w, x: model.apply(w, x, None)[0]), params, x


def nnx_layers(wrap):
    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
            self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def one(module, x):
        return x + module.down(jnp.tanh(jnp.sin(module.up(x))))

    layers = nnx.vmap(Layer)(nnx.Rngs(0).split(LAYERS))
    run = nnx.scan(
        nnx.remat(one) if wrap else one, in_axes=(0, nnx.Carry), out_axes=nnx.Carry
    )
    return over(run), layers, arguments()[1]


def equinox_layers(wrap):
    run = eqx.filter_checkpoint(scanned) if wrap else scanned
    return over(repeated(run)), *arguments()


@pytest.mark.parametrize("layers", [linen_layers, nnx_layers, equinox_layers])
def test_units_are_those_without_a_library_s_remat(layers):
    """What they compute may differ in what modules give back."""
    graphs = [rr.trace(*layers(wrap=wrap)) for wrap in (False, True)]
    bare, remat = (
        [(u.name, u.num_layers, u.enclosing, u.plain_bytes) for u in graph.units]
        for graph in graphs
    )
    assert bare
    assert remat == bare


def test_regions_around_equal_layers_are_those_layers():
    (unit,) = rr.trace(over(in_turn([jax.checkpoint(layer)])), *arguments()).units
    assert (unit.name, unit.kind, unit.num_layers) == ("checkpoint_0", "checkpoint", 4)
    (bare,) = rr.trace(over(in_turn([layer])), *arguments()).units
    assert unit.fingerprint == bare.fingerprint
    assert [v.name for v in unit.values] == [v.name for v in bare.values]


def test_regions_that_are_not_alike_are_layers_where_nothing_else_is():
    """Beside layers that are, in the same program."""
    widths = (2, 3, 5)

    def loss(w, x):
        for k, n in enumerate(widths):
            one = jax.checkpoint(lambda w, x, n=n: jnp.tanh(jnp.tile(x, n) @ w))
            x = one(w["odd"][k], x)
        return jnp.square(jax.checkpoint(in_turn([layer]))(w["even"], x)).mean()

    even, x = arguments()
    shaped = lambda n: jax.ShapeDtypeStruct((n * WIDTH, WIDTH), jnp.float32)
    graph = rr.trace(loss, {"even": even, "odd": list(map(shaped, widths))}, x)
    assert [(u.kind, u.num_layers) for u in graph.units] == [
        ("checkpoint", 1),
        ("checkpoint", 1),
        ("checkpoint", 1),
        ("repeat", LAYERS),
    ]


WIDTHS = (8, 16, 40, 12, 20, 28)


def unequal(wrap, around=plainly, layers=lambda k: True):
    """Layers of which no two are alike."""
    one = lambda w, x: jnp.sin(jnp.tanh(jnp.sin(x @ w)))
    pick = lambda k: wrap(one) if layers(k) else one

    def run(ws, x):
        for k, w in enumerate(ws):
            x = pick(k)(w, x)
        return x

    shaped = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    ends = zip(WIDTHS, (*WIDTHS[1:], 8), strict=True)
    return over(around(run)), list(map(shaped, *zip(*ends, strict=True))), shaped(64, 8)


@pytest.mark.parametrize(
    "how",
    [
        {"wrap": jax.checkpoint},
        {"wrap": jax.checkpoint, "layers": lambda k: k % 2},
        {"wrap": jax.checkpoint, "layers": lambda k: k < 2},
        {"wrap": plainly, "around": jax.checkpoint},
        {"wrap": jax.checkpoint, "around": jax.checkpoint},
    ],
)
def test_layers_that_are_not_alike_are_segments_all_the_same(how):
    bare = units(*unequal(plainly))
    assert len(bare) > 3
    assert units(*unequal(**how)) == bare


# Plans --------------------------------------------------------------------------------


def gradients(loss, *args):
    return jax.tree.leaves(jax.jit(jax.grad(loss))(*args))


def assert_equal(found, expected):
    for a, b in zip(found, expected, strict=True):
        assert np.abs(a - b).max() <= 1e-10 * max(1e-30, np.abs(b).max())


def plans_of(graph):
    """Each unit alone, by turns and all the same, and the outermost ones together."""
    turns = lambda unit: [(RECOMPUTE, SAVE)[k % 2] for k in range(unit.num_layers)]
    yield {}
    for unit in graph.units:
        yield {unit.name: RECOMPUTE}
        if not (unit.enclosing and not graph[unit.enclosing].is_loop):
            yield {unit.name: turns(unit)}
    yield {u.name: RECOMPUTE for u in graph.units if not u.enclosing}


@pytest.mark.every_commit("two levels of loops", "around every second layer")
@pytest.mark.parametrize("name", some(PROGRAMS, FAST))
def test_any_plan_gives_the_same_gradients(name):
    with jax.enable_x64(True):
        loss, args = PROGRAMS[name](jax.checkpoint), arguments(numbers)
        expected = gradients(PROGRAMS[name](plainly), *args)
        graph = rr.trace(loss, *args)
        for actions in plans_of(graph):
            applied = rr.apply(loss, graph.plan(actions))
            assert_equal(gradients(applied, *args), expected)


def regions_in(loss, *args):
    return str(jax.make_jaxpr(loss)(*args)).count("prevent_cse=")


def two_parts(w, x):
    """Layers and a loop over time, each in a checkpoint of its own."""
    x = jax.checkpoint(in_turn([layer]))(w, x)
    more = lambda x: nested(lambda x, _: (jnp.sin(jnp.sin(x)), ()), (4,), plainly, x)
    return jnp.square(jax.checkpoint(more)(x)).mean()


@pytest.mark.parametrize(
    ("decided", "left"), [((), 2), (("repeat_0",), 1), (("repeat_0", "scan_0"), 0)]
)
def test_what_a_plan_says_nothing_of_stays_as_it_was(decided, left):
    graph = rr.trace(two_parts, *arguments())
    assert [unit.name for unit in graph.units] == ["repeat_0", "scan_0"]
    planned = rr.apply(two_parts, graph.plan(dict.fromkeys(decided, SAVE)))
    assert regions_in(planned, *arguments()) == left


@pytest.mark.slow
def test_casts_of_weights_in_a_region_that_stays_do_no_harm():
    """They stand before all else in a program whose other checkpoints are dissolved."""

    def loss(w, x):
        cast = lambda a: a.astype(jnp.float64)
        first = jax.checkpoint(lambda w, x: (jnp.sin(x @ cast(w)), cast(w)))
        x = jax.checkpoint(in_turn([layer]))(w, x)
        y, again = first(w["up"][0], x)
        return jnp.square(jax.checkpoint(in_turn([layer]))(w, x)).mean() + (
            jnp.square(y @ again.T).mean()
        )

    with jax.enable_x64(True):
        w, x = arguments(numbers)
        w = jax.tree.map(lambda a: a.astype(jnp.float32), w)
        graph = rr.trace(loss, w, x)
        for unit in graph.units:
            planned = rr.apply(loss, graph.plan({unit.name: RECOMPUTE}))
            found, expected = gradients(planned, w, x), gradients(loss, w, x)
            for a, b in zip(found, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


# Kept ---------------------------------------------------------------------------------


def to_host(x, w):
    return layer(w, checkpoint_name(x, "h")), None


sends = functools.partial(
    jax.checkpoint,
    policy=POLICIES.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["h"],
        offload_src="device",
        offload_dst="pinned_host",
    ),
    prevent_cse=False,
)


def encoder_decoder(wrap):
    """Layers in a checkpointed loop, then unrolled ones."""

    def loss(w, x):
        x = jax.lax.scan(wrap(to_host), x, w)[0]
        return jnp.square(in_turn([layer])(w, x)).mean()

    return loss


KEPT = {
    "a loop with one inside": (encoder_decoder(sends), ["repeat_0"], 1),
    "one around a loop": (two_parts, [], 2),
    "around equal layers": (over(in_turn([jax.checkpoint(layer)])), [], 4),
    "in a loop in a loop": (over(repeated(jax.checkpoint(scanned))), [], 1),
    "in a jitted function": (over(jax.jit(jax.checkpoint(scanned))), [], 1),
    "none": (over(scanned), ["scan_0"], 0),
}


@pytest.mark.parametrize("name", KEPT)
def test_checkpoints_stay_where_that_is_asked_for(name):
    loss, names, number = KEPT[name]
    graph = rr.trace(loss, *arguments(), keep_checkpoints=True)
    assert [unit.name for unit in graph.units] == names
    plan = graph.plan(dict.fromkeys(names, RECOMPUTE))
    plan = rr.Plan.from_json(plan.to_json())
    assert plan.keep_checkpoints
    assert regions_in(rr.apply(loss, plan), *arguments()) == number


def test_what_goes_to_the_host_still_does():
    with jax.enable_x64(True):
        loss, args = KEPT["a loop with one inside"][0], arguments(numbers)
        graph = rr.trace(loss, *args, keep_checkpoints=True)
        planned = rr.apply(loss, graph.plan({"repeat_0": RECOMPUTE}))
        text = str(jax.make_jaxpr(jax.grad(planned))(*args))
        assert "<host>" in text
        assert_equal(gradients(planned, *args), gradients(loss, *args))


def test_graphs_remember_that_checkpoints_stay():
    graph = rr.trace(two_parts, *arguments(), keep_checkpoints=True)
    assert type(graph).from_json(graph.to_json()) == graph


@pytest.mark.every_commit("fit")
@pytest.mark.parametrize("door", [rr.search, rr.fit])
def test_a_search_leaves_them_if_asked(door):
    about = {"budget": "1MiB", "target": "cpu:1", "most_compiles": 6}
    found = door(encoder_decoder(sends), *arguments(), keep_checkpoints=True, **about)
    plan = getattr(found, "plan", found)
    assert plan.keep_checkpoints
    assert "scan_0" not in plan.actions


def test_a_search_says_if_that_leaves_nothing():
    loss = KEPT["around equal layers"][0]
    with pytest.raises(rr.UserError, match="keep_checkpoints=False"):
        rr.fit(loss, *arguments(), budget="1MiB", target="cpu:1", keep_checkpoints=True)
