"""Liveness is XProf's, byte for byte: peak, curve, every region of the arena."""

import pytest

import revremat as rr
from revremat import xla
from tests.xla.steps import STEPS
from tests.xla.xprof import memory_viewer

TARGETS = ("cpu:1", "h100:1", "h100:8", "v5e:4x4")
DEVICE, VMEM, HOST = 0, 1, 5

pytest.importorskip("xprof", reason="XProf, the oracle, has wheels for Linux only")


def compiled(name, spec):
    target = rr.target(spec)
    if missing := target.missing():
        pytest.skip(missing)
    step = STEPS[name](target)
    return xla.compile_step(step.function, step.specs, target, donate=step.donate)


# What is not sharded compiles for eight cards to what it does for one: a few will do.
SPLIT = ("sharded", "donation", "offload", "scan")
CASES = [(n, s) for n in STEPS for s in TARGETS if s != "h100:8" or n in SPLIT]


@pytest.mark.every_commit(
    "scan-v5e:4x4",
    "scan_remat-cpu:1",
    "nested_scan-v5e:4x4",
    "while_loop-v5e:4x4",
    "conditional-v5e:4x4",
    "switch_in_scan-cpu:1",
    "offload-cpu:1",
    "donation-cpu:1",
    "reversible_chain-h100:1",
    "accumulation-cpu:1",
    "unrolled-h100:1",
    "stacked-v5e:4x4",
    "mixed_types-h100:1",
    "called-h100:1",
    "sharded-h100:1",
    "sharded-h100:8",
)
@pytest.mark.parametrize(("name", "spec"), CASES)
def test_memory_is_what_xprof_shows(name, spec):
    artifact = compiled(name, spec)
    module = xla.Module.from_bytes(artifact.hlo)
    memory = xla.liveness(module)
    assignment = module.proto.buffer_assignment
    spaces = {a.color for a in assignment.buffer_allocations}
    # XProf itself finds the trace of this one's on-chip memory contradictory.
    spaces -= {VMEM} if (name, spec) == ("switch_in_scan", "v5e:4x4") else set()
    assert DEVICE in spaces
    for space in spaces:
        shown = memory_viewer(artifact.hlo, space)
        heap = memory.heap(space)
        assert peak_bytes(memory, space) == shown.peak_bytes
        assert memory.lasting_bytes(space) == shown.indefinite_bytes
        if heap is None or not heap.traced:
            assert not shown.over_time_bytes
            continue
        lasting = shown.indefinite_bytes
        assert shown.over_time_bytes[1:] == tuple(b + lasting for b in heap.live_bytes)
        padding = sum(r.padding_bytes for r in heap.alive_at_peak())
        assert shown.peak_bytes - shown.unpadded_bytes == padding
        if space == DEVICE:  # elsewhere XProf's picture leaves some out
            assert _regions(heap) == _blocks(shown)


def peak_bytes(memory, space):
    """The highest moment of a memory space, fragmentation left out."""
    heaps = [heap for heap in memory.heaps if heap.space == space]
    return memory.lasting_bytes(space) + sum(heap.peak_bytes for heap in heaps)


def _regions(heap):
    return sorted(
        (r.offset, r.size_bytes, r.start) for r in heap.regions if r.size_bytes
    )


def _blocks(shown):
    """XProf's picture of the arena, without the frame around it.

    Ends are left out: of values that share a region it draws one or another.
    """
    return sorted(
        (b.get("offset", 0), b["size"], b.get("startStep", 0))
        for b in shown.blocks
        if b["logicalBufferId"] >= 0 and b.get("size")
    )


def test_values_on_the_host_are_no_part_of_the_device():
    memory = xla.liveness(xla.Module.from_bytes(compiled("offload", "h100:1").hlo))
    assert peak_bytes(memory, HOST) == 6 * 512 * 128 * 4
    assert memory.heap().space == DEVICE


@pytest.mark.parametrize("spec", ["cpu:1", "h100:1", "v5e:4x4"])
def test_donated_arguments_are_counted_once(spec):
    memory = xla.liveness(xla.Module.from_bytes(compiled("donation", spec).hlo))
    aliased = [f for f in memory.fixed if f.aliased]
    assert sorted(f.size_bytes for f in aliased) == [6 * 128 * 128 * 4] * 3
    assert all(f.kind == "argument" for f in aliased)
