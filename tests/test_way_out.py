"""What a dump that does not fit is told, and what is noted beside a measurement."""

from types import SimpleNamespace
from typing import Any

import pytest

from revremat import Plan, allocation, target
from revremat._measure import REMAT_PASS_OFF, _read
from revremat._measure._read import _notes, _pack, remarks
from revremat._measure._steps import remat_pass_of
from revremat._read import way_out
from tests.measurements import GIB, MIB, changed

OUT = {"device_bytes": 8 * GIB, "reserve_bytes": GIB}
"""Seven GiB are usable, and the step takes eleven and a quarter."""
HELD = (
    "out of memory by 4.25 GiB; at the peak most is held by "
    "forward/layer/attn/softmax 4.00 GiB, argument/state.params['mlp']['up'] 3.00 GiB, "
    "argument/state.opt_state[0].mu['mlp']['up'] 2.00 GiB"
)
KEPT = (
    "recomputing or offloading what the forward pass keeps can save up to 4.00 GiB, "
    "{}: 'revremat search' finds which"
)
DONATED = (
    "donating arguments (donate_argnums) can save up to {}: results lie beside "
    "arguments of their size"
)


def test_what_fits_needs_no_way_out():
    total = changed().memory.total_bytes
    assert way_out(changed()) == ()
    assert way_out(changed(device_bytes=total, reserve_bytes=0)) == ()
    assert len(way_out(changed(device_bytes=total - 1, reserve_bytes=0))) > 1


def test_the_largest_holders_come_first_then_what_can_go():
    assert way_out(changed(**OUT)) == (
        HELD,
        KEPT.format("not enough by itself"),
        "512 MiB are fragmentation",
    )


@pytest.mark.parametrize(
    ("device_bytes", "enough"),
    [
        (8 * GIB + 256 * MIB, "enough"),
        (8 * GIB + 256 * MIB - 1, "not enough by itself"),
    ],
)
def test_recomputing_is_enough_from_the_byte_on(device_bytes, enough):
    notes = way_out(changed(device_bytes=device_bytes, reserve_bytes=GIB))
    assert KEPT.format(enough) in notes


def test_what_keeps_nothing_has_nothing_to_recompute():
    notes = way_out(changed(**OUT, buffers=()))
    assert not any("recomputing" in note for note in notes)


@pytest.mark.parametrize(
    ("argument", "output", "alias", "can_save"),
    [
        (5 * GIB, 5 * GIB, 0, "5.00 GiB"),
        (5 * GIB, 3 * GIB, GIB, "2.00 GiB"),
        (3 * GIB, 5 * GIB, GIB, "2.00 GiB"),
        (5 * GIB, 5 * GIB, 5 * GIB, None),
        # From a hundredth of the whole on.
        (90_000_000_000, 1_000_000_000, 0, "954 MiB"),
        (90_000_000_000, 900_000_000, 0, None),
    ],
)
def test_donating_is_told_where_results_lie_beside_arguments(
    argument, output, alias, can_save
):
    temp = 9_000_000_000
    sizes = {"argument_bytes": argument, "output_bytes": output, "alias_bytes": alias}
    notes = way_out(changed(**OUT, **sizes, temp_bytes=temp))
    told = [note for note in notes if note.startswith("donating")]
    assert told == ([DONATED.format(can_save)] if can_save else [])


@pytest.mark.parametrize(
    ("size", "is_told"), [(115_343_360, True), (115_343_359, False)]
)
def test_fragmentation_is_told_from_a_hundredth_on(size, is_told):
    temp_bytes = 11_534_336_000 - 5 * GIB - 256 * MIB
    m = changed(**OUT, temp_bytes=temp_bytes, fragmentation_bytes=size)
    assert m.memory.total_bytes == 11_534_336_000
    assert any("fragmentation" in note for note in way_out(m)) == is_told


# ---- Notes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("platform", "remat_pass", "tuned", "words"),
    [
        ("cuda", False, False, ["without autotuning", "pass is off"]),
        ("cuda", True, False, ["without autotuning", "pass is on"]),
        ("cuda", False, True, ["with what autotuning chose", "pass is off"]),
        ("cuda", True, True, ["with what autotuning chose", "pass is on"]),
        ("tpu", False, False, ["pass is off"]),
        ("tpu", True, False, ["pass is on"]),
        ("cpu", True, True, ["offloaded values count as device memory"]),
    ],
)
def test_notes_say_how_it_was_compiled(platform, remat_pass, tuned, words):
    machine: Any = SimpleNamespace(platform=platform)
    artifact: Any = SimpleNamespace(remat_pass=remat_pass, tuned=tuned)
    notes = _notes(machine, artifact)
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))
    assert remarks(changed(notes=(*notes, "another", REMAT_PASS_OFF))) == ("another",)


@pytest.mark.parametrize(
    ("percent", "told"),
    [
        (None, {}),
        (
            90,
            {
                "options": {"xla_gpu_memory_limit_slop_factor": 90},
                "remat_pass": True,
            },
        ),
    ],
)
def test_a_step_is_compiled_with_the_pass_that_its_plan_has(percent, told):
    plan = Plan((), "p", remat_pass_percent=percent)
    assert remat_pass_of(plan, target("h100:1")) == told
    assert remat_pass_of(None, target("h100:1")) == {}


# ---- Another packing -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets", "alignment"),
    [
        ((0, 256, 768), 256),
        ((0, 64), 64),
        ((0, 192, 384), 64),
        ((0, 0), 4096),
        ((0, 8192), 4096),
        ((3, 6), 1),
    ],
)
def test_temporaries_are_packed_at_the_alignment_they_have(
    monkeypatch, offsets, alignment
):
    """The largest power of two that all offsets are multiples of."""
    regions = tuple(
        SimpleNamespace(offset=offset, start=k, end=k + 2, size_bytes=100 * k)
        for k, offset in enumerate(offsets)
    )
    heap: Any = SimpleNamespace(regions=regions, size_bytes=9000)
    problems = []
    solve = allocation.allocate

    def allocate(problem, **how):
        problems.append((problem, how))
        return solve(problem, **how)

    monkeypatch.setattr(allocation, "allocate", allocate)
    found = _pack(heap)
    ((problem, how),) = problems
    assert how == {"seconds": _read._PACKING_SECONDS}
    # What takes no bytes needs no place.
    assert [(b.id, b.lower, b.upper, b.size_bytes) for b in problem.buffers] == [
        (str(k), k, k + 2, 100 * k) for k in range(1, len(offsets))
    ]
    assert {b.alignment_bytes for b in problem.buffers} == {alignment}
    assert found.arena_bytes == 9000
    assert found.bound_bytes <= found.packed_bytes
    assert found.packed_bytes >= 100 * (len(offsets) - 1)
