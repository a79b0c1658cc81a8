"""Kernels whose authors ask for a card: compiled for one that is not there."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import revremat as rr
from revremat.policies import candidates, named
from revremat.program.ir._attention import num_pairs
from revremat.xla import Module, lower_step
from revremat.xla.step_time._cost import cost_of

LAYERS, BATCH, LENGTH, HEADS, FEATURES = 4, 2, 512, 8, 64
WIDTH = HEADS * FEATURES


def layer(x, w, features=FEATURES, **how):
    split = lambda name: (x @ w[name]).reshape(BATCH, LENGTH, -1, features)
    made = jax.nn.dot_product_attention(
        split("q"), split("k"), split("v"), implementation="cudnn", **how
    )
    return x + made.reshape(x.shape) @ w["o"]


def loss(w, x, **how):
    return (
        jax.lax.scan(lambda x, w: (layer(x, w, **how), None), x, w)[0]
        .astype(jnp.float32)
        .sum()
    )


def specs(split=None, rows=None):
    array = lambda sharding, *shape: jax.ShapeDtypeStruct(
        shape, jnp.bfloat16, sharding=sharding
    )
    w = {name: array(split, LAYERS, WIDTH, WIDTH) for name in "qkvo"}
    return w, array(rows, BATCH, LENGTH, WIDTH)


def calls(step, args, target):
    module = Module.from_bytes(lower_step(step, args, target).compile().hlo)
    return [
        cost_of(i, module)
        for i in module.instructions.values()
        if i.custom_call_target.startswith("__cudnn$fmha")
    ]


@pytest.fixture
def target():
    target = rr.target("h100:1")
    if missing := target.missing():
        pytest.skip(missing)
    return target


@pytest.mark.parametrize(
    ("how", "pairs"),
    [
        ({}, LENGTH**2),
        ({"is_causal": True}, LENGTH * (LENGTH + 1) // 2),
        (
            {"is_causal": True, "local_window_size": (31, 0)},
            sum(min(k + 1, 32) for k in range(LENGTH)),
        ),
    ],
)
def test_its_products_are_counted_two_forward_and_five_backward(target, how, pairs):
    found = calls(jax.grad(functools.partial(loss, **how)), specs(), target)
    one = 2 * BATCH * HEADS * pairs * FEATURES
    assert sorted(cost.matmul_flops["bfloat16"] for cost in found) == [2 * one, 5 * one]


def test_heads_split_over_cards_are_each_cards_own(target):
    target = rr.target("h100:8")
    mesh = target.mesh({"data": 2, "model": 4})
    w, x = specs(
        NamedSharding(mesh, P(None, None, "model")), NamedSharding(mesh, P("data"))
    )
    w["o"] = jax.ShapeDtypeStruct(
        w["o"].shape, w["o"].dtype, sharding=NamedSharding(mesh, P(None, "model"))
    )
    found = calls(jax.grad(loss), (w, x), target)
    one = 2 * BATCH * HEADS * LENGTH**2 * FEATURES // 8
    assert sorted(cost.matmul_flops["bfloat16"] for cost in found) == [2 * one, 5 * one]


def test_what_the_cards_own_kernels_cannot_do_is_refused(target):
    wide = functools.partial(loss, features=256)
    assert calls(jax.grad(wide), specs(), target)
    with pytest.raises(NotImplementedError, match="head dim must be <= 128"):
        rr.measure(jax.grad(wide), *specs(), target="a100:1")


def test_cards_and_devices_that_have_none_are_told_of(target):
    with pytest.raises(NotImplementedError, match=r"8\.0 or more, and the target's is"):
        rr.measure(jax.grad(loss), *specs(), target="v100:1")
    with pytest.raises(rr.UserError, match="which cpu:1 does not have: write another"):
        rr.measure(jax.grad(loss), *specs(), target="cpu:1")


def test_layers_of_a_python_loop_are_layers_wherever_their_input_is_made():
    w, x = specs()
    each = [{k: jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for k, a in w.items()}] * 6
    in_turn = lambda w, x: functools.reduce(lambda x, w: layer(x, w), w, x).sum()
    (given,) = rr.trace(in_turn, each, x).units
    (made,) = rr.trace(lambda w, x: in_turn(w, jnp.tanh(x)), each, x).units
    assert (given.num_layers, made.num_layers) == (6, 6)
    assert len(given.operations) == len(made.operations)


@pytest.mark.slow
def test_a_plan_keeps_all_that_spares_the_kernel(target):
    plan = rr.search(loss, *specs(), budget="40MiB", target=target, most_compiles=16)
    assert plan.fits
    (unit,) = rr.trace(loss, *specs()).units
    (attention,) = (op for op in unit.operations if "attention" in op.kind)
    out, sums = (unit.values[k].name for k in attention.outputs)
    assert attention.num_flops == 4 * BATCH * HEADS * LENGTH**2 * FEATURES
    assert set(named(unit, "save_dot_with_context_except_mlp").save) >= {out, sums}
    spared = [{out, sums} <= set(unit.kept(c.action).saved) for c in candidates(unit)]
    assert sum(spared) >= 2
    for candidate, both in zip(candidates(unit), spared, strict=True):
        alone = {out, sums} & set(candidate.action.save)
        assert both or not alone, candidate


def test_workspaces_of_the_librarys_products_are_those_it_asks_for(target):
    """XLA assigns them where it assigns tiles, which is not done at each compile."""
    step = jax.grad(loss)
    ours, whole = (
        rr.measure(step, *specs(), target=target, cache=cache).memory
        for cache in (True, False)
    )
    assert ours == whole
    found = Module.from_bytes(lower_step(step, specs(), target).compile().hlo)
    called = [i.custom_call_target for i in found.instructions.values()]
    # Before 0.12, no product of these is one of the library.
    has_any = jax.__version_info__ >= (0, 12)
    assert any(name.startswith("__cublas$") for name in called) == has_any


def exponential(x):
    """A kernel of one's own."""

    def piece(x, y):
        rows = pl.ds(jax.lax.axis_index("piece") * 128, 128)
        y[rows] = jnp.exp(x[rows])

    made = jax.ShapeDtypeStruct(x.shape, x.dtype)
    grid = {"grid": (x.size // 128,), "grid_names": ("piece",)}
    return plgpu.kernel(piece, out_type=made, **grid)(x)


def test_a_kernel_of_ones_own_is_made_for_the_target_and_not_timed(target):
    x = jax.ShapeDtypeStruct((1024,), jnp.float32)
    told = rr.measure(exponential, x, target=target).notes
    assert any("their arithmetic is not known" in note for note in told)
    plain = rr.measure(jnp.exp, x, target=target).notes
    assert not any("their arithmetic is not known" in note for note in plain)


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")
@pytest.mark.parametrize("card", ["a6000", "h800"])
def test_pallas_is_told_of_cards_that_it_does_not_know_by_name(target, card):
    def kernel(x, y):
        y[...] = jnp.exp(x[...])

    x = jax.ShapeDtypeStruct((1024,), jnp.float32)
    step = pl.pallas_call(kernel, out_shape=x)
    assert rr.measure(step, x, target=f"{card}:1").memory.total_bytes == 8192


@pytest.mark.parametrize("estimate", [None, pl.CostEstimate(3 << 30, 0, 0)])
def test_on_tpu_a_kernels_author_says_what_it_computes(estimate):
    tpu = rr.target("v5e:1x1")
    if missing := tpu.missing():
        pytest.skip(missing)

    def kernel(x, y):
        y[...] = jnp.exp(x[...])

    def step(x):
        assert pltpu.get_tpu_info().num_lanes == 128  # kernels ask what they run on
        made = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, out_shape=made, cost_estimate=estimate)(x)

    x = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    module = Module.from_bytes(lower_step(step, (x,), tpu).compile().hlo)
    costs = [cost_of(i, module) for i in module.instructions.values()]
    flops = sum(sum(cost.matmul_flops.values()) for cost in costs)
    assert flops == (estimate.flops if estimate else 0)
    notes = rr.measure(step, x, target=tpu).notes
    assert any("arithmetic is not known" in note for note in notes) == (not estimate)


def test_layers_with_a_kernel_of_ones_own_are_units():
    @jax.custom_vjp
    def activation(x):
        return exponential(x)

    forward = lambda x: (exponential(x), exponential(x))
    activation.defvjp(forward, lambda kept, ct: (kept * ct,))
    layer = lambda x, w: activation(x * w)
    w = jax.ShapeDtypeStruct((4, 256), jnp.float32)
    x = jax.ShapeDtypeStruct((256,), jnp.float32)
    scanned = lambda w, x: jax.lax.scan(lambda x, w: (layer(x, w), None), x, w)[0].sum()
    in_turn = lambda w, x: functools.reduce(layer, w, x).sum()
    assert [u.num_layers for u in rr.trace(scanned, w, x).units] == [4]
    assert rr.trace(in_turn, w, x).fingerprint == rr.trace(in_turn, w, x).fingerprint


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 1, 3, 9])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (5, 5), (7, 4), (4, 7)])
def test_pairs_are_those_one_can_count(queries, keys, window, causal):
    seen = sum(
        not causal or (k <= q and (not window or k > q - window))
        for q in range(queries)
        for k in range(keys)
    )
    assert num_pairs(queries, keys, causal=causal, window=window) == seen
