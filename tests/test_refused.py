"""A program that a TPU's compiler refuses for want of memory is still measured."""

import jax
import jax.numpy as jnp
import pytest

import revremat as rr

TARGET, LAYERS, WIDTH = "v5e:2x2", 4, 1024
FITS, REFUSED = 1 << 18, 3 << 20


def problem(rows):
    """Layers on one of four devices each a quarter of the rows."""

    def layer(x, w):
        return x + jnp.tanh(jnp.sin(x @ w)), None

    def loss(ws, x):
        return jax.lax.scan(layer, x, ws)[0].astype(jnp.float32).mean()

    mesh = rr.target(TARGET).mesh({"data": 4})

    def array(*shape, axes=()):
        sharding = jax.NamedSharding(mesh, jax.P(*axes))
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)

    return rr.Problem(
        loss, (array(LAYERS, WIDTH, WIDTH), array(rows, WIDTH, axes=("data",)))
    )


@pytest.fixture(scope="module")
def refused():
    return rr.measure(problem(REFUSED), target=TARGET)


@pytest.mark.slow
def test_it_takes_what_was_laid_out_and_does_not_fit(refused):
    fitting = rr.measure(problem(FITS), target=TARGET)
    many = REFUSED // FITS
    assert fitting.fits
    assert not refused.fits
    assert refused.memory.temp_bytes == pytest.approx(
        many * fitting.memory.temp_bytes, rel=0.05
    )
    assert refused.time.step_us == pytest.approx(many * fitting.time.step_us, rel=0.05)
    assert not any("refuses the program" in note for note in fitting.notes)
    assert any("refuses the program" in note for note in refused.notes)


def test_its_buffers_at_the_peak_add_up(refused):
    memory = refused.memory
    listed = memory.where().bytes + memory.fragmentation_bytes
    assert listed == pytest.approx(memory.total_bytes, rel=0.01)


@pytest.mark.slow
def test_a_plan_is_found_for_it(refused):
    budget = rr.target(TARGET).usable_bytes
    assert refused.memory.total_bytes > budget
    fit = rr.fit(problem(REFUSED), budget=budget, target=TARGET, most_compiles=10)
    assert fit.plan.fits
    assert fit.measurement.memory.total_bytes <= budget
