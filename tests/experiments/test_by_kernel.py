"""Estimates beside the kernels of a profiled step: each microsecond stands once."""

from pathlib import Path

import pytest

from experiments.calibrate import by_kernel, matching
from experiments.calibrate.stored import stored
from revremat.xla import Module, instruction_times

H100 = Path(__file__).parents[2] / "experiments" / "results" / "cards" / "h100"
TARGET = by_kernel.target_of(H100)

TEXT = """
HloModule by_hand, is_scheduled=true

%fused_a (p: f32[4096,1024]) -> f32[4096,1024] {
  %p = f32[4096,1024]{1,0} parameter(0)
  ROOT %sum = f32[4096,1024]{1,0} add(%p, %p)
}

%fused_b (p.1: f32[4096,1024]) -> f32[4096,1024] {
  %p.1 = f32[4096,1024]{1,0} parameter(0)
  ROOT %sum.1 = f32[4096,1024]{1,0} add(%p.1, %p.1)
}

%body (s: (s32[], f32[4096,1024])) -> (s32[], f32[4096,1024]) {
  %s = (s32[], f32[4096,1024]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[4096,1024]{1,0} get-tuple-element(%s), index=1
  %loop_add_fusion = f32[4096,1024]{1,0} fusion(%x), kind=kLoop, calls=%fused_a
  %loop_add_fusion.7 = f32[4096,1024]{1,0} fusion(%loop_add_fusion), kind=kLoop, calls=%fused_b
  ROOT %t = (s32[], f32[4096,1024]{1,0}) tuple(%i, %loop_add_fusion.7)
}

%condition (s.1: (s32[], f32[4096,1024])) -> pred[] {
  %s.1 = (s32[], f32[4096,1024]{1,0}) parameter(0)
  ROOT %always = pred[] constant(true)
}

ENTRY %main (a: f32[4096,1024], n: s32[]) -> f32[4096,1024] {
  %a = f32[4096,1024]{1,0} parameter(0)
  %n = s32[] parameter(1)
  %copy.3 = f32[4096,1024]{1,0} copy(%a)
  %call.1 = (f32[4096,1024]{1,0}, s8[64]{0}) custom-call(%copy.3, %a), custom_call_target="__cublas$lt$matmul"
  %product = f32[4096,1024]{1,0} get-tuple-element(%call.1), index=0
  %start = (s32[], f32[4096,1024]{1,0}) tuple(%n, %product)
  %while.1 = (s32[], f32[4096,1024]{1,0}) while(%start), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %out = f32[4096,1024]{1,0} get-tuple-element(%while.1), index=1
}
"""  # noqa: E501


def row(kernel, number, us, instruction="command_buffer_1"):
    return {
        "kernel": kernel,
        "instruction": instruction,
        "number": number,
        "seconds": us * 1e-6,
    }


def matches_of(*rows):
    module = Module.from_text(TEXT)
    found = matching.match(module, instruction_times(module, TARGET), rows)
    return {one.name: one for one in found}


@pytest.mark.parametrize(
    ("kernel", "instruction", "kind", "runs"),
    [
        # One kernel serves both fusions, in each of five iterations.
        ("loop_add_fusion", "command_buffer_1", "elementwise", 10),
        ("MemcpyD2D", "copy.3", "copies", 1),  # by its instruction
        ("memcpy128", "command_buffer_1", "copies", 1),  # by its sort
        ("nvjet_sm90_tst_64x8_NNT", "command_buffer_2", "library products", 1),
    ],
)
def test_a_kernel_finds_its_instructions(kernel, instruction, kind, runs):
    found = matches_of(row(kernel, runs, 12.0, instruction))
    (one,) = [m for m in found.values() if m.seen]
    assert (one.kind, one.runs, one.seen) == (kind, runs, runs)
    assert one.measured_us == pytest.approx(12.0)
    assert one.estimated_us > 0


def test_a_kernel_of_no_instruction_is_told():
    assert matches_of(row("unheard_of", 3, 5.0))["other"].seen == 3


@pytest.mark.parametrize("program", ["conv_net", "mlp", "offloaded"])
def test_nothing_that_was_measured_or_estimated_is_lost(program):
    (one,) = stored(H100, program)
    times = instruction_times(one.module, TARGET)
    found = matching.match(one.module, times, one.kernels)
    assert sum(m.measured_us for m in found) == pytest.approx(one.busy_us)
    assert sum(m.estimated_us for m in found) == pytest.approx(
        sum(t.us * t.times for t in times)
    )
    seen = sum(m.measured_us for m in found if not m.runs)
    assert seen < 0.01 * one.busy_us  # kernels that belong to no instruction


def test_the_command_prints_steps_kinds_and_the_worst(capsys):
    assert by_kernel.main([str(H100), "--only", "conv_net", "--worst", "1"]) == 0
    text = capsys.readouterr().out
    assert "conv_net / baseline" in text
    assert "convolutions" in text
    assert "1 steps: " in text
    assert by_kernel.main([str(H100), "--only", "no such"]) == 2


def test_by_the_factors_that_were_measured(capsys):
    sheet, measured = (
        by_kernel.target_of(H100, measured=m).card for m in (False, True)
    )
    assert not sheet.measured
    assert measured.memory_efficiency == 0.9044
    assert measured.launch_us == sheet.launch_us  # small products are no launches


@pytest.mark.slow
def test_the_stored_table_is_of_todays_model(capsys):
    assert by_kernel.main([str(H100)]) == 0
    kept = (H100 / "by_kernel.txt").read_text(encoding="utf-8")
    assert capsys.readouterr().out == kept
