"""Calls without a time model are named, with how often a step runs them."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr

SQUARE = jax.ShapeDtypeStruct((64, 64), jnp.float32)
IMAGE = jax.ShapeDtypeStruct((2, 8, 32, 32), jnp.float32)
PREFIX = " no time model: of their time only reading"


def noted(step, spec=SQUARE, target="cpu:1"):
    m = rr.measure(step, spec, target=target)
    found = [note for note in m.notes if PREFIX in note]
    assert len(found) <= 1
    return found[0].split(PREFIX)[0] if found else ""


def scanned(step, length):
    return lambda a: jax.lax.scan(lambda x, _: (step(x), None), a, length=length)[0]


def host(x):
    return jax.pure_callback(lambda v: v, SQUARE, x)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (jnp.linalg.cholesky, "1 call of cholesky (lapack_spotrf_ffi) has"),
        (
            lambda a: jnp.linalg.eigh(a + a.T)[0],
            "1 call of eigh (lapack_ssyevd_ffi) has",
        ),
        (lambda a: jnp.linalg.svd(a)[0], "1 call of svd (lapack_sgesdd_ffi) has"),
        (
            lambda a: jnp.linalg.qr(a)[0],
            "1 call of qr (lapack_sgeqrf_ffi), 1 call of qr (lapack_sorgqr_ffi) have",
        ),
        (lambda a: jnp.abs(jnp.fft.fft(a)), "1 call of fft has"),
        (lambda a: jnp.sort(a, axis=0), "1 call of sort has"),
        (lambda a: jax.lax.top_k(a, 3)[0], "1 call of TopK has"),
    ],
)
def test_each_call_without_a_model_is_named(step, said):
    assert noted(step) == said


@pytest.mark.parametrize("length", [3, 7])
def test_a_loop_runs_it_as_often_as_its_body(length):
    step = scanned(scanned(jnp.linalg.cholesky, 2), length)
    assert noted(step) == f"{2 * length} calls of cholesky (lapack_spotrf_ffi) have"


def test_a_callback_into_python_is_one_of_them():
    assert noted(host).startswith("1 call of Python callback (")


def test_many_kinds_are_cut_short():
    def step(a):
        parts = (
            jnp.linalg.cholesky(a),
            jnp.linalg.eigh(a)[1],
            jnp.linalg.qr(a)[0],
            jnp.linalg.svd(a)[0],
            jnp.sort(a),
        )
        return sum(parts)

    said = noted(step)
    assert said.endswith(", 2 more kinds have")
    assert said.count("call") == 4


def convolved(a):
    return jax.lax.conv(a, a[:, :, :3, :3], (1, 1), "SAME")


@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
@pytest.mark.parametrize(
    ("step", "spec"),
    [
        (lambda a: jnp.tanh(a @ a), SQUARE),
        (convolved, IMAGE),
        (scanned(lambda a: a @ a, 3), SQUARE),
        (lambda a: a + jax.random.normal(jax.random.key(0), a.shape), SQUARE),
    ],
)
def test_what_has_a_model_is_not_noted(step, spec, target):
    assert noted(step, spec, target) == ""


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (
            scanned(jnp.linalg.cholesky, 5),
            "5 calls of cholesky (cusolver_potrf_ffi) have",
        ),
        (lambda a: jnp.linalg.eigh(a)[0], "1 call of eigh (cusolver_syevd_ffi) has"),
    ],
)
def test_of_a_card_that_is_elsewhere(step, said):
    assert noted(step, target="h100:1") == said
