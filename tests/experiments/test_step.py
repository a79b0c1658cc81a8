"""The step: accumulation, sharding and donation change where and when, not what."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import revremat as rr
from experiments import configs, step
from experiments.configs.common import override
from experiments.configs.gpt import config as gpt
from experiments.configs.gpt import problem as gpt_problem
from experiments.configs.vit_digits import config as vit
from revremat import UserError, sharding

SLOW = pytest.mark.slow

SMALL = {
    "width": 16,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_width": 32,
    "batch_size": 16,
    "fsdp_min_size": 64,
    "learning_rate": 0.01,
    "warmup_steps": 1,
    # A bias on keys has no gradient but rounding, which Adam would blow up.
    "bias": False,
}
GPT = override(gpt, SMALL | {"seq_len": 8, "vocab_size": 32})
VIT = override(vit, SMALL | {"dropout": 0.0})


def program_of(config, **sizes):
    """An experiment on a mesh of so many of this process's devices."""
    axes = {"data": 1, "fsdp": 1, "model": 1} | sizes
    num_devices = int(np.prod(list(axes.values())))
    config = override(config, {f"sharding.{key}": axes[key] for key in axes})
    mesh = sharding.make_mesh(axes, jax.devices()[:num_devices])
    return step.build(config, mesh)


def batch_of(program):
    rng = np.random.default_rng(0)

    def draw(spec):
        if spec.dtype == jnp.int32:
            return rng.integers(0, 10, spec.shape).astype(np.int32)
        return rng.random(spec.shape, np.float32)

    return jax.tree.map(
        lambda spec: jax.device_put(draw(spec), spec.sharding), program.batch
    )


@functools.cache
def compiled(config, **sizes):
    program = program_of(config, **sizes)
    step_fn = jax.jit(program.make_step(program.loss), donate_argnums=0)
    return program, step_fn.lower(program.state, program.batch).compile()


def run(config, num_steps=3, **sizes):
    """Metrics of some steps on one batch, and the state after them."""
    program, step_fn = compiled(config, **sizes)
    batch = batch_of(program)
    key = jax.random.key_data(jax.random.key(0))
    state = sharding.init_sharded(program.init, program.state, key)
    rows = []
    for _ in range(num_steps):
        state, metrics = step_fn(state, batch)
        rows.append({name: float(value) for name, value in metrics.items()})
    return rows, state


@pytest.fixture(scope="module")
def plain():
    return run(GPT)


def assert_same_training(got, want):
    for row, expected in zip(got[0], want[0], strict=True):
        for name, value in expected.items():
            np.testing.assert_allclose(row[name], value, rtol=2e-4, err_msg=name)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4),
        jax.device_get(got[1].params),
        jax.device_get(want[1].params),
    )


def test_the_step_is_value_and_grad_clip_adamw_by_hand(plain):
    """Against AdamW unrolled (Loshchilov & Hutter 2019), in NumPy and float64."""
    program = program_of(GPT)
    params, batch = plain_params(program), batch_of(program)
    grad_fn = jax.jit(jax.value_and_grad(program.loss))
    moments = [jax.tree.map(lambda p: np.zeros(p.shape), params) for _ in range(2)]
    optim = GPT.optim
    for count, row in enumerate(plain[0]):
        value, grads = grad_fn(params, batch | {"key": np.zeros(2, np.uint32)})
        leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(grads)]
        norm = np.sqrt(sum((leaf**2).sum() for leaf in leaves))
        rate = float(program.learning_rate(count))
        np.testing.assert_allclose(row["loss"], value, rtol=1e-4)
        np.testing.assert_allclose(row["grad_norm"], norm, rtol=1e-3)
        np.testing.assert_allclose(row["learning_rate"], rate, rtol=1e-6)
        scale = min(1.0, optim.clip_norm / norm)

        def update(path, p, g, m, v, scale=scale, rate=rate, t=count + 1):
            g = np.asarray(g, np.float64) * scale
            m[...] = optim.b1 * m + (1 - optim.b1) * g
            v[...] = optim.b2 * v + (1 - optim.b2) * g**2
            direction = m / (1 - optim.b1**t) / (np.sqrt(v / (1 - optim.b2**t)) + 1e-8)
            if path[-1].key in ("kernel", "embedding"):
                direction += optim.weight_decay * np.asarray(p, np.float64)
            return (p - rate * direction).astype(np.float32)

        params = jax.tree_util.tree_map_with_path(update, params, grads, *moments)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4),
        jax.device_get(plain[1].params),
        params,
    )


def plain_params(program):
    state = program.init(jax.random.key_data(jax.random.key(0)))
    return jax.device_get(state.params)


def test_training_lowers_the_loss(plain):
    rows, _ = plain
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.01


@pytest.mark.parametrize("sizes", [pytest.param({}, marks=SLOW), {"data": 2}])
def test_accumulation_is_the_same_step(plain, sizes):
    assert_same_training(run(override(GPT, {"accumulate": 4}), **sizes), plain)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param({"fsdp": 8}, marks=SLOW),
        pytest.param({"data": 2, "model": 2}, marks=SLOW),
        {"data": 2, "fsdp": 2, "model": 2},
    ],
)
def test_sharding_is_the_same_step(plain, sizes):
    got = run(GPT, **sizes)
    assert_same_training(got, plain)
    specs = program_of(GPT, **sizes).state
    assert jax.tree.map(lambda leaf: leaf.sharding, got[1]) == sharding.shardings_of(
        specs
    )


@pytest.mark.slow
@pytest.mark.parametrize("scan", [True, False])
def test_sequence_parallelism_is_the_same_step(plain, scan):
    cut = override(GPT, {"sharding.sequence": True, "scan": scan})
    assert_same_training(run(cut, data=2, fsdp=2, model=2), plain)


@pytest.mark.parametrize(
    ("sequence", "length"), [pytest.param(False, 8, marks=SLOW), (True, 4)]
)
def test_sequence_parallelism_cuts_what_stands_between_the_products(sequence, length):
    _, compiled_step = compiled(
        override(GPT, {"sharding.sequence": sequence, "scan": False}), model=2
    )
    rows = GPT.data.batch_size
    norms = re.findall(
        rf"f32\[{rows},(\d+),{GPT.model.width}\]\S* rsqrt|"
        rf"f32\[{rows},(\d+)(?:,1)?\]\S* rsqrt",
        compiled_step.as_text(),
    )
    assert {int(a or b) for a, b in norms} == {length}


@pytest.mark.parametrize(
    ("config", "sizes", "sentence"),
    [
        (VIT, {"model": 2}, "cuts sequences of tokens, which vit_digits has not"),
        (GPT, {"data": 2}, "over the axis `model`, which has 1 device: write --shar"),
        (
            override(GPT, {"seq_len": 7}),
            {"model": 2},
            "model.seq_len 7 does not split over sharding.model 2: write a multiple of "
            "2, for example 8",
        ),
    ],
)
def test_sequences_that_cannot_be_cut_are_refused(config, sizes, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        program_of(override(config, {"sharding.sequence": True}), **sizes)


def test_moments_lie_where_their_parameters_lie():
    state = program_of(GPT, fsdp=2, model=2).state
    for moment in ("mu", "nu"):
        (tree,) = optax.tree.get_all_with_path(state.opt_state, moment)
        assert sharding.shardings_of(tree[1]) == sharding.shardings_of(state.params)


@pytest.mark.parametrize("config", [GPT, VIT], ids=["gpt", "vit"])
@pytest.mark.parametrize("scan", [True, False])
def test_tensor_parallelism_cuts_every_large_matrix(config, scan):
    config = override(config, {"model.scan": scan})
    params = program_of(config, model=2).state.params
    leaves, _ = jax.tree_util.tree_flatten_with_path(params["blocks"])
    cut = {
        jax.tree_util.keystr(path[-3:], simple=True, separator="/")
        for path, leaf in leaves
        if "model" in leaf.sharding.spec
    }
    kernels = {"attn/qkv", "attn/out", "mlp/up", "mlp/down"}
    assert cut == {f"{name}/kernel" for name in kernels}


def test_fsdp_leaves_no_large_array_whole_and_no_layer_axis_cut():
    params = program_of(GPT, fsdp=2).state.params
    for leaf in jax.tree.leaves(params):
        assert ("fsdp" in leaf.sharding.spec) == (leaf.size >= 64)
    for leaf in jax.tree.leaves(params["blocks"]):
        spec = leaf.sharding.spec
        assert not len(spec) or spec[0] is None


@pytest.mark.slow
def test_dropout_differs_from_step_to_step_and_repeats_from_run_to_run():
    config = override(GPT, {"dropout": 0.5, "learning_rate": 0.0})
    losses = [[row["loss"] for row in run(config)[0]] for _ in range(2)]
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 3


def test_micro_batches_are_a_partition_and_draw_their_own_keys():
    """A loss that is linear in its examples and its key: the mean is known."""
    mesh = sharding.make_mesh({"data": 1}, jax.devices()[:1])
    state = step.TrainState(
        {"w": jnp.float32(1)},
        optax.sgd(1.0).init({}),
        jnp.int32(5),
        jax.random.key_data(jax.random.key(3)),
    )
    whole = sharding.resolve((), state, mesh)

    def loss(params, part):
        assert part["x"].shape == (2,)
        draw = jax.random.uniform(jax.random.wrap_key_data(part["key"]))
        return params["w"] * (part["x"].mean() + draw)

    schedule = optax.constant_schedule(1.0)
    step_fn = step.make_train_step(loss, optax.sgd(1.0), schedule, 3, whole)
    after, metrics = jax.jit(step_fn)(state, {"x": jnp.arange(6.0)})
    keys = jax.random.split(jax.random.fold_in(jax.random.key(3), 5), 3)
    mean = 2.5 + np.mean([jax.random.uniform(key) for key in keys])
    np.testing.assert_allclose(metrics["loss"], mean, rtol=1e-6)
    np.testing.assert_allclose(after.params["w"], 1 - mean, rtol=1e-6)
    assert after.step == 6


def test_a_models_state_moves_with_every_micro_batch_and_has_no_gradient():
    """A running sum of the examples, which the loss reads as it was before."""
    mesh = sharding.make_mesh({"data": 1}, jax.devices()[:1])

    def loss(params, part):
        total = part["state"]["total"]
        return params["w"] * total, {"total": total + part["x"].sum()}

    for accumulate, expected in ((1, 100.0), (3, (100 + 103 + 108) / 3)):
        state = step.TrainState(
            {"w": jnp.float32(1)},
            optax.sgd(1.0).init({}),
            jnp.int32(0),
            jax.random.key_data(jax.random.key(0)),
            {"total": jnp.float32(100)},
        )
        step_fn = step.make_train_step(
            loss,
            optax.sgd(1.0),
            optax.constant_schedule(1.0),
            accumulate,
            sharding.resolve((), state, mesh),
        )
        after, metrics = jax.jit(step_fn)(state, {"x": jnp.arange(6.0)})
        assert after.model["total"] == 115
        np.testing.assert_allclose(metrics["loss"], expected, rtol=1e-6)
        np.testing.assert_allclose(after.params["w"], 1 - expected, rtol=1e-6)


@pytest.mark.parametrize("axis", ["data", "fsdp"])
def test_a_batch_that_does_not_split_is_refused_with_one_that_does(axis):
    config = override(GPT, {"batch_size": 20, "accumulate": 2})
    with pytest.raises(UserError, match=r"take a multiple of 16, for example 16"):
        program_of(config, **{axis: 8})


def test_heads_that_do_not_split_are_refused():
    with pytest.raises(UserError, match=r"attn/.*4 parts, which do not divide 2"):
        program_of(GPT, model=4)


def test_the_reported_step_is_the_trained_step():
    config = dataclasses.replace(GPT, name="gpt")
    config = override(config, {"sharding.fsdp": 2, "sharding.model": 2})
    found = step.problem(config, rr.target("cpu:8"))
    step_fn, specs = found.make_step()
    program = program_of(config, data=2, fsdp=2, model=2)
    trained = jax.jit(program.make_step(program.loss), donate_argnums=0)
    assert found.donate == (0,)
    assert (
        jax.jit(step_fn, donate_argnums=found.donate).lower(*specs).as_text()
        == trained.lower(program.state, program.batch).as_text()
    )


def test_the_problems_loss_takes_the_problems_specs():
    for accumulate in (1, 2):
        found = step.problem(
            override(GPT, {"accumulate": accumulate}), rr.target("cpu:8")
        )
        shapes = jax.eval_shape(jax.value_and_grad(found.loss), *found.specs)
        assert shapes[0].shape == ()
        rows = found.specs[1]["tokens"].shape[0]
        assert rows * accumulate == GPT.data.batch_size


def test_a_problem_takes_overrides_and_leaves_the_rest_to_the_target():
    found = gpt_problem(rr.target("cpu:4"), num_layers=2, **{"model.width": 64})
    blocks = found.specs[0]["blocks"]
    assert blocks["mlp"]["up"]["kernel"].shape == (2, 64, 1, 512)
    assert dict(found.specs[1]["tokens"].sharding.mesh.shape) == {
        "data": 4,
        "fsdp": 1,
        "model": 1,
    }


def test_sizes_that_do_not_suit_the_target_are_refused():
    with pytest.raises(UserError, match=r"sharding: .*3 does not divide 8 devices"):
        gpt_problem(rr.target("cpu:8"), **{"sharding.model": 3})


LONG_TO_TRACE = ("fcos_digits", "revbifpn_fashion")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in LONG_TO_TRACE else ())
        for name in configs.names()
    ],
)
def test_every_experiment_is_a_problem_for_eight_cards_without_an_allocation(name):
    before = {id(array) for array in jax.live_arrays()}
    found = step.problem(configs.load(name), rr.target("h100:8"))
    step_fn, specs = found.make_step()
    state, metrics = jax.eval_shape(step_fn, *specs)
    assert jax.tree.structure(state) == jax.tree.structure(specs[0])
    assert set(metrics) == {"loss", "grad_norm", "learning_rate"}
    after = [array for array in jax.live_arrays() if id(array) not in before]
    assert sum(array.nbytes for array in after) < 10_000


@pytest.mark.slow
def test_24_layers_compile_for_eight_cards_that_are_not_there():
    """Two replicas of four H100s: 4.9e9 parameters, moments and activations."""
    found = step.problem(configs.load("gpt_24"), rr.target("h100:8"))
    step_fn, specs = found.make_step()
    memory = rr.measure(
        step_fn, *specs, target="h100:8", donate=found.donate, cache=False
    ).memory
    assert memory.argument_bytes == sharding.bytes_per_device(specs)
    # All of the state is donated; what is left is the three metrics.
    batch_bytes = sharding.bytes_per_device(specs[1])
    assert memory.argument_bytes - memory.alias_bytes - batch_bytes < 100
    params = sum(leaf.size for leaf in jax.tree.leaves(specs[0].params))
    assert 4.8e9 < params < 5.0e9
    state_bytes = 12 * params // 4
    assert state_bytes < memory.argument_bytes < 1.01 * state_bytes
    # One layer's float32 scores on a card, and what 24 layers keep at the least.
    scores_bytes = 4 * (8 // 2) * (32 // 4) * 2048**2
    assert memory.temp_bytes > 24 * scores_bytes
    assert memory.total_bytes < rr.target("h100:8").usable_bytes
