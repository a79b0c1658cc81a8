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


def spread(rows):
    """The rows over eight devices."""
    mesh = rr.target("cpu:8").mesh({"data": 8})
    rows_over = jax.NamedSharding(mesh, jax.P("data"))
    w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    x = jax.ShapeDtypeStruct((rows, 64), jnp.float32, sharding=rows_over)
    return rr.Problem(lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2), (w, x))


@pytest.mark.parametrize("start", [1, 12])
def test_any_start_will_do_where_sizes_are_split_over_devices(start):
    found = rr.largest(spread, start=start, target="cpu:8", budget="80KiB")
    assert found.step == 8
    assert found.size > 0
    assert found.size % 8 == 0


def test_steps_that_cannot_be_split_are_refused():
    with pytest.raises(rr.UserError, match="split over 8 devices and step is 3"):
        rr.largest(spread, start=8, target="cpu:8", budget="1MiB", step=3)


def test_the_size_may_be_a_number_of_arguments():
    def layers(n):
        ws = [jax.ShapeDtypeStruct((64, 64), jnp.float32)] * n
        return rr.Problem(lambda ws: sum(jnp.sum(w * w) for w in ws), (ws,))

    found = rr.largest(layers, start=2, target="cpu:1", budget="200KiB")
    assert found.size > 2
