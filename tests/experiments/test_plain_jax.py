"""Loops in plain JAX: the same loss and gradients, without any of revremat in it."""

import jax
import jax.numpy as jnp
import pytest

from experiments.bench.plain_jax import (
    FORMS,
    POLICIES,
    Loops,
    layer_of,
    num_layers,
    ways,
    written,
)
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
        for loops in (
            Loops(form),
            Loops(form, "dots"),
            Loops(form, "dots", 1),
            Loops(form, "save all", 3, "recompute all"),
        ):
            found = derived(written(loss, loops))
            equal = jax.tree.map(
                lambda a, b: jnp.allclose(a, b, 1e-12), found, expected
            )
            assert all(map(bool, jax.tree.leaves(equal))), loops


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
        (Loops("scan", "dots", 2), 2, True),
        (Loops("scan", "dots", 4), 1, True),
        (Loops("unrolled", "dots", 2), 0, True),
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


def in_python(w, x):
    for k in range(LAYERS):
        x = layer_of(lambda w, x: x + jnp.tanh(x @ w))(w[k], x)
    return (x**2).mean()


@pytest.mark.parametrize("form", FORMS)
def test_xla_does_not_merge_what_a_python_loop_recomputes(form):
    text = str(jax.make_jaxpr(written(in_python, Loops(form, "dots")))(*arguments()))
    assert text.count("prevent_cse=True") == LAYERS


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_of_a_python_loop_come_under_the_policy(policy):
    loss = written(in_python, Loops("Python loop", policy))
    jaxpr = jax.make_jaxpr(loss)(*arguments())
    has_policy = POLICIES[policy] is not None
    kinds = [equation.primitive.name for equation in jaxpr.eqns]
    assert kinds.count("remat2") == LAYERS * has_policy
    expected = jax.value_and_grad(in_python)(*arguments())
    found = jax.value_and_grad(loss)(*arguments())
    equal = jax.tree.map(lambda a, b: jnp.allclose(a, b, 1e-5), found, expected)
    assert all(map(bool, jax.tree.leaves(equal)))


@pytest.mark.parametrize("form", FORMS)
def test_so_many_layers_are_under_the_first_policy(form):
    loss = written(scanned, Loops(form, "recompute all", 1))
    assert num_layers(scanned, arguments()) == LAYERS
    text = jax.jit(jax.grad(loss)).lower(*arguments()).as_text()
    uniform = written(scanned, Loops(form, "recompute all"))
    other = jax.jit(jax.grad(uniform)).lower(*arguments()).as_text()
    assert text.count("stablehlo.tanh") != other.count("stablehlo.tanh")


def test_a_layer_is_itself_where_nothing_is_written_otherwise():
    assert layer_of(jnp.tanh) is jnp.tanh


@pytest.mark.parametrize(
    ("loss", "args", "number"),
    [
        (scanned, arguments(), len(FORMS) * len(POLICIES) - 1),
        (in_python, arguments(), len(POLICIES) - 1),
        (lambda w, x: (x @ w[0]).sum(), arguments(), 0),
        (
            small_stack.loss,
            small_stack.problem().specs,
            len(FORMS) * len(POLICIES) - 1,
        ),
    ],
)
def test_all_ways_but_the_one_that_is_there(loss, args, number):
    found = ways(loss, args)
    assert len(set(found)) == len(found) == number
    assert Loops() not in found
