"""What a loss writes into dicts, lists and objects that it is given, or elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import revremat as rr

W = 0.1 * jnp.ones((3, 4, 4))
X = jnp.ones((2, 4))


def net(w, x):
    for k in range(3):
        x = jnp.tanh(x @ w[k])
    return (x**2).mean()


def planned(loss, *args):
    graph = rr.trace(loss, *args)
    return rr.apply(loss, graph.plan({graph.units[0].name: rr.RECOMPUTE}))


class Holder:
    """A tree that may be written into."""

    def __init__(self, total, note):
        self.total, self.note = total, note


jax.tree_util.register_pytree_node(
    Holder, lambda h: ((h.total,), h.note), lambda note, c: Holder(c[0], note)
)


class Sealed:
    """A tree whose contents are nowhere that could be written."""

    def __init__(self, items):
        self.items = items


jax.tree_util.register_pytree_node(
    Sealed, lambda s: (tuple(s.items), None), lambda _, c: Sealed([*c])
)


def counts(w, cache, x):
    cache["n"] += 1
    return net(w, x)


def adds_a_key(w, cache, x):
    cache["mean"] = x.mean()
    return net(w, x)


def removes_a_key(w, cache, x):
    del cache["n"]
    return net(w, x)


def appends(w, cache, x):
    cache["log"].append(x.sum())
    return net(w, x)


def moves_an_average(w, cache, x):
    cache["n"] = 0.9 * cache["n"] + x.mean()
    return net(w, x)


def notes(w, cache, x):
    cache["text"] = "seen"
    return net(w, x)


def swaps(w, cache, x):
    cache["n"], cache["log"] = cache["log"], [cache["n"]]
    return net(w, x)


CHANGES = [
    counts,
    adds_a_key,
    removes_a_key,
    appends,
    moves_an_average,
    notes,
    swaps,
]


def number_of_python():
    return {"n": 0, "log": []}


def array():
    return {"n": jnp.ones(()), "log": [jnp.zeros(2)]}


@pytest.mark.parametrize("cache", [number_of_python, array])
@pytest.mark.parametrize("loss", CHANGES)
def test_a_dict_is_as_the_loss_leaves_it(loss, cache):
    expected, found, traced = cache(), cache(), cache()
    f = planned(loss, W, traced, X)
    assert str(traced) == str(cache())
    once = loss in (removes_a_key, swaps, notes, moves_an_average)
    for _ in range(1 if once else 2):
        value = jax.value_and_grad(loss)(W, expected, X)
        got = jax.value_and_grad(f)(W, found, X)
        np.testing.assert_allclose(got[0], value[0])
    assert str(found) == str(expected)  # types, values and order


def test_under_jit_what_is_written_goes_on():
    def step(f):
        def run(w, cache, x):
            jax.grad(f)(w, cache, x)
            return cache

        return jax.jit(run)(W, array(), X)

    assert str(step(planned(moves_an_average, W, array(), X))) == str(
        step(moves_an_average)
    )


def test_a_number_of_python_cannot_change_under_jit():
    f = planned(counts, W, {"n": 0}, X)
    cache = {"n": 0}
    with pytest.raises(rr.UserError, match=r"argument 1\['n'\] is 0.*jnp.asarray"):
        jax.jit(lambda w, x: f(w, cache, x))(W, X)
    assert cache == {"n": 0}


def test_an_object_is_as_the_loss_leaves_it():
    def loss(w, held, x):
        held.total = held.total + x.sum()
        held.note += 1
        return net(w, x)

    held = Holder(jnp.ones(()), 0)
    f = planned(loss, W, held, X)
    assert held.note == 0
    for _ in range(2):
        f(W, held, X)
    assert (float(held.total), held.note) == (17.0, 2)


def test_what_cannot_be_written_back_is_refused():
    def loss(w, sealed, x):
        sealed.items[0] = x
        return net(w, x)

    with pytest.raises(rr.UserError, match=r"argument 1: .*cannot be written back"):
        rr.trace(loss, W, Sealed([X]), X)


def test_what_is_there_twice_cannot_change():
    cache = {"n": jnp.ones(())}

    def loss(w, one, other, x):
        one["n"] += 1
        return net(w, x)

    with pytest.raises(rr.UserError, match="among its arguments twice"):
        rr.trace(loss, W, cache, cache, X)


def test_what_is_there_twice_and_stays_is_two():
    loss = lambda w, v, x: net(w, x) + net(v, X)
    f = planned(loss, {"a": W}["a"], W, X)
    expected, found = (jax.grad(g)(W, W, X) for g in (loss, f))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_an_argument_that_is_returned_is_that_argument():
    def loss(w, cache, x):
        cache["n"] += 1
        return net(w, x), cache

    cache = {"n": jnp.zeros(())}
    _, out = planned(loss, W, cache, X)(W, cache, X)
    assert out is cache
    assert float(cache["n"]) == 1


class Trainer:
    def __init__(self):
        self.history = {}

    def loss(self, w, x):
        self.history["mean"] = x.mean()
        return net(w, x)


LOG, SEEN = [], {}


def logs_to_a_global(w, x):
    LOG.append(x.mean())
    return net(w, x)


def logs_inside(w, x):
    SEEN.setdefault("log", []).append(x.mean())
    return net(w, x)


def test_what_is_no_argument_is_left_alone():
    kept = []

    def logs_to_a_closure(w, x):
        kept.append(x)
        return net(w, x)

    trainer = Trainer()
    SEEN["log"] = []
    for loss in (logs_to_a_closure, logs_to_a_global, logs_inside, trainer.loss):
        with pytest.raises(rr.UserError, match="none of its arguments"):
            rr.trace(loss, W, X)
    assert (kept, LOG, SEEN, trainer.history) == ([], [], {"log": []}, {})


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_what_is_within_others_is_left_alone(depth):
    innermost: list = []
    kept: dict | list = innermost
    for _ in range(depth):
        kept = {"inner": kept}

    def logs_deeper(w, x):
        inner = kept
        while isinstance(inner, dict):
            inner = inner["inner"]
        inner.append(x)
        return net(w, x)

    with pytest.raises(rr.UserError, match="none of its arguments"):
        rr.trace(logs_deeper, W, X)
    assert innermost == []


def test_python_may_count_how_often_it_runs():
    calls = []

    def loss(w, x):
        calls.append("called")
        return net(w, x)

    rr.trace(loss, W, X)
    assert calls


def test_a_module_that_is_no_argument_cannot_change():
    drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    with pytest.raises(rr.UserError, match="none of its arguments"):
        rr.trace(lambda w, x: net(w, drop(x)), W, X)
    assert int(drop.rngs.count[...]) == 0


def test_a_module_that_is_bound_before_is_no_argument():
    drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
    bound = nnx.cached_partial(nnx.jit(lambda drop, x: drop(x).sum()), drop)
    for ask in (rr.trace, lambda *args: rr.measure(*args, target="cpu:1")):
        with pytest.raises(rr.UserError, match="none of its arguments"):
            ask(bound, X)


def test_a_step_is_measured_with_what_it_writes():
    def returns(w, cache, x):
        return {"w": jax.grad(net)(w, x), "cache": cache}

    def writes(w, cache, x):
        cache["w"] = jax.grad(net)(w, x)

    args = (W, {"w": W}, X)
    size = lambda f: rr.measure(f, *args, target="cpu:1").memory
    assert size(writes).output_bytes == W.nbytes
    assert size(returns).output_bytes > W.nbytes
