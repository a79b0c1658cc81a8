"""A search that runs what it compiles: every kernel has its time, choices are sure."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp

import revremat as rr
from experiments.bench import timed_search
from experiments.bench.searching import Searching
from experiments.bench.timed_search import Retiming, TimedOracle, kernel_times
from revremat import xla
from revremat._fit import presets
from revremat.xla import kernel_key

LAYERS, WIDTH, ROWS = 4, 64, 256


def loss(w, x):
    return (rr.stack(lambda w, x: jnp.sin(jnp.tanh(x @ w)), w, x) ** 2).mean()


def problem():
    w = jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32)
    return rr.Problem(loss, (w, jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32)))


def test_every_kernel_of_a_step_has_its_time_in_loops_too():
    target, (function, specs) = rr.target("local"), problem().make_step()
    times = kernel_times(rr.Step(function, specs), target)
    compiled = xla.compile_step(function, specs, target)
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
    times = kernel_times(rr.Step(jax.grad(small), (x,)), target)
    module = xla.Module.from_bytes(xla.compile_step(jax.grad(small), (x,), target).hlo)
    calls = [i for i in module.entry.instructions if i.opcode == "call"]
    assert bool(calls) == (jax.__version_info__ >= (0, 12))  # loops stay, before that
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


def test_what_is_chosen_is_timed_again_and_the_median_counts():
    """One whose programs are not run; the times of single programs are made up."""
    times = itertools.cycle([50.0, 10.0, 30.0])

    def oracle(step):
        found = rr.measure(step, target="cpu:1")
        time = dataclasses.replace(found.time, step_us=next(times))
        return dataclasses.replace(found, time=time)

    search = Searching(problem(), rr.target("cpu:1"), oracle=oracle)
    assert search.baseline().time_us == 50.0
    retime = Retiming(search)
    assert retime([search.best(10**12)])
    assert search.best(10**12).time_us == 30.0  # of 10, 30, 50, 10, 30
    assert not retime([search.best(10**12)])


def test_every_program_that_is_measured_is_timed(monkeypatch):
    timed = []
    note = lambda step, target: timed.append(step) or {"a kernel": 1.0}
    monkeypatch.setattr(timed_search, "kernel_times", note)
    oracle = TimedOracle(rr.target("cpu:1"))
    search = Searching(problem(), rr.target("cpu:1"), unroll=False, oracle=oracle)
    search.prepare()
    assert len(timed) == search.done > 5
    assert oracle.target.card.kernels["a kernel"] == 1.0


def test_presets_of_a_search_are_those_of_compare():
    search = Searching(problem(), rr.target("cpu:1"))
    rows = [search.baseline(), *search.presets()]
    expected = presets(problem(), target="cpu:1")
    assert [r.measurement.memory for r in rows] == [
        r.measurement.memory for r in expected
    ]
    assert search.presets() == rows[1:]  # compiled once
    assert search.done == len({search.state.key_of_row(row) for row in rows})
