"""The largest size that fits, against every size compiled one by one."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr


def make(rows):
    w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((rows, 64), jnp.float32)
    return rr.Problem(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2), (w, x))


def total_bytes(rows):
    step, specs = make(rows).make_step()
    return rr.measure(step, *specs, target="cpu:1").memory.total_bytes


@pytest.mark.parametrize("start", [1, 5, 12, 64])
def test_it_is_what_brute_force_finds(start):
    budget = total_bytes(12)
    found = rr.largest(make, start=start, target="cpu:1", budget=budget)
    fitting = [n for n in range(1, 17) if total_bytes(n) <= budget]
    assert found.size == max(fitting)
    assert found.measurement.memory.total_bytes <= budget
    tried = {t.size: t for t in found.trials}
    # The next larger ones were compiled, too: memory is not monotone.
    for size in (1, 2, 3):
        assert not tried[found.size + size].fits
    assert all(t.fits == (t.bytes <= budget) for t in found.trials)


def test_nothing_fits():
    found = rr.largest(make, start=8, target="cpu:1", budget="1KiB")
    assert (found.size, found.measurement) == (0, None)
    assert min(t.size for t in found.trials) == 1


def test_sizes_are_multiples_of_the_step():
    budget = total_bytes(13)
    found = rr.largest(make, start=8, target="cpu:1", budget=budget, step=4)
    assert found.size % 4 == 0
    assert all(t.size % 4 == 0 for t in found.trials)
    assert total_bytes(found.size) <= budget < total_bytes(found.size + 4)


def test_what_is_no_size_is_refused():
    with pytest.raises(rr.UserError, match="changes no argument's shape"):
        rr.largest(lambda n: make(8), start=8, target="cpu:1")
    with pytest.raises(rr.UserError, match="sizes are positive: start is 0"):
        rr.largest(make, start=0, target="cpu:1")
