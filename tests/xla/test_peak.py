"""Each buffer at the peak says where it lies, how long, and what of it is padding."""

import functools
import itertools

import jax
import jax.numpy as jnp
import pytest

import revremat as rr
from revremat import xla
from revremat._measure import read_artifact
from tests.xla.steps import STEPS

CASES = [("scan", "cpu:1"), ("donation", "h100:1"), ("mixed_types", "v5e:4x4")]


@functools.cache
def compiled(name, spec):
    target = rr.target(spec)
    if missing := target.missing():
        pytest.skip(missing)
    step = STEPS[name](target)
    artifact = xla.compile_step(step.function, step.specs, target, donate=step.donate)
    memory = read_artifact(artifact, target, name).memory
    return memory, xla.liveness(xla.Module.from_bytes(artifact.hlo))


@pytest.mark.parametrize(("name", "spec"), CASES)
def test_temporaries_lie_apart_in_the_arena_and_are_alive_at_the_peak(name, spec):
    memory, live = compiled(name, spec)
    heap = live.heap()
    placed = sorted(
        (b.offset_bytes, b.bytes) for b in memory.where() if b.offset_bytes is not None
    )
    assert placed
    assert all(a + size <= b for (a, size), (b, _) in itertools.pairwise(placed))
    assert sum(placed[-1]) <= heap.size_bytes
    assert all(
        b.start <= heap.peak_event < b.end <= len(heap.live_bytes)
        for b in memory.where()
    )


@pytest.mark.parametrize(("name", "spec"), CASES)
def test_what_has_memory_of_its_own_has_no_offset(name, spec):
    memory, _ = compiled(name, spec)
    own = ("argument", "output", "constant")
    for b in memory.where():
        assert (b.offset_bytes is None) == (b.phase in own)


def test_a_result_has_its_own_shape_whatever_took_its_memory_before():
    target = rr.target("h100:1")
    if missing := target.missing():
        pytest.skip(missing)

    def loss(weights, x):
        layer = lambda x, w: (x + jax.nn.gelu(x @ w["up"]) @ w["down"], None)
        return jax.lax.scan(layer, x, weights)[0].sum()

    array = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    weights = {"up": array(8, 512, 2048), "down": array(8, 2048, 512)}
    memory = rr.measure(jax.grad(loss), weights, array(2048, 512), target=target).memory
    largest = sorted(memory.where(phase="output"), key=lambda b: -b.bytes)[:2]
    assert {b.shape for b in largest} == {(8, 512, 2048), (8, 2048, 512)}


def test_donated_arguments_are_aliased():
    memory, _ = compiled("donation", "h100:1")
    found = [b for b in memory.where() if b.aliased]
    assert sum(b.bytes for b in found) == memory.alias_bytes
    assert sorted(b.scope for b in found) == ["state[0]", "state[1]", "state[2]"]


def test_padding_is_what_the_shape_does_not_say():
    memory, _ = compiled("mixed_types", "v5e:4x4")
    bits = {"int8": 8, "int32": 32, "bfloat16": 16, "float32": 32, "bool": 8}
    padded = [b for b in memory.where(phase="argument") if b.padding_bytes]
    assert padded  # 77 x 3 fills no tile
    for b in padded:
        elements = 1
        for size in b.shape:
            elements *= size
        assert b.bytes - b.padding_bytes == elements * bits[b.dtype] // 8
