"""Loops with a derivative of their own: the graph names the line and what to change."""

from pathlib import Path

import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import pytest

import revremat as rr

HERE = Path(__file__)
W = jax.ShapeDtypeStruct((8, 8), jnp.float32)
X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
STEPS = 10


def step(w, x):
    return x + jnp.tanh(jnp.sin(x @ w))


def steps(w, x):
    return jax.lax.scan(lambda x, _: (step(w, x), x), x, None, length=STEPS)


@jax.custom_vjp
def saves_all(w, x):
    return steps(w, x)[0]


def saving(w, x):
    last, all_of_them = steps(w, x)
    return last, (w, all_of_them)


def from_saved(kept, ct):
    w, xs = kept

    def back(sums, x):
        ct, total = sums
        more, ct = jax.vjp(step, w, x)[1](ct)
        return (ct, total + more), None

    (ct, total), _ = jax.lax.scan(back, (ct, jnp.zeros_like(w)), xs, reverse=True)
    return total, ct


saves_all.defvjp(saving, from_saved)


@jax.custom_vjp
def runs_again(w, x):
    return steps(w, x)[0]


runs_again.defvjp(
    lambda w, x: (runs_again(w, x), (w, x)),
    lambda kept, ct: jax.vjp(lambda w, x: steps(w, x)[0], *kept)[1](ct),
)


@jax.custom_vjp
def no_loop(x):
    return jnp.sin(x)


no_loop.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))


def bounded(w, x, checkpoints):
    more = lambda carry: (step(w, carry[0]), carry[1] + 1)
    start, most = (x, 0), {"max_steps": 16, "checkpoints": checkpoints}
    test = lambda carry: carry[1] < STEPS
    last = eqxi.while_loop(test, more, start, kind="checkpointed", **most)  # here
    return last[0].sum()


def told(run):
    return rr.trace(run, W, X).undecided


XS = STEPS * 4 * 8 * 4


@pytest.mark.parametrize(
    ("run", "does"),
    [
        (saves_all, f"keeps {rr.format_bytes(XS)}"),
        (runs_again, "runs again backward"),
    ],
)
def test_the_line_what_it_keeps_and_what_to_write(run, does):
    (sentence,) = told(lambda w, x: run(w, x).sum())
    assert sentence.startswith(f"{HERE}:")
    assert f"{does}, and no plan decides about its iterations" in sentence
    assert "write a jax.lax.scan without that" in sentence
    assert len(sentence) <= 400


def test_in_bodies_of_loops_and_in_checkpoints_too():
    again = lambda w, x: (saves_all(w, x), None)
    loop = lambda w, x: jax.lax.scan(lambda x, _: again(w, x), x, None, length=2)[0]
    assert len(told(lambda w, x: loop(w, x).sum())) == 1
    assert len(told(lambda w, x: jax.checkpoint(saves_all)(w, x).sum())) == 1


@pytest.mark.parametrize("checkpoints", [2, 4])
def test_loops_of_a_library_have_the_line_that_calls_them(checkpoints):
    (sentence,) = told(lambda w, x: bounded(w, x, checkpoints))
    lines = HERE.read_text().splitlines()
    (number,) = (k for k, text in enumerate(lines, 1) if text.endswith("# here"))
    assert sentence.startswith(f"{HERE}:{number} (bounded)")


def test_fewer_checkpoints_keep_less():
    few, many = (told(lambda w, x, n=n: bounded(w, x, n))[0] for n in (2, 8))
    assert few != many


@pytest.mark.parametrize(
    "loss",
    [
        lambda w, x: no_loop(x).sum(),
        lambda w, x: steps(w, x)[0].sum(),
        lambda w, x: rr.stack(step, jnp.stack([w] * 3), x).sum(),
        lambda w, x: rr.stack(step, jnp.stack([w] * 3), x, actions=rr.RECOMPUTE).sum(),
    ],
)
def test_nothing_of_functions_without_loops_and_of_plain_loops(loss):
    assert told(loss) == ()


def test_the_text_of_a_graph_has_it_and_its_json_too():
    graph = rr.trace(lambda w, x: saves_all(w, x).sum(), W, X)
    assert graph.undecided[0] in str(graph)
    assert type(graph).from_json(graph.to_json()) == graph
