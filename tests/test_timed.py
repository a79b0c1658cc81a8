"""Programs that are run on this machine, and chosen by what they took."""

import dataclasses
import weakref
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import xla
from revremat._measure import Runnable, step_us
from revremat._measure._stopwatch import _value
from revremat._search import run_step
from revremat._search._timed import TimedOracle


def loss(w, x):
    return rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x).sum()


SPECS = (
    jax.ShapeDtypeStruct((4, 32, 32), jnp.float32),
    jax.ShapeDtypeStruct((256, 32), jnp.float32),
)


def to_run(step, *specs, donate=()):
    lowered = xla.lower_step(step, specs, rr.target("cpu:1"), donate=donate)
    return lowered.compile_to_run()


def test_every_program_was_run_and_the_fastest_that_fits_is_chosen():
    plain = rr.measure(jax.grad(loss), *SPECS, target="cpu:1")
    fit = rr.fit(
        loss,
        *SPECS,
        budget=plain.memory.total_bytes,
        target="cpu:1",
        timed=True,
        effort="quick",
    )
    assert all(row.measurement.time.measured for row in fit.rows)
    fitting = [r.time_us for r in fit.rows if r.bytes <= (fit.plan.budget_bytes or 0)]
    assert fit.measurement.time.step_us == min(fitting)
    text = rr.render(fit)
    assert "steps were measured on this machine" in text
    assert "steps are estimates" not in text
    assert "the step was measured; its parts are estimates" in rr.render(
        fit.measurement
    )


def test_no_program_is_compiled_or_run_twice(monkeypatch):
    compiled, real = [], xla.Lowered.compile_to_run

    def noted(lowered):
        compiled.append(lowered.identity)
        return real(lowered)

    monkeypatch.setattr(xla.Lowered, "compile_to_run", noted)
    fit = rr.fit(loss, *SPECS, budget="1MiB", target="cpu:1", timed=True)
    # Shortened programs with all of the layers are whole ones.
    assert len(compiled) == len(set(compiled)) < fit.num_compiles


def test_its_bytes_are_those_of_a_compile_that_is_not_run():
    artifact, _ = to_run(jax.grad(loss), *SPECS)
    with_fast_kernels = xla.compile_step(jax.grad(loss), SPECS, rr.target("cpu:1"))
    assert dict(artifact.stats) == dict(with_fast_kernels.stats)


@pytest.mark.parametrize("donate", [(), (1,)])
def test_a_step_runs_whose_arguments_are_not_all_used(donate):
    unused = jax.ShapeDtypeStruct((3,), jnp.float32)
    step = lambda w, unused, none, x: jax.grad(loss)(w, x)
    _, compiled = to_run(step, SPECS[0], unused, (None,), SPECS[1], donate=donate)
    assert step_us([Runnable(compiled)], seconds=0.0)[0] > 0
    given = jnp.ones((4, 32, 32)), jnp.ones(3), jnp.ones((256, 32))
    assert step_us([Runnable(compiled, given)], seconds=0.0)[0] > 0


@pytest.mark.filterwarnings("ignore:Some donated buffers:UserWarning")
@pytest.mark.parametrize("donate", [(), (0,), (0, 1)])
def test_a_step_that_donates_runs_again_and_again(donate):
    def step(w, x):
        return w - 0.1 * jax.grad(loss)(w, x), x.sum()

    _, compiled = to_run(step, *SPECS, donate=donate)
    (us,) = step_us([Runnable(compiled)], seconds=0.0)
    assert us > 0


class Noted:
    """A program that takes longer when another ran before it."""

    def __init__(self, name, ran):
        self.name, self.ran = name, ran

    def start(self):
        def run():
            is_cold = self.ran[-1:] != [self.name]
            self.ran.append(self.name)
            return 9.0 if is_cold else 1.0

        return run


def test_steps_are_run_in_turn_and_count_once_their_data_is_in_the_caches():
    runs: list[str] = []
    steps: list[Any] = [Noted(name, runs) for name in "ab"]
    assert step_us(steps, seconds=0.0) == [1.0, 1.0]
    assert runs == [*"aabb"] * 2


def test_a_step_alone_counts_at_once():
    runs: list[str] = []
    alone: Any = Noted("a", runs)
    assert step_us([alone], seconds=0.0) == [1.0]
    assert runs == [*"aaaaaa"]


class Large:
    """What a program is given, for which there is room once."""


class Needy:
    """A program that runs where no other has been given anything."""

    def __init__(self, given):
        self.given = given

    def start(self):
        large = Large()
        self.given.append(weakref.ref(large))

        def run(given=large):
            if sum(one() is not None for one in self.given) > 1:
                raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")
            return 1.0

        return run


@pytest.mark.parametrize("number", [2, 3])
def test_programs_that_have_no_room_in_turn_run_alone(number):
    target = SimpleNamespace(usable_bytes=10**9)
    oracle: Any = TimedOracle(SimpleNamespace(target=target))  # pyright: ignore
    found = rr.measure(jax.grad(loss), *SPECS, target="cpu:1")
    given: list[Any] = []
    times = oracle._timed([(found, Needy(given)) for _ in range(number)], seconds=0.0)
    assert [one.time.step_us for one in times] == [1.0] * number


@pytest.mark.parametrize(
    "spec",
    [
        jax.ShapeDtypeStruct((3, 5), jnp.bfloat16),
        jax.ShapeDtypeStruct((), jnp.float32),
        jax.ShapeDtypeStruct((7,), jnp.int32),
        jax.ShapeDtypeStruct((2,), jnp.bool),
        jax.ShapeDtypeStruct((300, 300), jnp.complex64),
        jax.eval_shape(lambda: jax.random.key(0)),
        jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 3)),
        jax.eval_shape(lambda: jax.random.key(0, impl="rbg")),
        jax.eval_shape(lambda: jax.random.split(jax.random.key(0, impl="rbg"), 3)),
        jax.eval_shape(lambda: jax.random.key(0, impl="unsafe_rbg")),
    ],
    ids=str,
)
def test_arguments_that_are_no_arrays_get_numbers(spec):
    made = jnp.asarray(_value(spec, None))
    assert (made.shape, made.dtype) == (spec.shape, spec.dtype)
    if jnp.issubdtype(spec.dtype, jnp.number):
        assert jnp.isfinite(made).all()
        assert (jnp.real(made) >= 0).all()


def test_arrays_that_are_there_are_taken_and_never_donated():
    mine = jnp.arange(4.0)
    taken = _value(jax.ShapeDtypeStruct((4,), jnp.float32), mine)
    assert (taken == mine).all()
    assert taken.unsafe_buffer_pointer() != mine.unsafe_buffer_pointer()


@pytest.mark.parametrize(
    ("about", "says"),
    [
        ({"target": "h100:1"}, "timed=True runs programs, and h100:1 is not this mach"),
        (
            {"oracle": rr.measure},
            "an oracle, which has times of its own: leave out one",
        ),
    ],
)
def test_what_cannot_be_timed_is_refused(about, says):
    about = {"target": "cpu:1", **about}
    with pytest.raises(rr.UserError, match=says):
        rr.fit(loss, *SPECS, budget="1MiB", timed=True, **about)


def test_that_it_was_measured_is_written_and_read_back():
    found = rr.measure(jax.grad(loss), *SPECS, target="cpu:1")
    ran = dataclasses.replace(
        found, time=dataclasses.replace(found.time, step_us=5.0, measured=True)
    )
    assert rr.Measurement.from_json(ran.to_json()) == ran


def test_one_step_is_run_with_the_arrays_that_it_was_given():
    seen = []

    def step(x):
        jax.debug.callback(lambda one: seen.append(float(one)), x[0])
        return jnp.tanh(x)

    found = run_step(rr.Step(step, (jnp.full(8, 3.0),)), target=rr.target("cpu:1"))
    jax.effects_barrier()
    assert found.time.measured
    assert found.time.step_us > 0
    assert set(seen) == {3.0}
    assert found.memory.argument_bytes == 32


def test_a_step_that_does_not_compile_says_so():
    with pytest.raises(TypeError, match="dot_general"):
        run_step(
            rr.Step(lambda x: x @ x, (jnp.ones((2, 3)),)), target=rr.target("cpu:1")
        )
