"""A network trained as a residual one, made reversible: same weights, fine-tuned."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import revremat as rr
from revremat.reversible import RevResidual, from_plain
from revremat.reversible._from_plain import Passed
from tests.reversible.examples import assert_close, quick_jit

WIDTH, TOKENS, BATCH = 4, 3, 2


class Block(nnx.Module):
    """Attention and an MLP, each behind its norm."""

    def __init__(self, rngs, dropout=0.0):
        self.norm1 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(
            num_heads=2, in_features=WIDTH, decode=False, rngs=rngs
        )
        self.drop1 = nnx.Dropout(dropout, rngs=rngs) if dropout else nnx.identity
        self.norm2 = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.up = nnx.Linear(WIDTH, 2 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(2 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x):
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.down(nnx.gelu(self.up(self.norm2(x))))


def branches(module):
    """Those of a block, for the form of RevViT."""
    if not isinstance(module, Block):
        return None
    attention = (module.norm1, module.attention, module.drop1)
    return [attention, (module.norm2, module.up, nnx.gelu, module.down)]


class Transformer(nnx.Module):
    """An embedding, blocks, and a head."""

    def __init__(self, num_layers, rngs, dropout=0.0):
        self.embed = nnx.Linear(5, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs, dropout) for _ in range(num_layers)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)
        self.head = nnx.Linear(WIDTH, 2, rngs=rngs)

    def __call__(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(axis=1))


class Residual(nnx.Module):
    """A pre-activation block; where the width changes, the skip is a convolution."""

    def __init__(self, inputs, outputs, rngs):
        self.norm = nnx.BatchNorm(inputs, momentum=0.9, rngs=rngs)
        self.conv = nnx.Conv(inputs, outputs, (3, 3), rngs=rngs)
        project = nnx.Conv(inputs, outputs, (1, 1), rngs=rngs)
        self.project = None if inputs == outputs else project

    def __call__(self, x):
        skip = x if self.project is None else self.project(x)
        return skip + self.conv(nnx.relu(self.norm(x)))


class ResNet(nnx.Module):
    """Two stages."""

    def __init__(self, rngs):
        self.stages = nnx.List(
            [
                nnx.Sequential(*(Residual(2, 2, rngs) for _ in range(3))),
                nnx.List([Residual(2, 4, rngs), *(Residual(4, 4, rngs) for _ in "ab")]),
            ]
        )

    def __call__(self, x):
        x = self.stages[0](x)
        for block in self.stages[1]:
            x = block(x)
        return x.mean(axis=(1, 2))


def same_width(module):
    return isinstance(module, Residual) and module.project is None


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def widened(module):
    """Parameters and statistics in float64."""
    widen = lambda a: a.astype(jnp.float64) if a.dtype == jnp.float32 else a
    nnx.update(module, jax.tree.map(widen, nnx.state(module)))
    return module


class Stored(RevResidual):
    """The same reversible function, its activations stored."""

    def __call__(self, x):
        coupling, params, rest = self.blocks.parts()
        (a, b), state = coupling.run(params, (x, x), rest)
        self.blocks.put(state)
        return a + b - x


def stored(module):
    """The model with every `RevResidual` by plain autodiff."""
    for _, node in nnx.iter_graph(module):
        if type(node) is RevResidual:
            node.__class__ = Stored
    return module


def call(model, *args):
    """The model's output, compiled at once."""
    graph, state = nnx.split(model)
    return quick_jit(lambda state: nnx.merge(graph, state, copy=True)(*args))(state)


def made(make, *args, **kwargs):
    """A module, its numbers drawn by one compiled program."""
    graph, _ = nnx.split(nnx.eval_shape(lambda: make(*args, **kwargs)))
    draw = quick_jit(lambda: nnx.split(make(*args, **kwargs))[1])
    return nnx.merge(graph, draw())


def arrays(module):
    return {id(leaf) for leaf in jax.tree.leaves(nnx.state(module, nnx.Param))}


MODELS = {
    "transformer": (
        lambda rngs: Transformer(3, rngs, dropout=0.3),
        Block,
        (BATCH, TOKENS, 5),
    ),
    "by branches": (
        lambda rngs: Transformer(2, rngs, dropout=0.3),
        branches,
        (BATCH, TOKENS, 5),
    ),
    "resnet": (ResNet, same_width, (BATCH, 4, 4, 2)),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_weights_are_the_very_same_arrays(name):
    make, blocks, _ = MODELS[name]
    plain = made(lambda: make(nnx.Rngs(0)))
    before = [type(node) for _, node in nnx.iter_graph(plain)]
    model = from_plain(plain, blocks)
    assert type(model) is type(plain)
    assert arrays(model) == arrays(plain)
    assert [type(node) for _, node in nnx.iter_graph(plain)] == before


def test_runs_of_blocks_are_replaced_and_the_lists_keep_their_lengths():
    model = from_plain(nnx.eval_shape(lambda: ResNet(nnx.Rngs(0))), same_width)
    kinds = [[type(block) for block in stage] for stage in model.stages]
    assert kinds == [[RevResidual, Passed, Passed], [Residual, RevResidual, Passed]]


def test_by_default_blocks_are_modules_of_one_class_in_a_list():
    model = from_plain(made(lambda: Transformer(2, nnx.Rngs(0))))
    assert [type(block) for block in model.blocks] == [RevResidual, Passed]


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_two_blocks_compute_what_they_did(num_blocks, float64):
    plain = widened(made(lambda: Transformer(num_blocks, nnx.Rngs(0))))
    x = normal(BATCH, TOKENS, 5)
    assert_close(call(from_plain(plain, Block), x), call(plain, x), 1e-12)


@pytest.mark.parametrize("num_blocks", [1, 2, 5])
def test_each_block_adds_to_one_stream_what_it_says_of_the_other(num_blocks, float64):
    rngs = nnx.Rngs(0)
    blocks = [widened(Residual(2, 2, rngs)) for _ in range(num_blocks)]
    x = normal(BATCH, 4, 4, 2)
    streams, model = [x, x], from_plain(blocks, Residual)
    for k, b in enumerate(blocks):
        streams[k % 2] += b.conv(nnx.relu(b.norm(streams[1 - k % 2])))
    assert_close(call(model, x), streams[0] + streams[1] - x, 1e-12)


def test_branches_make_a_block_of_revvit(float64):
    block = widened(made(lambda: Block(nnx.Rngs(0))))
    x = normal(BATCH, TOKENS, WIDTH)
    a = x + block.attention(block.norm1(x))
    b = x + block.down(nnx.gelu(block.up(block.norm2(a))))
    assert_close(from_plain(block, branches)(x), a + b - x, 1e-12)
    assert_close(a + b - x, block(x), 1e-12)


@pytest.mark.slow
@pytest.mark.slow
def test_a_deep_network_agrees_to_first_order_in_what_blocks_add(float64):
    plain = widened(made(lambda: Transformer(4, nnx.Rngs(0))))
    x = normal(BATCH, TOKENS, 5)

    def difference(scale):
        shrunk = nnx.clone(plain)
        for block in shrunk.blocks:
            for last in (block.attention.out, block.down):
                params = nnx.state(last, nnx.Param)
                nnx.update(last, jax.tree.map(lambda a: a * scale, params))
        return float(
            jnp.abs(call(from_plain(shrunk, Block), x) - call(shrunk, x)).max()
        )

    assert difference(1e-4) / difference(5e-5) == pytest.approx(4, rel=0.02)


@pytest.mark.every_commit("by branches")
@pytest.mark.parametrize(
    "name",
    [name for name in MODELS],
)
def test_gradients_and_state_are_those_of_plain_autodiff(name, float64):
    make, blocks, shape = MODELS[name]
    model = widened(from_plain(made(lambda: make(nnx.Rngs(0, dropout=1))), blocks))
    graph, params, rest = nnx.split(model, nnx.Param, ...)

    def loss(run, params, rest, x):
        one = run(nnx.merge(graph, params, rest, copy=True))
        y = one(x)
        return (y * jnp.cos(y)).sum(), nnx.to_pure_dict(nnx.state(one, nnx.BatchStat))

    both = [
        quick_jit(jax.value_and_grad(partial(loss, run), argnums=(0, 2), has_aux=True))
        for run in (lambda m: m, stored)
    ]
    found, wanted = (step(params, rest, normal(*shape)) for step in both)
    assert_close(found, wanted, 1e-9)


def test_nothing_of_the_layers_is_kept():
    graph, params = nnx.split(
        from_plain(nnx.eval_shape(lambda: Transformer(3, nnx.Rngs(0))))
    )
    x = normal(BATCH, TOKENS, 5)
    found = rr.trace(lambda p, x: nnx.merge(graph, p)(x).sum(), params, x).fixed_units
    assert sum(choice.kept_bytes for choice in found) == 0
    assert sum(choice.plain_bytes for choice in found) > 0


class Dense(nnx.Module):
    """A block without attention, which compiles at once."""

    def __init__(self, rngs):
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x):
        return x + self.down(jnp.tanh(self.up(x)))


@pytest.mark.slow
def test_a_trained_network_goes_on_training_as_a_reversible_one():
    x = normal(64, 8)
    wanted = jnp.sin(2 * x @ normal(8, 8, seed=1))

    def train(model, num_steps):
        graph, params = nnx.split(model)
        optimizer = optax.adam(0.01)
        loss = lambda p: ((nnx.merge(graph, p)(x) - wanted) ** 2).mean()

        def step(carry, _):
            params, state = carry
            value, grads = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(grads, state)
            return (optax.apply_updates(params, updates), state), value

        run = lambda params: jax.lax.scan(
            step, (params, optimizer.init(params)), length=num_steps
        )
        (params, _), losses = quick_jit(run)(params)
        return nnx.merge(graph, params), losses

    rngs = nnx.Rngs(0)
    untrained = nnx.List([Dense(rngs) for _ in range(4)])
    plain, _ = train(nnx.Sequential(*untrained), 300)
    _, from_scratch = train(from_plain(untrained, Dense), 60)
    _, tuned = train(from_plain(plain, Dense), 60)
    assert tuned[-1] < 0.5 * tuned[0]
    assert tuned[-1] < 0.7 * from_scratch[-1]


@pytest.mark.every_commit("branches")
@pytest.mark.parametrize("blocks", [Block, branches])
def test_stacked_blocks_are_those_of_a_list(blocks, float64):
    make = nnx.split_rngs(splits=3)(nnx.vmap(lambda rngs: Block(rngs)))
    stacked = widened(made(lambda: make(nnx.Rngs(0))))
    graph, state = nnx.split(stacked)
    each = [
        nnx.merge(graph, jax.tree.map(lambda a, k=k: a[k], state)) for k in range(3)
    ]
    x = normal(BATCH, TOKENS, WIDTH)
    wanted = call(from_plain(each, blocks), x)
    for actions in (rr.INVERT, (rr.SAVE, rr.INVERT, rr.RECOMPUTE)):
        model = from_plain(stacked, blocks, num_layers=3, actions=actions)
        assert_close(call(model, x), wanted, 1e-12)


def test_the_streams_can_be_had_back():
    model = from_plain(made(lambda: Transformer(3, nnx.Rngs(0))).blocks)
    x = normal(BATCH, TOKENS, WIDTH)
    blocks = model.blocks
    assert_close(quick_jit(lambda: blocks.inverse(blocks((x, x))))(), (x, x), 1e-5)


class PostNorm(Block):
    """Not a residual block: what it adds to is normed."""

    def __call__(self, x):
        return self.norm1(x + self.attention(x))


def residual(count, inputs=2, outputs=2):
    rngs = nnx.Rngs(0)
    return [Residual(inputs, outputs, rngs) for _ in range(count)]


def with_one_dropout(module):
    drop = module.drop = nnx.Dropout(0.1, rngs=nnx.Rngs(0))
    return [(module.norm, drop), (module.conv, drop)]


def dense():
    return nnx.Linear(2, 2, rngs=nnx.Rngs(0))


IMAGE, TEXT = normal(1, 4, 4, 2), normal(1, TOKENS, WIDTH)

BAD = {
    "Linear has no list with two modules of one class": lambda: from_plain(dense()),
    "has no list with a module of class Block": lambda: from_plain(residual(2), Block),
    "of which `blocks` says that it is one": (
        lambda: from_plain(residual(2), lambda m: False)
    ),
    "is or has a str, which is no class": lambda: from_plain(residual(2), "Residual"),
    "has a str, which is no class": lambda: from_plain(residual(2), (Residual, "Norm")),
    "`blocks` gives a Conv for Residual": (
        lambda: from_plain(residual(2), lambda m: m.conv)
    ),
    "branch 0 of Residual has a function whose parameters cannot be found": (
        lambda: from_plain(residual(2), lambda m: [lambda x: m.conv(x)])
    ),
    "branch 0 and branch 1 share": lambda: from_plain(residual(1), with_one_dropout),
    "Residual takes float32[1, 4, 4, 2] and gives float32[1, 4, 4, 4]": (
        lambda: from_plain(residual(1, 2, 4), Residual)(IMAGE)
    ),
    "PostNorm is no residual block": (
        lambda: from_plain([PostNorm(nnx.Rngs(0))], PostNorm)(TEXT)
    ),
    "take a stream alone": lambda: from_plain(Block(nnx.Rngs(0)), Block)(TEXT, None),
    "are not stacked to num_layers=3": (
        lambda: from_plain(Block(nnx.Rngs(0)), Block, num_layers=3)
    ),
    "Linear is not a module of class Block": (
        lambda: from_plain(dense(), Block, num_layers=2)
    ),
}


@pytest.mark.parametrize("said", BAD)
def test_what_is_no_residual_network_is_told_in_one_sentence(said):
    with pytest.raises(rr.UserError) as caught:
        BAD[said]()
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert message.endswith(".")


def test_arrays_shared_by_blocks_get_the_sum_of_their_gradients(float64):
    block = widened(made(lambda: Block(nnx.Rngs(0))))
    model = from_plain([block, block])
    x = normal(BATCH, TOKENS, WIDTH)
    graph, params = nnx.split(model)
    run = lambda run: quick_jit(
        jax.grad(lambda p: (run(nnx.merge(graph, p))(x) ** 2).sum())
    )
    found, wanted = (run(how)(params) for how in (lambda m: m, stored))
    assert len(jax.tree.leaves(params)) == len(jax.tree.leaves(nnx.state(block)))
    np.testing.assert_allclose(
        *(
            jnp.concatenate(list(map(jnp.ravel, jax.tree.leaves(g))))
            for g in (found, wanted)
        ),
        rtol=1e-9,
        atol=1e-12,
    )
