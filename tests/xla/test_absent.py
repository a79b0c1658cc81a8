"""What a program says to the machine it is traced on is about the target instead."""

import subprocess
import sys

from jax import default_backend as asked_by_name  # isort: skip

import equinox as eqx
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify, io_callback
from jax.experimental.custom_partitioning import custom_partitioning

import revremat as rr
from tests.xla.programs import spec

W, X = spec(4, 64, 64), spec(256, 64)


def scanned(body):
    def loss(w, x):
        layer = lambda x, w: (body(jnp.tanh(x @ w)), None)
        return (jax.lax.scan(layer, x, w)[0] ** 2).mean()

    return loss


def printed(x, **how):
    jax.debug.print("largest {}", jnp.abs(x).max(), **how)
    return x


def told(x):
    jax.debug.callback(lambda value: None, x)
    return x


def sin_on_host(call, **how):
    def body(x):
        fixed = jax.lax.stop_gradient(x)
        found = call(np.sin, jax.typeof(x), fixed, **how)
        return x + jax.lax.stop_gradient(found)

    return body


def inspected(x):
    jax.debug.inspect_array_sharding(x, callback=lambda sharding: None)
    return x


CALLBACKS = {
    "debug.print": printed,
    "debug.print, ordered": lambda x: printed(x, ordered=True),
    "debug.callback": told,
    "pure_callback": sin_on_host(jax.pure_callback),
    "io_callback": sin_on_host(io_callback),
    "io_callback, ordered": sin_on_host(io_callback, ordered=True),
    "eqx.error_if": lambda x: eqx.error_if(x, jnp.isnan(x).any(), "not a number"),
    "inspect_array_sharding": inspected,
}


@pytest.mark.parametrize("callback", CALLBACKS)
def test_callbacks_are_measured_for_a_card_that_is_elsewhere(callback):
    plain = rr.measure(jax.grad(scanned(lambda x: x)), W, X, target="h100:1").memory
    found = rr.measure(jax.grad(scanned(CALLBACKS[callback])), W, X, target="h100:1")
    bytes_ = found.memory.total_bytes
    assert plain.total_bytes <= bytes_ <= plain.total_bytes + 4 * 3 * X.size


@pytest.mark.parametrize("callback", ["debug.print", "pure_callback"])
def test_so_they_are_on_several_cards(callback):
    mesh = rr.target("h100:8").mesh({"data": 8})
    x = spec(256, 64, sharding=jax.NamedSharding(mesh, jax.P("data")))
    step = jax.grad(scanned(CALLBACKS[callback]))
    assert rr.measure(step, W, x, target="h100:8").memory.total_bytes > 0


def test_ordered_ones_on_several_cards_are_refused_in_a_sentence():
    step = jax.grad(scanned(CALLBACKS["debug.print, ordered"]))
    with pytest.raises(rr.UserError, match=r"ordered callbacks.*leave out"):
        rr.measure(step, W, X, target="h100:8")


def test_a_program_with_callbacks_is_searched():
    loss = scanned(printed)
    fit = rr.fit(loss, W, X, budget="1MiB", target="h100:1", most_compiles=12)
    assert fit.plan.fits


@custom_partitioning
def doubled(x):
    return 2 * jnp.sin(x)


doubled.def_partition(
    infer_sharding_from_operands=lambda mesh, args, result: args[0].sharding,
    partition=lambda mesh, args, result: (
        mesh,
        lambda x: 2 * jnp.sin(x),
        result.sharding,
        (args[0].sharding,),
    ),
    sharding_rule="... -> ...",
)


def checked(x):
    _, out = checkify.checkify(
        lambda x: (checkify.check((x > 0).all(), "negative"), jnp.sin(x))[1]
    )(x)
    return out


@pytest.mark.parametrize("body", [doubled, checked, eqx.filter_checkpoint(jnp.sin)])
@pytest.mark.parametrize("target", ["h100:8", "cpu:8"])
def test_what_is_lowered_by_platform_or_partition_is_measured(body, target):
    mesh = rr.target(target).mesh({"data": 8})
    x = spec(256, 64, sharding=jax.NamedSharding(mesh, jax.P("data")))
    memory = rr.measure(body, x, target=target).memory
    assert memory.argument_bytes == memory.output_bytes == 4 * X.size // 8


def wide(x):
    """A temporary sixteen times as large as `x`."""
    return jnp.sort(jnp.concatenate([x * k for k in range(16)], 1), 1)[:, :64]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "target", ["h100:1", "cpu:1", pytest.param("v5e:1x1", marks=SLOW)]
)
def test_the_targets_branch_of_platform_dependent_is_taken(target):
    platform = rr.target(target).platform
    others = {name: jnp.tanh for name in ("cuda", "tpu", "cpu")}

    def step(x, branches):
        return jax.lax.platform_dependent(x, **branches)

    def temp(**branches):
        return rr.measure(
            lambda x: step(x, {**others, **branches}), X, target=target
        ).memory.temp_bytes

    elsewhere = next(name for name in others if name != platform)
    assert temp(**{platform: wide}) >= 16 * 4 * X.size
    assert temp(**{elsewhere: wide}) < 4 * 4 * X.size


QUESTIONS = {
    "default_backend": lambda: jax.default_backend() == "gpu",
    "asked by name": lambda: asked_by_name() == "gpu",
    "devices": lambda: jax.devices()[0].platform == "gpu",
    "device_kind": lambda: "H100" in jax.local_devices()[0].device_kind,
    "extend": lambda: jax.extend.backend.get_backend().platform == "gpu",
    "device_count": lambda: jax.device_count() == 4,
    "local_device_count": lambda: jax.local_device_count() == 4,
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_program_that_asks_where_it_is_gets_the_target_for_an_answer(question):
    def step(x):
        return wide(x) if QUESTIONS[question]() else jnp.tanh(x)

    here = jax.default_backend(), jax.devices(), jax.device_count()
    temp = {t: rr.measure(step, X, target=t).memory.temp_bytes for t in TARGETS}
    assert temp["cpu:2"] < 4 * X.size
    assert temp["h100:4"] >= 16 * 4 * X.size
    assert (jax.default_backend(), jax.devices(), jax.device_count()) == here


TARGETS = ("cpu:2", "h100:4")  # in this order: what was traced for one is not another's


def test_a_function_jitted_within_is_traced_for_each_target():
    count = jax.jit(lambda x: x * jax.device_count())
    step = lambda x: wide(count(x)) if jax.device_count() > 1 else count(x)
    temp = [
        rr.measure(step, X, target=t).memory.temp_bytes
        for t in ("cpu:1", "cpu:2", "cpu:1")
    ]
    assert temp[0] == temp[2] < 16 * 4 * X.size <= temp[1]


def test_hosts_are_counted():
    answers = []
    step = lambda x: (answers.append((jax.process_count(), jax.device_count())), x)[1]
    rr.measure(step, X, target="a100:2x8")
    assert answers == [(2, 16)]


def test_a_mesh_that_the_program_makes_is_one_of_the_target():
    def step(x):
        mesh = jax.make_mesh(
            (jax.device_count(),), ("d",), (jax.sharding.AxisType.Auto,)
        )
        return jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh, jax.P("d")))

    m = rr.measure(step, X, target="h100:4")
    assert m.memory.output_bytes == 4 * X.size // 4


@pytest.mark.parametrize("target", ["cpu:2", pytest.param("h100:1", marks=SLOW)])
def test_a_search_traces_the_targets_program(target):
    """Its units are those of the program that is compiled."""

    def loss(w, x):
        layer = jnp.tanh if jax.default_backend() == "cpu" else jnp.sin
        return rr.stack(lambda w, x: layer(x @ w), w, x).sum()

    fit = rr.fit(loss, W, X, budget="1MiB", target=target, most_compiles=12)
    assert fit.plan.fits


def test_without_a_target_jax_answers_as_ever():
    program = (
        "import jax, inspect\n"
        "before = inspect.signature(jax.devices), jax.devices.__doc__\n"
        "import revremat as rr\n"
        "x = jax.ShapeDtypeStruct((8,), 'float32')\n"
        "rr.measure(lambda x: x, x, target='cpu:1', cache=False)\n"
        "assert (inspect.signature(jax.devices), jax.devices.__doc__) == before\n"
        "assert jax.devices('cpu') == jax.devices() == jax.local_devices()\n"
        "assert len(jax.devices()) == jax.device_count(backend='cpu') == 3\n"
    )
    env = {"JAX_NUM_CPU_DEVICES": "3", "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", program], check=True, env=env)
