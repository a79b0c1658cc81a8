"""Modules: F and G are ordinary ones, state moves once, randomness is replayed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import revremat as rr
from revremat.reversible import (
    RevBlock,
    RevParallel,
    RevScan,
    RevSequence,
    RevSilo,
    to_grid,
)
from revremat.reversible._revbifpn import MBConv, RevBiFPN, RevBiFPNConfig
from tests.reversible.examples import assert_close, quick_jit


class Map(nnx.Module):
    """A dense layer with batch norm and dropout, changing width where asked."""

    def __init__(self, inputs, outputs, rngs, dropout=0.3):
        self.dense = nnx.Linear(inputs, outputs, rngs=rngs)
        self.norm = nnx.BatchNorm(outputs, momentum=0.9, rngs=rngs)
        self.dropout = nnx.Dropout(dropout, rngs=rngs)

    def __call__(self, x):
        return self.dropout(jnp.tanh(self.norm(self.dense(x))))


def make_block(rngs, width=4, dropout=0.3):
    half = width // 2
    maps = (Map(half, half, rngs, dropout) for _ in "fg")
    return RevBlock(*maps)


def make_sequence(rngs, **kwargs):
    blocks = [
        RevParallel([make_block(rngs)]),
        RevSilo({(0, 1): Map(4, 6, rngs)}, {(1, 0): Map(6, 4, rngs)}, num_inputs=1),
        RevParallel([make_block(rngs), make_block(rngs, 6)]),
        RevSilo({(0, 1): Map(4, 6, rngs)}, {(1, 0): Map(6, 4, rngs)}),
    ]
    return RevSequence(blocks, **kwargs)


def stored(model, x):
    """The same function by plain autodiff."""
    coupling, params, rest = model.parts()
    y, state = coupling.run(params, x, rest)
    model.put(state)
    return y


def gradient(run, make, x):
    """Loss, gradient by parameters and input, and the state after two steps."""
    graph, params, rest = nnx.split(make(), nnx.Param, ...)

    def loss(params, x, rest):
        model = nnx.merge(graph, params, rest, copy=True)
        y = run(model, x)
        total = sum((leaf * jnp.cos(leaf)).sum() for leaf in jax.tree.leaves(y))
        return total, nnx.split(model, nnx.Param, ...)[2]

    step = quick_jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, rest), _ = step(params, x, rest)
    (value, rest), grads = step(params, x, rest)
    statistics = nnx.to_pure_dict(nnx.filter_state(rest, nnx.BatchStat))
    counts = nnx.to_pure_dict(nnx.filter_state(rest, nnx.RngCount))
    return (value, grads, statistics), counts


def widened(make):
    """The model with parameters and statistics in float64."""

    def wide():
        model = make()
        widen = lambda a: a.astype(jnp.float64) if a.dtype == jnp.float32 else a
        nnx.update(model, jax.tree.map(widen, nnx.state(model)))
        return model

    return wide


MODELS = {
    "sequence": lambda: make_sequence(nnx.Rngs(0), save_every=2),
    "mixed": lambda: make_sequence(
        nnx.Rngs(0), actions=(rr.INVERT, rr.SAVE, rr.INVERT, rr.RECOMPUTE)
    ),
    "scan": lambda: RevSequence(
        [RevParallel([RevScan(make_block, 3, rngs=nnx.Rngs(1))])]
    ),
}


@pytest.mark.every_commit("scan")
@pytest.mark.parametrize(
    "name",
    [name for name in MODELS],
)
def test_gradients_and_state_are_those_of_plain_autodiff(name, float64):
    x = (jax.random.normal(jax.random.key(5), (8, 4)),)

    make = widened(MODELS[name])
    found, counts = gradient(lambda model, x: model(x), make, x)
    expected, expected_counts = gradient(stored, make, x)
    assert_close(found, expected, 1e-9)
    assert_close(counts, expected_counts, 0)


class Scale(nnx.Variable):
    """Learned, though no nnx.Param."""


class Scaled(nnx.Module):
    """A variable of its own kind that has a gradient, and one that moves as well."""

    def __init__(self, rngs):
        self.scale = Scale(jax.random.normal(rngs.params(), (2,)))
        self.level = nnx.Variable(jnp.ones(2))

    def __call__(self, x):
        y = jnp.sin(x * self.scale[...]) * self.level[...]
        self.level[...] = self.level[...] + 1
        return y


def make_scaled(rngs):
    return RevBlock(Scaled(rngs), Scaled(rngs))


@pytest.mark.parametrize(
    "make",
    [
        lambda actions: RevSequence([make_scaled(nnx.Rngs(0))], actions=actions),
        lambda actions: RevScan(make_scaled, 2, rngs=nnx.Rngs(0), actions=actions),
    ],
    ids=["sequence", "scan"],
)
def test_variables_that_are_no_nnx_param_have_gradients_and_move(make, float64):
    x = jnp.arange(4.0).reshape(1, 4)
    wanted = nnx.DiffState(0, (Scale, nnx.Variable))

    def gradient(actions):
        model = widened(lambda: make(actions))()
        grads = nnx.grad(lambda m: (m(x) ** 2).sum(), argnums=wanted)(model)
        return grads, nnx.state(model)

    found, expected = gradient(rr.INVERT), gradient(rr.SAVE)
    assert all(bool(leaf.any()) for leaf in jax.tree.leaves(expected[0]))
    assert_close(found, expected, 1e-9)


class Penalty(nnx.Variable):
    """What a map adds to the loss."""


class Penalised(Map):
    def __init__(self, inputs, outputs, rngs):
        super().__init__(inputs, outputs, rngs)
        self.penalty = Penalty(jnp.zeros(()))

    def __call__(self, x):
        y = super().__call__(x)
        self.penalty[...] = (y**3).mean()
        return y


def penalised_block(rngs):
    return RevParallel([RevBlock(*(Penalised(2, 2, rngs) for _ in "fg"))])


def penalised_blocks(actions):
    return RevSequence(
        [penalised_block(nnx.Rngs(k)) for k in range(3)], actions=actions
    )


@pytest.mark.every_commit("invert", "scan")
@pytest.mark.parametrize(
    "make",
    [
        *(lambda a=a: penalised_blocks(a) for a in (rr.INVERT, rr.SAVE, rr.RECOMPUTE)),
        lambda: RevScan(penalised_block, 3, rngs=nnx.Rngs(0)),
    ],
    ids=["invert", "save", "recompute", "scan"],
)
def test_what_maps_leave_in_variables_is_differentiated(make, float64):
    x = (jax.random.normal(jax.random.key(5), (8, 4)),)

    def gradient(run):
        graph, params, rest = nnx.split(widened(make)(), nnx.Param, ...)

        @quick_jit
        @jax.grad
        def differentiate(params):
            model = nnx.merge(graph, params, rest, copy=True)
            total = (run(model, x)[0] ** 2).sum()
            penalties = jax.tree.leaves(nnx.state(model, Penalty))
            return total + sum(one.sum() for one in penalties)

        return differentiate(params)

    found, expected = gradient(lambda model, x: model(x)), gradient(stored)
    assert_close(found, expected, 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "actions",
    [(rr.SAVE, rr.INVERT, rr.RECOMPUTE), rr.INVERT(ahead=["dot_general_0"])],
    ids=str,
)
def test_a_scan_under_a_plan(actions, float64):
    x = jax.random.normal(jax.random.key(5), (8, 4))
    make = lambda actions: widened(
        lambda: RevScan(make_block, 3, rngs=nnx.Rngs(1), actions=actions)
    )
    run = lambda model, x: model(x)
    found, expected = (gradient(run, make(a), x)[0] for a in (actions, rr.SAVE))
    assert_close(found, expected, 1e-9)


def test_statistics_move_once_a_step():
    block = RevSequence([RevParallel([make_block(nnx.Rngs(0), dropout=0.0)])])
    x = jax.random.normal(jax.random.key(0), (8, 4)) + 1
    module = block.blocks[0].blocks[0].maps["f"]
    batch_mean = module.dense(x[:, 2:]).mean(0)
    nnx.grad(lambda m: m((x,))[0].sum())(block)
    np.testing.assert_allclose(module.norm.mean[...], 0.1 * batch_mean, rtol=1e-5)


def test_the_inverse_of_a_model():
    model = make_sequence(nnx.Rngs(0))
    model.eval()
    x = (jax.random.normal(jax.random.key(5), (8, 4)),)
    assert_close(model.inverse(model(x)), x, 1e-5)


def test_an_exact_model_is_undone_bit_for_bit():
    model = make_sequence(nnx.Rngs(0), exact=True)
    model.eval()
    x = to_grid((jax.random.normal(jax.random.key(5), (8, 4)),))
    assert_close(model.inverse(model(x)), x, 0)


def test_stochastic_depth_drops_whole_examples():
    drop = MBConv(4, 4, 3, drop=0.5, rngs=nnx.Rngs(0))
    y = drop(jax.random.normal(jax.random.key(0), (32, 4, 4, 4)))
    kept = np.asarray((y != 0).any(axis=(1, 2, 3)))
    assert 0 < kept.sum() < 32
    assert np.asarray((y != 0).mean(axis=(1, 2, 3)))[kept].min() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("recompute_head", [False, True])
def test_revbifpn_has_the_gradients_of_its_plain_counterpart(recompute_head, float64):
    config = RevBiFPNConfig(
        32, 1 / 3, 0, stochastic_depth=0.2, num_classes=5, recompute_head=recompute_head
    )
    x = jax.random.normal(jax.random.key(5), (4, 32, 32, 3))

    make = lambda reversible: widened(
        lambda: RevBiFPN(config, rngs=nnx.Rngs(0), reversible=reversible)
    )
    run = lambda model, x: model(x)
    found, expected = (gradient(run, make(on), x) for on in (True, False))
    assert_close(found[0], expected[0], 1e-9)
    assert_close(found[1], expected[1], 0)


class Remembers(nnx.Linear):
    """It makes a variable when it is called."""

    def __call__(self, x):
        self.seen = nnx.Intermediate(x)
        return super().__call__(x)


class Noisy(nnx.Module):
    """It keeps the random numbers that it is given."""

    def __init__(self, rngs):
        self.rngs = rngs

    def __call__(self, x):
        return x + jax.random.normal(self.rngs.noise(), x.shape)


def same(module):
    return RevBlock(module, module)


MISTAKES = {
    "one Rngs for two maps": (
        lambda r: RevBlock(Noisy(r), Noisy(r)),
        "RevBlock: f and g share 'rngs/.*' .of type Rng",
    ),
    "statistics of two maps": (
        lambda r: same(nnx.BatchNorm(2, rngs=r)),
        "f and g share 'mean' .of type BatchStat.; give each its own",
    ),
    "statistics of two maps of a silo": (
        lambda r: (lambda b: RevSilo({(0, 1): b}, {(1, 0): b}))(
            nnx.BatchNorm(2, rngs=r)
        ),
        "RevSilo: down_0_1 and up_1_0 share 'mean'",
    ),
    "one block twice": (
        lambda r: RevSequence([make_block(r)] * 2),
        "RevSequence: block 0 and block 1 share",
    ),
    "one block for two streams": (
        lambda r: RevParallel([make_block(r)] * 2),
        "RevParallel: block 0 and block 1 share",
    ),
    "no inverse": (
        lambda r: RevSequence([nnx.Linear(2, 2, rngs=r)]),
        "block 0 is a Linear, which has no inverse",
    ),
    "no inverse in a scan": (
        lambda r: RevScan(lambda r: nnx.Linear(2, 2, rngs=r), 2, rngs=r),
        "makes a Linear, which has no inverse",
    ),
    "actions inside of another": (
        lambda r: RevSequence([RevScan(make_block, 2, rngs=r, actions=rr.SAVE)]),
        "block 0 is a RevScan with actions=SAVE, which says nothing inside of another",
    ),
    "outputs kept inside of another": (
        lambda r: RevParallel([RevSequence([make_block(r)], save_every=1)]),
        "block 0 is a RevSequence with save_every=1, which says nothing inside of",
    ),
    "odd channels": (
        lambda r: make_block(r)(jnp.ones((2, 5))),
        "5 channels .* has no two equal halves",
    ),
    "wrong output": (
        lambda r: RevBlock(*(nnx.Linear(2, 3, rngs=r) for _ in "fg"))(jnp.ones((2, 4))),
        r"f returns float32\[2, 3\] for stream 0, which is float32\[2, 2\]",
    ),
    "streams": (
        lambda r: RevParallel([make_block(r)])((jnp.ones((2, 4)),) * 2),
        "1 couplings side by side were given 2 streams",
    ),
    "unknown state": (
        lambda r: RevBlock(Remembers(2, 2, rngs=r), nnx.Linear(2, 2, rngs=r))(
            jnp.ones((1, 4))
        ),
        "Remembers makes 'seen' \\(of type Intermediate\\) when it is called",
    ),
    "kind": (lambda r: RevBlock(None, None, kind="sum"), "'sum' is no kind"),
    "kind of a silo": (
        lambda r: RevSilo({(0, 1): None}, {}, kind="adittive"),
        "RevSilo: 'adittive' is no kind of coupling; write 'additive' or 'affine'",
    ),
    "module": (lambda r: RevBlock(1, 2), "f is a int, which cannot be called"),
    "image size": (lambda r: RevBiFPNConfig(100), "choose 128"),
    "neck": (lambda r: RevBiFPNConfig(neck=False), "reads the neck"),
}


def test_weights_can_be_shared():
    dense = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
    block, x = same(dense), jax.random.normal(jax.random.key(5), (3, 4))
    gradient = lambda run: nnx.grad(lambda block: (run(block, x) ** 2).sum())(block)
    assert_close(gradient(RevBlock.__call__), gradient(stored), 1e-5)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence(name):
    make, message = MISTAKES[name]
    with pytest.raises(rr.UserError, match=message) as caught:
        make(nnx.Rngs(0))
    assert "\n" not in str(caught.value)


def test_partition_metadata_of_stacked_layers_leave_the_axis_of_layers_whole():
    init = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("model", None))

    def make(rngs):
        maps = (nnx.Linear(2, 2, kernel_init=init, rngs=rngs) for _ in "fg")
        return RevBlock(*maps)

    auto = (jax.sharding.AxisType.Auto,)
    with jax.set_mesh(jax.make_mesh((1,), ("model",), axis_types=auto)):
        state = nnx.state(RevScan(make, 3, rngs=nnx.Rngs(0)))
    spec = nnx.get_partition_spec(state)["block"]["maps"]["f"]["kernel"]
    assert spec.get_value() == jax.P(None, "model", None)
