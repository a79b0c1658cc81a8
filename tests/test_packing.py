"""The same lifetimes packed anew: never below the bound, never above XLA's arena."""

import jax
import pytest

import revremat as rr
from tests.xla.programs import PROGRAMS


@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
@pytest.mark.parametrize("name", ["mlp", "accumulated", "conv_net"])
def test_packing_lies_between_the_bound_and_the_arena(name, target):
    problem = PROGRAMS[name](rr.target(target))
    step, specs = problem.make_step()
    m = rr.measure(step, *specs, target=target, packing=True)
    packing = m.memory.packing
    assert packing is not None
    assert packing.arena_bytes <= m.memory.temp_bytes
    peak = packing.arena_bytes - m.memory.fragmentation_bytes
    assert peak <= packing.bound_bytes + 4096
    assert packing.bound_bytes <= packing.packed_bytes <= packing.arena_bytes
    assert rr.Measurement.from_json(m.to_json()) == m
    assert "for temporaries: XLA" in rr.render(m)


def test_a_step_without_temporaries_has_nothing_to_pack():
    x = jax.ShapeDtypeStruct((8,), "float32")
    m = rr.measure(lambda x: x, x, target="cpu:1", packing=True)
    assert m.memory.packing is None or m.memory.packing.packed_bytes <= 4096
