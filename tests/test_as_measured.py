"""What runs is what was measured: XLA's own remat pass, off and on."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import xla
from revremat._measure import _read
from tests.xla.programs import spec

W, X = [spec(64, 64)] * 8, spec(8192, 64)


def loss(w, x):
    for one in w:
        x = jnp.sin(x) @ one
    return (x**2).mean()


def small_card():
    """An H100 of whose memory XLA gets 19 MiB: the step takes 20, its pass sets in."""
    card, size = rr.target("h100:1").card, 24 << 20
    card = dataclasses.replace(card, device_memory_size=size, reserve_bytes=size // 5)
    return dataclasses.replace(rr.target("h100:1"), card=card)


TARGET = small_card()
STEP = jax.grad(loss)


@pytest.fixture(scope="module")
def taken():
    return {
        on: rr.measure(STEP, W, X, target=TARGET, remat_pass=on) for on in (False, True)
    }


def test_the_pass_computes_again_what_the_program_keeps(taken):
    assert taken[True].memory.total_bytes < 0.95 * taken[False].memory.total_bytes
    assert any("remat pass is off" in note for note in taken[False].notes)
    assert any("remat pass is on" in note for note in taken[True].notes)


def test_either_is_read_from_the_disk_as_itself(taken):
    for on, found in taken.items():
        again = rr.measure(STEP, W, X, target=TARGET, remat_pass=on)
        assert again.cached
        assert again.memory == found.memory


def test_limits_of_the_callers_own_compiles_are_not_those_of_a_measurement(
    taken, tmp_path, monkeypatch
):
    monkeypatch.setenv("REVREMAT_CACHE", str(tmp_path))
    with rr.Plan((), program="", remat_pass_percent=60).compiling():
        found = rr.measure(STEP, W, X, target=TARGET, remat_pass=True)
    again = rr.measure(STEP, W, X, target=TARGET, remat_pass=True)
    assert (found.cached, again.cached) == (False, True)
    assert found.memory == again.memory == taken[True].memory


@pytest.mark.parametrize(
    ("remat_pass", "is_enough"),
    [(False, False), (True, True), ("both", False)],
)
def test_a_budget_between_the_two_fits_with_the_pass_alone(
    taken, remat_pass, is_enough
):
    off, on = (taken[k].memory.total_bytes for k in (False, True))
    budget = (off + on) // 2
    given = {"target": TARGET, "budget": budget, "remat_pass": remat_pass}
    if is_enough:
        assert rr.assert_fits(STEP, W, X, **given).memory.total_bytes == on
        return
    with pytest.raises(Exception, match="more than the budget") as told:
        rr.assert_fits(STEP, W, X, **given)
    assert ("remat pass off" in str(told.value)) == (remat_pass == "both")


def test_of_two_measurements_the_larger_comes_back(taken):
    found = rr.assert_fits(STEP, W, X, target=TARGET, budget="24MiB", remat_pass="both")
    assert found.memory == taken[False].memory


@pytest.mark.parametrize("remat_pass", ["on", None, 2])
def test_what_says_neither_is_refused(remat_pass):
    with pytest.raises(rr.UserError, match=r'write False .* True .* or "both"'):
        rr.assert_fits(STEP, W, X, target="cpu:1", remat_pass=remat_pass)


@pytest.fixture(scope="module")
def fit():
    w = spec(6, 64, 64)
    stacked = lambda w, x: rr.stack(lambda w, x: jnp.tanh(x @ w), w, x).sum()
    return rr.fit(stacked, w, spec(64, 64), budget="1MiB", target="cpu:1")


HOW = ["as JAX does", "as_measured", "compiler_options"]


@pytest.mark.every_commit("as_measured")
@pytest.mark.parametrize("how", HOW)
def test_a_fit_hands_out_what_makes_a_compile_the_measured_one(fit, taken, how):
    """By the bytes of an executable that JAX itself made, no matter with which card."""
    given = fit.compiler_options if how == "compiler_options" else None
    within = fit.as_measured if how == "as_measured" else contextlib.nullcontext
    asked = {"xla_gpu_autotune_level": 0}  # there is no card to tune on
    with within():
        jitted = jax.jit(STEP, compiler_options=given)
        lowered = xla.lower_step(jitted, (W, X), TARGET).program
        found = lowered.compile({**asked, **(given or {})}).memory_analysis()
    wanted = taken[how == "as JAX does"].memory
    assert found.temp_size_in_bytes == wanted.temp_bytes


def test_it_leaves_jax_as_it_was(fit):
    name = "jax_compiler_enable_remat_pass"
    before = getattr(jax.config, name)
    with fit.as_measured():
        assert getattr(jax.config, name) is False
    assert getattr(jax.config, name) == before


def test_what_ran_before_is_compiled_once_more(fit):
    count = []
    step = jax.jit(lambda x: (count.append(1), x)[1])
    for _ in range(2):
        step(1.0)
        with fit.as_measured():
            step(1.0)
    assert len(count) == 2


@pytest.mark.parametrize("way", ["as_measured", "compiler_options"])
def test_it_runs(fit, way):
    w, x = jnp.ones((6, 64, 64)) / 64, jnp.ones((64, 64))
    if way == "as_measured":
        with fit.as_measured():
            found = jax.jit(fit.loss)(w, x)
    else:
        found = jax.jit(fit.loss, compiler_options=fit.compiler_options)(w, x)
    assert jnp.allclose(found, jax.jit(fit.loss)(w, x))


@pytest.mark.parametrize("target", ["cuda", "tpu", "cpu"])
def test_a_fit_says_so_where_the_compiler_has_that_pass(fit, target):
    notes = _read._NOTES[target]
    measured = dataclasses.replace(fit.measurement, notes=notes)
    text = rr.render(dataclasses.replace(fit, measurement=measured))
    told = "with fit.as_measured():" in " ".join(text.split())
    assert told == (target != "cpu")
