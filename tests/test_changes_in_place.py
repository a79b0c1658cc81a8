"""A loss may change what it is given: under a plan the changes are the same."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import revremat as rr
from revremat.program.nnx import Stack

WIDTH, ROWS, LAYERS = 4, 8, 4


class Block(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(WIDTH, WIDTH, rngs=rngs)
        self.norm = nnx.BatchNorm(WIDTH, rngs=rngs)
        self.drop = nnx.Dropout(0.4, rngs=rngs)

    def __call__(self, x):
        return x + jnp.tanh(self.drop(self.norm(self.linear(x))))


class Listed(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


class Scanned(nnx.Module):
    def __init__(self, rngs):
        @nnx.split_rngs(splits=LAYERS)
        @nnx.vmap(in_axes=0, out_axes=0)
        def make(rngs):
            return Block(rngs)

        self.blocks = make(rngs)

    def __call__(self, x):
        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, length=LAYERS)
        def run(x, block):
            return block(x)

        return run(x, self.blocks)


@pytest.fixture
def x():
    return jax.random.normal(jax.random.key(0), (ROWS, WIDTH))


def loss(model, x):
    return (model(x) ** 2).mean()


def state_of(*modules):
    leaves = jax.tree.leaves([nnx.state(m) for m in modules])
    is_key = lambda a: jnp.issubdtype(a.dtype, jax.dtypes.prng_key)
    return [np.asarray(jax.random.key_data(a) if is_key(a) else a) for a in leaves]


def trained(loss, model, x, transform=lambda f: f, steps=5):
    """Values, and the state of model and optimizer, after some steps."""
    optimizer = nnx.Optimizer(model, optax.sgd(1e-2, momentum=0.9), wrt=nnx.Param)

    @transform
    def step(model, optimizer, x):
        value, gradients = nnx.value_and_grad(loss)(model, x)
        optimizer.update(model, gradients)
        return value

    values = [float(step(model, optimizer, x)) for _ in range(steps)]
    return values, state_of(model, optimizer)


def assert_equal(found, expected, rtol=1e-5):
    np.testing.assert_allclose(found[0], expected[0], rtol=rtol)
    assert len(set(found[0])) == len(found[0])  # another mask every time
    assert len(found[1]) == len(expected[1])
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


@functools.cache
def unplanned(make):
    x = jax.random.normal(jax.random.key(0), (ROWS, WIDTH))
    return trained(loss, make(nnx.Rngs(0)), x, nnx.jit)


ACTIONS = {
    "save": [rr.SAVE],
    "recompute": [rr.RECOMPUTE],
    "offload": [rr.OFFLOAD],
    "mixed": [rr.SAVE, rr.RECOMPUTE, rr.OFFLOAD, rr.RECOMPUTE],
    "unrolled": [rr.RECOMPUTE(unroll=True)],
}


@pytest.mark.every_commit(
    "Scanned-mixed",
    "Scanned-unrolled",
    "Listed-recompute",
)
@pytest.mark.parametrize(
    "actions",
    [name for name in ACTIONS],
)
@pytest.mark.parametrize("make", [Listed, Scanned])
def test_five_steps_are_those_without_a_plan(make, actions, x):
    model = make(nnx.Rngs(0))
    graph = rr.trace(loss, model, x)
    if make is Listed and actions == "unrolled":
        pytest.skip("there is no loop")
    (unit,) = graph.units
    assert unit.num_layers == LAYERS
    given = ACTIONS[actions]
    plan = graph.plan({unit.name: given[0] if len(given) == 1 else given})
    assert_equal(trained(rr.apply(loss, plan), model, x, nnx.jit), unplanned(make))


@pytest.mark.every_commit("Scanned")
@pytest.mark.parametrize("make", [Listed, Scanned])
def test_two_steps_are_those_without_a_plan_where_nothing_is_jitted(make, x):
    model, same = make(nnx.Rngs(0)), make(nnx.Rngs(0))
    graph = rr.trace(loss, model, x)
    planned = rr.apply(loss, graph.plan({graph.units[0].name: rr.RECOMPUTE}))
    found = trained(planned, model, x, steps=2)
    assert_equal(found, trained(loss, same, x, nnx.jit, steps=2))


class Coupled(nnx.Module):
    """Layers that know their inverse, behind a dropout."""

    def __init__(self, rngs):
        linear = lambda rngs: nnx.Linear(WIDTH // 2, WIDTH // 2, rngs=rngs)
        self.drop = nnx.Dropout(0.4, rngs=rngs)
        self.stack = Stack(couple(linear), LAYERS, rngs=rngs, inverse=uncouple)

    def __call__(self, x):
        return self.stack(self.drop(x))


def couple(make):
    class Layer(nnx.Module):
        def __init__(self, rngs):
            self.linear = make(rngs)

        def __call__(self, x):
            a, b = jnp.split(x, 2, axis=-1)
            return jnp.concatenate([b + jnp.tanh(self.linear(a)), a], axis=-1)

    return Layer


def uncouple(layer, y):
    b, a = jnp.split(y, 2, axis=-1)
    return jnp.concatenate([a, b - jnp.tanh(layer.linear(a))], axis=-1)


@pytest.mark.parametrize("actions", [rr.INVERT, [rr.INVERT, rr.SAVE] * (LAYERS // 2)])
def test_inverted_layers_change_what_the_loss_does(actions, x):
    model = Coupled(nnx.Rngs(0))
    plan = rr.trace(loss, model, x).plan({"stack": actions})
    found = trained(rr.apply(loss, plan), model, x, nnx.jit)
    assert_equal(found, trained(loss, Coupled(nnx.Rngs(0)), x, nnx.jit))


class Odd(nnx.Module):
    """What is shared, a counter of Python's, values in plain attributes."""

    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(3)])
        self.again, self.first = self.blocks, self.blocks[0].linear
        self.calls, self.extra = 0, nnx.data({"n": jnp.zeros(()), "log": []})

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x + self.first(x)


class Graphs(nnx.Module, pytree=False):
    """No tree: a list of Python's, and itself."""

    def __init__(self, rngs):
        self.blocks, self.me = [Block(rngs) for _ in range(3)], self

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def counts(model, x):
    model.calls += 1
    return loss(model, x)


def sets_attributes(model, x):
    model.hidden = nnx.data(x.mean())
    model.extra["n"] = model.extra["n"] + 1
    model.extra["log"].append(x.sum())
    return loss(model, x)


def sows(model, x):
    model.h = nnx.Intermediate(x)
    return loss(model, x), nnx.pop(model, nnx.Intermediate)


def with_metrics(model, metrics, x):
    value = loss(model, x)
    metrics.update(values=value)
    return value


def with_rngs(model, rngs, x):
    return loss(model, x + rngs.noise.normal(x.shape))


odd = lambda: (Odd(nnx.Rngs(0)),)
KINDS = {
    "shared": (odd, loss),
    "graph only": (lambda: (Graphs(nnx.Rngs(0)),), loss),
    "counter": (odd, counts),
    "attributes": (odd, sets_attributes),
    "sown and popped": (odd, sows),
    "jitted loss": (odd, nnx.jit(loss)),
    "metrics": (lambda: (*odd(), nnx.metrics.Average()), with_metrics),
    "rngs": (lambda: (*odd(), nnx.Rngs(noise=1)), with_rngs),
}


@pytest.mark.every_commit("rngs", "shared")
@pytest.mark.parametrize("kind", KINDS)
def test_modules_are_as_the_loss_leaves_them(kind, x):
    make, f = KINDS[kind]
    left, right = make(), make()
    graph = rr.trace(f, *left, x)
    planned = rr.apply(f, graph.plan({graph.units[0].name: rr.RECOMPUTE}))
    for args, g in ((left, f), (right, planned)):
        nnx.jit(lambda *args, g=g: nnx.value_and_grad(g, has_aux=f is sows)(*args))(
            *args, x
        )
    assert all(
        type(a) is type(b) and np.allclose(a, b, rtol=1e-5)
        for a, b in zip(state_of(*left), state_of(*right), strict=True)
    )
    assert nnx.graphdef(left[0]) == nnx.graphdef(right[0]) or kind == "attributes"


@pytest.mark.parametrize("setting", [{"ref": True}, {"hijax": True}])
def test_variables_that_change_as_the_program_runs_are_refused(setting, x):
    with nnx.var_defaults(**setting):
        model = nnx.Linear(WIDTH, WIDTH, rngs=nnx.Rngs(0))
        with pytest.raises(rr.UserError, match=r"argument 0\.\w+ is a Flax variable"):
            rr.trace(loss, model, x)


@pytest.mark.parametrize("setting", [nnx.set_graph_mode, nnx.set_graph_updates])
def test_other_modes_of_flax(setting, x):
    class Normed(nnx.Module):
        def __init__(self, rngs):
            many = [nnx.Linear(WIDTH, WIDTH, rngs=rngs) for _ in range(3)]
            self.many, self.norm = nnx.List(many), nnx.BatchNorm(WIDTH, rngs=rngs)

        def __call__(self, x):
            for one in self.many:
                x = jnp.tanh(one(x))
            return self.norm(x)

    with setting(False):
        pair = [(Normed(nnx.Rngs(0)), nnx.Rngs(noise=1)) for _ in range(2)]
        graph = rr.trace(with_rngs, *pair[1], x)
        planned = rr.apply(with_rngs, graph.plan({"repeat_0": rr.RECOMPUTE}))
        for args, f in zip(pair, (with_rngs, planned), strict=True):
            nnx.jit(lambda *args, f=f: nnx.value_and_grad(f)(*args))(*args, x)
        for a, b in zip(*(state_of(*args) for args in pair), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.slow
def test_tracing_and_searching_leave_modules_alone(x):
    model = Listed(nnx.Rngs(0))
    abstract = nnx.eval_shape(lambda: Listed(nnx.Rngs(0)))
    before = state_of(model)
    prints = [rr.trace(loss, m, x).fingerprint for m in (model, abstract)]
    rr.measure(rr.Problem(loss, (abstract, x)), target="cpu:1")
    nnx.value_and_grad(loss)(model, x)
    prints.append(rr.trace(loss, model, x).fingerprint)
    assert len(set(prints)) == 1  # counts are values
    is_shape = lambda a: isinstance(a, jax.ShapeDtypeStruct)
    assert all(map(is_shape, jax.tree.leaves(nnx.state(abstract))))
    assert int(model.blocks[0].drop.rngs.count[...]) == 1
    assert len(before) == len(state_of(model))


def test_a_step_is_measured_with_the_changes_of_its_modules(x):
    model = Listed(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    def step(model, optimizer, x):
        value, gradients = nnx.value_and_grad(loss)(model, x)
        optimizer.update(model, gradients)
        return value

    found = rr.measure(step, model, optimizer, x, target="cpu:1", donate=(0, 1))
    params = 4 * sum(a.size for a in jax.tree.leaves(nnx.state(model, nnx.Param)))
    assert found.memory.alias_bytes > 3 * params  # with both moments
    assert int(model.blocks[0].drop.rngs.count[...]) == 0
