"""Linen modules: F and G are ordinary ones, in a model with init and apply."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import revremat as rr
from revremat.reversible import linen, to_grid
from tests.reversible.examples import assert_close, quick_jit

X = jax.random.normal(jax.random.key(5), (8, 4))


class Map(nn.Module):
    """A dense layer with batch norm and dropout, changing width where asked."""

    outputs: int
    dropout: float = 0.3

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.BatchNorm(use_running_average=not train, momentum=0.9)(
            nn.Dense(self.outputs)(x)
        )
        return nn.Dropout(self.dropout, deterministic=not train)(jnp.tanh(x))


def block(width=4):
    return linen.RevBlock(Map(width // 2), Map(width // 2))


def sequence(**kwargs):
    return linen.RevSequence(
        [
            linen.RevParallel([block()]),
            linen.RevSilo({(0, 1): Map(6)}, {(1, 0): Map(4)}, num_inputs=1),
            linen.RevParallel([block(), block(6)]),
            linen.RevSilo({(0, 1): Map(6)}, {(1, 0): Map(4)}),
        ],
        **kwargs,
    )


class Model(nn.Module):
    """An ordinary model with a reversible part."""

    inner: nn.Module
    streams: bool = False

    @nn.compact
    def __call__(self, x, train=True):
        x = nn.Dense(4)(x)
        y = self.inner((x,) if self.streams else x, train=train)
        return jax.tree.map(lambda stream: nn.Dense(3)(stream), y)


MODELS = {
    "block": lambda: Model(block()),
    "sequence": lambda: Model(
        sequence(save_every=2, actions=(rr.SAVE, rr.INVERT, rr.INVERT, rr.RECOMPUTE)),
        streams=True,
    ),
    "scan": lambda: Model(linen.RevScan(block(), 3)),
}


class Stored(linen.RevModule):
    """Mixed in: by plain autodiff."""

    def pass_on(self, coupling, params, x, rest):
        return coupling.run(params, x, rest)


def stored(module):
    cls = type(module)
    made = type(cls.__name__, (cls,), {"pass_on": nn.nowrap(Stored.pass_on)})
    fields = {name: getattr(module, name) for name in cls.__dataclass_fields__}
    return made(**{k: v for k, v in fields.items() if k not in ("parent", "name")})


def made(model, x=X):
    """Variables, drawn by one compiled program."""
    return quick_jit(
        lambda: model.init({"params": jax.random.key(0)}, x, train=False)
    )()


def step(model, variables, x, key):
    """Loss, gradient by parameters and input, and the statistics after it."""

    def loss(params, x, state):
        y, state = model.apply(
            {"params": params, **state}, x, rngs={"dropout": key}, mutable="batch_stats"
        )
        total = sum((leaf * jnp.cos(leaf)).sum() for leaf in jax.tree.leaves(y))
        return total, state

    state = {"batch_stats": variables["batch_stats"]}
    run = quick_jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    return run(variables["params"], x, state)


@pytest.mark.every_commit("scan", "block")
@pytest.mark.parametrize(
    "name",
    [name for name in MODELS],
)
def test_gradients_and_state_are_those_of_plain_autodiff(name, float64):
    model = MODELS[name]()
    wide = lambda a: a.astype(jnp.float64)
    variables, x = jax.tree.map(wide, (made(model), X))
    plain = model.clone(inner=stored(model.inner))
    found, wanted = (
        step(one, variables, x, jax.random.key(7)) for one in (model, plain)
    )
    assert_close(found, wanted, 1e-9)
    moved = jax.tree.map(
        lambda a, b: bool((a != b).any()),
        found[0][1],
        {"batch_stats": variables["batch_stats"]},
    )
    assert all(jax.tree.leaves(moved))


class Penalised(nn.Module):
    """A map that adds to the loss."""

    @nn.compact
    def __call__(self, x):
        y = jnp.tanh(nn.Dense(2)(x))
        self.variable("penalty", "cubes", lambda: jnp.zeros(())).value = (y**3).mean()
        return y


@pytest.mark.parametrize("layers", ["scan", "sequence"])
def test_what_maps_leave_in_variables_is_differentiated(layers, float64):
    block = lambda: linen.RevBlock(Penalised(), Penalised())
    model = {
        "scan": lambda: linen.RevScan(block(), 3),
        "sequence": lambda: linen.RevSequence([block() for _ in range(3)]),
    }[layers]()
    wide = lambda a: a.astype(jnp.float64)
    variables, x = jax.tree.map(wide, (model.init(jax.random.key(0), X), X))

    def gradient(model):
        def loss(params):
            _, left = model.apply({**variables, "params": params}, x, mutable="penalty")
            return sum(leaf.sum() for leaf in jax.tree.leaves(left))

        return quick_jit(jax.grad(loss))(variables["params"])

    assert_close(gradient(model), gradient(stored(model)), 1e-9)


def test_variables_lie_where_linen_puts_them():
    variables = jax.eval_shape(
        lambda: MODELS["sequence"]().init(jax.random.key(0), X, train=False)
    )
    inner = variables["params"]["inner"]
    assert set(inner) == {f"blocks_{k}" for k in range(4)}
    assert set(inner["blocks_0"]["blocks_0"]) == {"f", "g"}
    assert set(inner["blocks_1"]) == {"down_0_1", "up_1_0"}
    assert set(variables["batch_stats"]) == {"inner"}
    scan = jax.eval_shape(
        lambda: linen.RevScan(block(), 3).init(jax.random.key(0), X, train=False)
    )
    assert scan["params"]["layers"]["f"]["Dense_0"]["kernel"].shape == (3, 2, 2)


class Inline(nn.Module):
    """A model whose reversible part is made where it is used."""

    make: Any

    @nn.compact
    def __call__(self, x):
        return self.make()(x)


def two():
    return nn.Sequential([nn.Dense(2), jnp.tanh]), nn.Dense(2)


def twice():
    inner = linen.RevBlock(*two())
    return lambda x: inner(inner(x))


INLINE = {
    "block": (lambda: linen.RevBlock(*two(), name="a"), {"a": "fg"}),
    "twice": (twice, {"RevBlock_0": "fg"}),
    "sequence": (
        lambda: linen.RevSequence([linen.RevBlock(*two()) for _ in range(2)]),
        {"RevSequence_0": ["blocks_0", "blocks_1"]},
    ),
    "silo": (
        lambda: (
            lambda x: linen.RevSilo({(0, 1): two()[0]}, {(1, 0): two()[1]})(
                jnp.split(x, 2, axis=-1)
            )
        ),
        {"RevSilo_0": ["down_0_1", "up_1_0"]},
    ),
    "scan": (
        lambda: linen.RevScan(linen.RevBlock(*two()), 2),
        {"RevScan_0": ["layers"]},
    ),
}


@pytest.mark.parametrize("name", INLINE)
def test_maps_made_where_they_are_used_have_their_variables_below(name):
    make, places = INLINE[name]
    model = Inline(make)
    y, variables = model.init_with_output(jax.random.key(0), X)
    found = {key: set(inside) for key, inside in variables["params"].items()}
    assert found == {key: set(names) for key, names in places.items()}
    assert_close(model.apply(variables, X), y, 1e-6)


class InSetup(nn.Module):
    """A map that lies in the model, and may be used by it as well."""

    also: bool = False

    def setup(self):
        self.f = nn.Dense(2)
        self.block = linen.RevBlock(self.f, nn.Dense(2))

    def __call__(self, x):
        return self.f(self.block(x)[:, :2]) if self.also else self.block(x)


def test_a_map_made_in_setup_is_the_blocks_own():
    variables = InSetup().init(jax.random.key(0), X)
    assert set(variables["params"]) == {"block"}
    assert InSetup().apply(variables, X).shape == X.shape


def used_in_setup():
    model = InSetup(also=True)
    return model.apply(model.init(jax.random.key(0), X), X)


def in_two_blocks():
    f = nn.Dense(2)
    first, second = (linen.RevBlock(f, nn.Dense(2)) for _ in range(2))
    return lambda x: second(first(x))


@pytest.mark.every_commit("scan")
@pytest.mark.parametrize("name", ["block", "scan"])
def test_variables_are_made_in_training_as_outside_of_it(name):
    model, keys = MODELS[name](), {"params": jax.random.key(0)}
    init = lambda train: quick_jit(lambda: model.init(keys, X, train=train))()
    assert_close(init(True), init(False), 0)


def test_a_block_computes_what_its_formula_says(float64):
    f, g = nn.Dense(2), nn.Dense(2)
    model = linen.RevBlock(f, g, first=1)
    variables = model.init(jax.random.key(0), X)
    apply = lambda module, name, x: module.apply(
        {"params": variables["params"][name]}, x
    )
    x0, x1 = jnp.split(X, 2, axis=-1)
    y1 = x1 + apply(f, "f", x0)
    y0 = x0 + apply(g, "g", y1)
    assert_close(model.apply(variables, X), jnp.concatenate([y0, y1], -1), 1e-12)


def test_it_is_what_the_nnx_modules_compute(float64):
    rngs = nnx.Rngs(0)
    other = rr.reversible.RevBlock(
        nnx.Linear(2, 2, rngs=rngs), nnx.Linear(2, 2, rngs=rngs)
    )
    params = {"params": nnx.to_pure_dict(nnx.state(other.maps))}
    assert_close(
        linen.RevBlock(nn.Dense(2), nn.Dense(2)).apply(params, X), other(X), 1e-12
    )


def test_statistics_move_once_a_step():
    model = linen.RevBlock(Map(2, 0.0), Map(2, 0.0))
    x = X + 1
    variables = made(model, x)

    def loss(params):
        y, state = model.apply(
            {**variables, "params": params}, x, mutable="batch_stats"
        )
        return y.sum(), state

    state = jax.grad(loss, has_aux=True)(variables["params"])[1]
    dense = variables["params"]["f"]["Dense_0"]
    batch_mean = (x[:, 2:] @ dense["kernel"] + dense["bias"]).mean(0)
    moved = state["batch_stats"]["f"]["BatchNorm_0"]["mean"]
    np.testing.assert_allclose(moved, 0.1 * batch_mean, rtol=1e-5)


def test_dropout_draws_anew_for_another_key_and_other_layers():
    model = linen.RevScan(
        linen.RevBlock(
            nn.Dropout(0.5, deterministic=False), nn.Dropout(0.5, deterministic=False)
        ),
        2,
    )
    ones = jnp.ones((64, 2))
    run = lambda seed: np.asarray(
        model.apply({}, ones, rngs={"dropout": jax.random.key(seed)})
    )
    assert (run(0) == run(0)).all()
    assert (run(0) != run(1)).any()
    # Of one mask for both maps or both layers, fewer sums could come out.
    assert len(np.unique(run(0)[:, 0])) > 3


def there_and_back(model, x):
    variables = made(model, x)
    apply = lambda x, **how: model.apply(variables, x, train=False, **how)
    return quick_jit(lambda: apply(apply(x), method="inverse"))()


def test_without_training_nothing_moves_and_the_model_is_undone():
    assert_close(there_and_back(sequence(), (X,)), (X,), 1e-5)


def test_an_exact_model_is_undone_bit_for_bit():
    x = to_grid((X,))
    assert_close(there_and_back(sequence(exact=True), x), x, 0)


def test_the_inverse_under_dropout_draws_what_the_forward_pass_drew():
    model, rngs = block(), {"dropout": jax.random.key(3)}
    variables = made(model)
    y, _ = model.apply(variables, X, rngs=rngs, mutable="batch_stats")
    back, _ = model.apply(
        variables, y, rngs=rngs, mutable="batch_stats", method="inverse"
    )
    assert_close(back, X, 1e-4)


def test_a_scan_is_a_stack_that_a_plan_decides():
    model = linen.RevScan(
        linen.RevBlock(nn.Dense(2), nn.Dense(2)), 3, actions=None, label="layers"
    )
    variables = model.init(jax.random.key(0), X)
    loss = lambda variables: (model.apply(variables, X) ** 2).sum()
    graph = rr.trace(loss, variables)
    assert graph["layers"].invertible
    planned = rr.apply(loss, graph.plan({"layers": (rr.SAVE, rr.INVERT, rr.INVERT)}))
    assert_close(jax.grad(planned)(variables), jax.grad(loss)(variables), 1e-5)


BAD = {
    "f is a Linear, which is no Linen module": (
        lambda: linen.RevBlock(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nn.Dense(2))
    ),
    "'cubic' is no kind of coupling": lambda: linen.RevBlock(
        nn.Dense(2), nn.Dense(2), kind="cubic"
    ),
    "linen.RevSilo: 'adittive' is no kind of coupling": lambda: linen.RevSilo(
        {(0, 1): nn.Dense(2)}, {}, kind="adittive"
    ),
    "block 1 is a Dense, which has no inverse": lambda: linen.RevSequence(
        [block(), nn.Dense(2)]
    ),
    "block is a Dense, which has no inverse": lambda: linen.RevScan(nn.Dense(2), 3),
    "block 0 is a RevScan with actions=None, which says nothing inside of another": (
        lambda: linen.RevSequence([linen.RevScan(block(), 2, actions=None)])
    ),
    "a map down from stream 1 to 0": lambda: linen.RevSilo({(1, 0): nn.Dense(2)}, {}),
    "f and g are the same Dense": lambda: linen.RevBlock(*[nn.Dense(2)] * 2),
    "f is or has a Dense that is used elsewhere too": used_in_setup,
    "f is or has a Dense that is used elsewhere": (
        lambda: Inline(in_two_blocks).init(jax.random.key(0), X)
    ),
    "mask= is an array": lambda: block().init(jax.random.key(0), X, mask=X),
    "has no two equal halves": lambda: block().init(jax.random.key(0), X[:, :3]),
}


@pytest.mark.parametrize("said", BAD)
def test_mistakes_are_told_in_one_sentence(said):
    with pytest.raises(rr.UserError) as caught:
        BAD[said]()
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert message.endswith(".")


def test_partition_metadata_of_stacked_layers_leave_the_axis_of_layers_whole():
    init = nn.with_partitioning(nn.initializers.lecun_normal(), ("model", None))
    dense = lambda: nn.Dense(2, kernel_init=init)
    model = linen.RevScan(linen.RevBlock(dense(), dense()), 3)
    boxed = model.init(jax.random.key(0), X)
    spec = nn.get_partition_spec(boxed)["params"]["layers"]["f"]["kernel"]
    assert spec == jax.P(None, "model", None)
    loss = lambda variables: jnp.square(model.apply(variables, X)).sum()
    boxed_gradients, gradients = (jax.grad(loss)(v) for v in (boxed, nn.unbox(boxed)))
    assert_close(nn.unbox(boxed_gradients), gradients, 1e-5)
