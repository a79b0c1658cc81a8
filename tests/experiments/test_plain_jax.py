"""Loops in plain JAX: the same loss and gradients, without any of revremat in it."""

import jax
import jax.numpy as jnp
import pytest

from experiments.bench.plain_jax import FORMS, Loops, has_loops, written
from tests.experiments import small_stack

LAYERS = 4


def scanned(w, x):
    layer = lambda x, w: (x + jnp.tanh(x @ w), x.mean())
    out, means = jax.lax.scan(layer, x, w)
    return (out**2).mean() + (means**2).sum()


def backwards(w, x):
    layer = lambda x, w: (x + jnp.tanh(x @ w), x.mean())
    out, means = jax.lax.scan(layer, x, w, reverse=True)
    return (out**2).mean() + (jnp.arange(LAYERS) * means).sum()


def loop_in_a_layer(w, x):
    def layer(x, w):
        again = lambda x, _: (jnp.sin(x @ w), None)
        return x + jax.lax.scan(again, x, length=3)[0], None

    return (jax.lax.scan(layer, x, w)[0] ** 2).mean()


def arguments():
    w = 0.1 * jax.random.normal(jax.random.key(0), (LAYERS, 8, 8))
    return w, jax.random.normal(jax.random.key(1), (16, 8))


@pytest.mark.every_commit(
    "scan-scanned",
    "unrolled by 4-backwards",
    "unrolled by 16-loop_in_a_layer",
    "unrolled-scanned",
    "Python loop-backwards",
)
@pytest.mark.parametrize("loss", [scanned, backwards, loop_in_a_layer])
@pytest.mark.parametrize("form", FORMS)
def test_loss_and_gradients_are_the_same(loss, form):
    with jax.enable_x64(True):
        args = jax.tree.map(lambda a: a.astype(jnp.float64), arguments())
        derived = lambda f: jax.jit(jax.value_and_grad(f))(*args)
        expected = derived(loss)
        for policy in ("save all", "dots"):
            found = derived(written(loss, Loops(form, policy)))
            equal = jax.tree.map(
                lambda a, b: jnp.allclose(a, b, 1e-12), found, expected
            )
            assert all(map(bool, jax.tree.leaves(equal))), policy


@pytest.mark.parametrize(
    ("loops", "num_loops", "has_checkpoint"),
    [
        (Loops("scan"), 1, False),
        (Loops("scan", "dots"), 1, True),
        (Loops("unrolled by 4"), 0, False),  # no more layers than that
        (Loops("unrolled by 4", "dots"), 0, True),
        (Loops("unrolled"), 0, False),
        (Loops("unrolled", "recompute all"), 0, True),
        (Loops("Python loop", "dots_no_batch"), 0, True),
    ],
)
def test_loops_are_written_as_is_said(loops, num_loops, has_checkpoint):
    loss = written(scanned, loops)
    text = str(jax.make_jaxpr(loss)(*arguments()))
    assert ("prevent_cse" in text) == has_checkpoint
    lowered = jax.jit(loss).lower(*arguments()).as_text()
    assert lowered.count("stablehlo.while") == num_loops


def test_loops_within_layers_stay_as_they_are():
    text = jax.jit(written(loop_in_a_layer, Loops("unrolled"))).lower(*arguments())
    assert text.as_text().count("stablehlo.while") >= 1


def test_scans_are_jaxs_own_afterwards():
    before = jax.lax.scan
    written(scanned, Loops("unrolled"))(*arguments())
    assert jax.lax.scan is before
    with pytest.raises(TypeError):
        written(scanned, Loops("unrolled"))(*arguments(), "one too many")
    assert jax.lax.scan is before


@pytest.mark.parametrize(
    ("loss", "args", "has"),
    [
        (scanned, arguments(), True),
        (lambda w, x: (x @ w[0]).sum(), arguments(), False),
        (small_stack.loss, small_stack.problem().specs, True),
    ],
)
def test_whether_there_are_loops(loss, args, has):
    assert has_loops(loss, args) == has
