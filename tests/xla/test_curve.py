"""Memory over the schedule agrees with the peak and with a replay by hand."""

import functools

import jax
import numpy as np
import pytest

import revremat as rr
from revremat import xla
from revremat._measure import read_artifact
from tests.xla.programs import PROGRAMS

CASES = [
    ("accumulated", "cpu:1"),
    ("gpt_scanned", "h100:1"),
    pytest.param("gpt_unrolled", "h100:1", marks=pytest.mark.slow),
    ("sharded", "h100:8"),
]


@functools.cache
def compiled(name, spec):
    target = rr.target(spec)
    problem = PROGRAMS[name](target)
    step, specs = problem.make_step()
    artifact = xla.compile_step(step, specs, target, donate=problem.donate)
    module = xla.Module.from_bytes(artifact.hlo)
    return read_artifact(artifact, target, name), module


@pytest.mark.parametrize(("name", "spec"), CASES)
def test_phases_at_the_curves_peak_are_those_of_the_buffers(name, spec):
    m, _ = compiled(name, spec)
    curve = m.memory.curve
    at_peak = {phase: series[curve.peak] for phase, series in curve.bytes}
    listed = {phase: size for (phase,), size in m.memory.by("phase").items()}
    assert {k: v for k, v in at_peak.items() if v} == listed
    assert curve.fragmentation_bytes[curve.peak] == m.memory.fragmentation_bytes


@pytest.mark.parametrize(("name", "spec"), CASES)
def test_positions_show_what_is_in_use_then(name, spec):
    m, module = compiled(name, spec)
    curve = m.memory.curve
    memory = xla.liveness(module)
    heap = memory.heap()
    lasting = sum(f.size_bytes for f in memory.fixed if f.space == 0)
    assert list(curve.positions) == sorted(set(curve.positions))
    assert len(curve.positions) == len(curve.labels) <= 400
    for position, total, fragmentation in zip(
        curve.positions, curve.totals_bytes, curve.fragmentation_bytes, strict=True
    ):
        alive = sum(r.size_bytes for r in heap.regions if r.start <= position < r.end)
        assert total == lasting + alive
        assert fragmentation == heap.size_bytes - alive
    assert all(curve.labels)


@pytest.mark.slow
def test_no_moment_is_higher_than_the_stretch_it_is_in():
    _, module = compiled("gpt_unrolled", "h100:1")
    memory = xla.liveness(module)
    coarse = xla.memory_curve(module, memory, positions=7)
    fine = xla.memory_curve(module, memory, positions=10**9)
    assert len(coarse.positions) == 7
    assert max(coarse.totals_bytes) == max(fine.totals_bytes)
    assert len(fine.totals_bytes) == len(memory.heap().live_bytes)
    tops = dict(zip(coarse.positions, coarse.totals_bytes, strict=True))
    for event, total in zip(fine.positions, fine.totals_bytes, strict=True):
        before = [tops[p] for p in coarse.positions if p <= event][-1:]
        after = [tops[p] for p in coarse.positions if p >= event][:1]
        assert total <= max(before + after)


def test_the_kept_values_of_a_scan_grow_and_shrink():
    def loss(w, x):
        for _ in range(8):
            x = jax.numpy.tanh(x @ w)
        return x.sum()

    spec = jax.ShapeDtypeStruct((512, 512), "float32")
    m = rr.measure(jax.grad(loss), spec, spec, target="h100:1")
    phases = dict(m.memory.curve.bytes)
    forward = np.array(phases["forward"])
    top = int(forward.argmax())
    assert forward[top] >= 8 * 512 * 512 * 4
    assert forward[-1] < forward[top]
    assert phases["argument"] == (2 * 512 * 512 * 4,) * len(forward)
