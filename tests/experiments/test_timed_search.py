"""A search that runs what it compiles: every kernel has its time, choices are sure."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from experiments.bench import timed_search
from experiments.bench.timed_search import TimedSearch, kernel_times
from revremat import xla
from revremat._choose import Search
from revremat._cut import step_of
from revremat._measure import Request
from revremat.xla._kernel_key import kernel_key

LAYERS, WIDTH, ROWS = 4, 64, 256


def loss(w, x):
    return (rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x) ** 2).mean()


def problem():
    w = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    return rr.Problem(loss, (w, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)))


def test_every_kernel_of_a_step_has_its_time_in_loops_too():
    target, request = rr.target("local"), step_of(problem(), loss)
    times = kernel_times(request, target)
    compiled = xla.compile_step(request.step, request.specs, target)
    module = xla.Module.from_bytes(compiled.hlo)
    no_kernels = set()  # what fusions are made of, and conditions of loops
    for i in module.instructions.values():
        called = i.called_computation_ids
        no_kernels.update(called if i.opcode == "fusion" else called[1:])
    work = [
        i
        for c in module.computations.values()
        if c.id not in no_kernels
        for i in c.instructions
        if i.opcode in ("dot", "fusion")
    ]
    assert {kernel_key(i, module) for i in work} <= times.keys()
    assert len(work) > 2
    assert all(us >= 0 for us in times.values())
    card = dataclasses.replace(target.card, kernels=dict.fromkeys(times, 1e6))
    slow = dataclasses.replace(target, card=card)
    step_us = rr.measure(problem(), target=slow).time.step_us
    assert step_us > 1e6 * (len(work) + LAYERS)  # a second each, those in loops more


def test_a_loop_that_is_compiled_whole_is_one_kernel():
    def small(x):
        return jax.lax.scan(lambda x, _: (jnp.sin(x) * x, None), x, length=50)[0].sum()

    target, x = rr.target("local"), jax.ShapeDtypeStruct((64,), jnp.float32)
    times = kernel_times(Request(jax.grad(small), (x,)), target)
    module = xla.Module.from_bytes(xla.compile_step(jax.grad(small), (x,), target).hlo)
    calls = [i for i in module.entry.instructions if i.opcode == "call"]
    assert calls
    assert {kernel_key(i, module) for i in calls} <= times.keys()


def test_the_fastest_steps_are_taken_as_a_whole():
    steps = timed_search._PROFILED
    # Two executions a step of one kernel; each step is as fast as its number says.
    durations = [float(us) for k in range(steps) for us in (k + 1, k + 1)]
    assert timed_search._by_step(durations) == (
        [2.0 * (k + 1) for k in range(steps)],
        2,
    )
    # A branch that is taken in every other step.
    us, times = timed_search._by_step([3.0] * (steps // 2))
    assert us == [1.5] * steps
    assert times == 0.5


@pytest.fixture
def search(monkeypatch):
    """One whose programs are not run; told the times of single programs by a test."""
    monkeypatch.setattr(timed_search, "kernel_times", lambda *_: {})
    found = TimedSearch(problem(), rr.target("cpu:1"))
    found.written()
    return found


def test_what_is_chosen_is_timed_again_and_the_median_counts(search, monkeypatch):
    times = itertools.cycle([50.0, 10.0, 30.0])
    asked = Search.ask

    def ask(self, steps):
        (found,) = asked(self, steps)
        time = dataclasses.replace(found.time, step_us=next(times))
        return [dataclasses.replace(found, time=time)]

    monkeypatch.setattr(Search, "ask", ask)
    assert search.time_again([search.best(10**12)])
    assert search.best(10**12).time_us == 30.0
    assert not search.time_again([search.best(10**12)])


def test_what_is_inside_of_units_is_searched_the_same_way(search):
    assert isinstance(search.within(()), TimedSearch)
