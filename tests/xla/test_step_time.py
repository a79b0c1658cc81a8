"""The clock: FLOPs, links and streams of programs whose answer is known."""

import dataclasses
import itertools
import json

import pytest

from revremat.xla import estimate
from revremat.xla.hlo._kernel_key import kernel_key
from tests.xla.modules import BF16, CARD, Program, machine


def time_of(program, devices=1, hosts=1, card=CARD):
    return estimate(program.module(), machine(devices, hosts, card))


# ---- Kernels that were measured ------------------------------------------------------


@pytest.mark.parametrize(("trips", "measured_us", "step_us"), [(1, 7, 27), (5, 3, 35)])
def test_what_a_kernel_was_measured_to_take_counts(trips, measured_us, step_us):
    program = Program()
    condition, body = program.computation("condition"), program.computation("body")
    condition.add("constant", ())
    known = body.kernel(1000)
    program.entry.kernel(20)
    config = {"known_trip_count": {"n": str(trips)}}
    program.entry.add("while", (10,), calls=[body, condition], config=config)
    module = program.module()
    kernels = {kernel_key(module.instructions[known.id], module): float(measured_us)}
    card = dataclasses.replace(CARD, kernels=kernels)
    assert time_of(program).step_us == pytest.approx(20 + 1000 * trips)
    assert time_of(program, card=card).step_us == pytest.approx(step_us)


def test_a_call_that_was_measured_counts_as_one_kernel():
    program = Program()
    inside = program.computation("inside")
    inside.kernel(1000)
    call = program.entry.add("call", (10,), calls=[inside])
    program.entry.kernel(20)
    module = program.module()
    key = kernel_key(module.instructions[call.id], module)
    card = dataclasses.replace(CARD, kernels={key: 7.0})
    assert time_of(program).step_us == pytest.approx(1020)
    assert time_of(program, card=card).step_us == pytest.approx(27)


# ---- Streams -------------------------------------------------------------------------


def gather(code, us, devices=8):
    """An asynchronous all-gather over 8 devices that takes so long."""
    size = round(us * 1e5 / 4 / (devices - 1))
    argument = code.add("parameter", (size,))
    return code.add("all-gather-start", [(size,), (devices * size,)], argument)


def test_a_collective_hides_under_the_work_in_between():
    program = Program()
    start = gather(program.entry, 100)
    program.entry.kernel(60)
    program.entry.add("all-gather-done", (10,), start)
    program.entry.kernel(30)
    found = time_of(program, 8)
    assert found.collective_us == pytest.approx(100, rel=1e-3)
    assert found.exposed_collective_us == pytest.approx(40, rel=1e-3)
    assert found.compute_us == pytest.approx(90, rel=1e-3)
    assert found.step_us == pytest.approx(130, rel=1e-3)


def test_a_short_collective_hides_altogether():
    program = Program()
    start = gather(program.entry, 50)
    program.entry.kernel(60)
    program.entry.add("all-gather-done", (10,), start)
    found = time_of(program, 8)
    assert found.exposed_collective_us == 0
    assert found.step_us == pytest.approx(60, rel=1e-3)


def test_collectives_share_their_links():
    program = Program()
    starts = [gather(program.entry, 50) for _ in range(2)]
    program.entry.kernel(60)
    for start in starts:
        program.entry.add("all-gather-done", (10,), start)
    found = time_of(program, 8)
    assert found.step_us == pytest.approx(100, rel=1e-3)
    assert found.exposed_collective_us == pytest.approx(40, rel=1e-3)


def test_a_synchronous_collective_is_all_exposed():
    program = Program()
    start = gather(program.entry, 100)
    start.backend_config = b'{"collective_backend_config": {"is_sync": true}}'
    program.entry.kernel(60)
    program.entry.add("all-gather-done", (10,), start)
    found = time_of(program, 8)
    assert found.exposed_collective_us == pytest.approx(100, rel=1e-3)
    assert found.step_us == pytest.approx(160, rel=1e-3)


def test_a_wrapped_collective_is_one_too():
    program = Program()
    inner = program.computation("wrapped")
    argument = inner.add("parameter", (10**6,))
    inner.add("reduce-scatter", (125_000,), argument)
    outside = program.entry.add("parameter", (10**6,))
    shape = [(10**6,), (125_000,)]
    start = program.entry.add("async-start", shape, outside, calls=[inner])
    program.entry.kernel(10)
    program.entry.add("async-done", (125_000,), start)
    found = time_of(program, 8)
    assert found.collective_us == pytest.approx(4e6 * 7 / 8 / 1e5)
    assert found.exposed_collective_us == pytest.approx(25)


RECOMPUTE = "jit(f)/transpose(jvp())/checkpoint/rematted_computation/tanh"
BACKWARD = "jit(f)/transpose(jvp())/mul"


def test_recompute_is_part_of_compute_and_may_hide_under_collectives():
    program = Program()
    start = gather(program.entry, 50)
    program.entry.kernel(20, BACKWARD)
    program.entry.kernel(40, RECOMPUTE)  # the last 10 are alone
    program.entry.add("all-gather-done", (10,), start)
    program.entry.kernel(5, RECOMPUTE)
    found = time_of(program, 8)
    assert found.compute_us == pytest.approx(65, rel=1e-3)
    assert found.recompute_us == pytest.approx(45, rel=1e-3)
    assert found.hidden_recompute_us == pytest.approx(30, rel=1e-3)
    assert found.step_us == pytest.approx(65, rel=1e-3)


def test_copies_to_the_host_have_a_stream_of_their_own():
    program = Program()
    argument = program.entry.add("parameter", (10**6,))
    start = program.entry.add("copy-start", [(10**6,), (10**6,)], argument)
    start.shape.tuple_shapes[0].layout.memory_space = 5
    program.entry.kernel(150)
    done = program.entry.add("copy-done", (10**6,), start, host=True)
    program.entry.add("copy", (10**6,), done)  # and back, waited for
    found = time_of(program)
    assert found.transfer_us == pytest.approx(400)
    assert found.exposed_transfer_us == pytest.approx(50 + 200)
    assert found.step_us == pytest.approx(400)
    assert found.collective_us == 0


def test_a_slice_fetched_from_the_host_moves_the_slice():
    program = Program()
    stack = program.entry.add("parameter", (24, 10**6), host=True)
    at = program.entry.add("constant", (), dtype=4)
    program.entry.add("dynamic-slice", (1, 10**6), stack, at, at)
    assert time_of(program).transfer_us == pytest.approx(200)


def test_slices_that_cross_asynchronously_move_the_slice_either_way():
    program = Program()
    stack = program.entry.add("parameter", (24, 10**6), host=True)
    one = program.entry.add("parameter", (1, 10**6))
    at = program.entry.add("constant", (), dtype=4)

    def started(inner, operands, made, on_host):
        """An `async-start` has what it was given in its type, beside what it makes."""
        shapes = [(24, 10**6), made]
        start = program.entry.add("async-start", shapes, *operands, calls=[inner])
        start.shape.tuple_shapes[0].layout.memory_space = 5
        if on_host:
            start.shape.tuple_shapes[1].layout.memory_space = 5
        program.entry.add("async-done", made, start, host=on_host)

    fetch = program.computation("fetch")
    fetch.add("dynamic-slice", (1, 10**6), fetch.add("parameter", (24, 10**6)))
    started(fetch, [stack, at, at], (1, 10**6), on_host=False)
    assert time_of(program).transfer_us == pytest.approx(200)
    send = program.computation("send")
    whole, part = send.add("parameter", (24, 10**6)), send.add("parameter", (1, 10**6))
    send.add("dynamic-update-slice", (24, 10**6), whole, part)
    started(send, [stack, one, at, at], (24, 10**6), on_host=True)
    assert time_of(program).transfer_us == pytest.approx(400)


def test_a_copy_on_the_device_is_no_transfer():
    program = Program()
    argument = program.entry.add("parameter", (10**6,))
    program.entry.add("copy", (10**6,), argument)
    found = time_of(program)
    assert found.transfer_us == 0
    assert found.compute_us == pytest.approx(8)


def loop(program, trips, us, inside):
    condition = program.computation("condition")
    condition.add("parameter", ())
    body = program.computation("body")
    inside(body)
    config = {"known_trip_count": {"n": str(trips)}} if trips else {}
    state = program.entry.add("parameter", ())
    program.entry.add("while", (), state, calls=[body, condition], config=config)
    return time_of(program, 8)


def test_a_loop_is_its_body_so_many_times():
    def body(code):
        start = gather(code, 30)
        code.kernel(20, RECOMPUTE)
        code.add("all-gather-done", (10,), start)

    found = loop(Program(), 12, 0, body)
    assert found.step_us == pytest.approx(12 * 30, rel=1e-3)
    assert found.collective_us == pytest.approx(12 * 30, rel=1e-3)
    assert found.exposed_collective_us == pytest.approx(12 * 10, rel=1e-3)
    assert found.hidden_recompute_us == pytest.approx(12 * 20, rel=1e-3)
    # A loop whose trips the compiler does not know counts once.
    assert loop(Program(), 0, 0, body).step_us == pytest.approx(30, rel=1e-3)


@pytest.mark.parametrize(
    # The condition is timed as often as the body: here it is the body itself. A GPU
    # that knows how often a body runs does not run the condition.
    ("platform", "runs"),
    [("cpu", (2 * 5) * (2 * 3)), ("tpu", (2 * 5) * (2 * 3)), ("cuda", 5 * 3)],
)
def test_loops_in_loops_multiply(platform, runs):
    program = Program()
    inner, outer = program.computation("inner"), program.computation("outer")
    inner.kernel(7)
    state = outer.add("parameter", ())
    for code, called, trips in ((outer, inner, 5), (program.entry, outer, 3)):
        config = {"known_trip_count": {"n": str(trips)}}
        code.add("while", (), state, calls=[called, called], config=config)
    card = dataclasses.replace(CARD, platform=platform)
    found = time_of(program, card=card)
    assert found.compute_us == pytest.approx(runs * 7, rel=1e-3)


def test_a_branch_counts_its_longest_way():
    program = Program()
    ways = [program.computation(f"way_{n}") for n in range(3)]
    for way, us in zip(ways, (5, 50, 20), strict=True):
        way.kernel(us)
    chooser = program.entry.add("parameter", (), dtype=4)
    program.entry.add("conditional", (), chooser, calls=ways)
    assert time_of(program).step_us == pytest.approx(50, rel=1e-3)


def test_parts_never_exceed_the_whole():
    """For any order of starts, kernels and waits."""
    for order in itertools.permutations(range(4)):
        program = Program()
        starts = [gather(program.entry, us) for us in (10, 40)]
        for number in order:
            if number < 2:
                program.entry.add("all-gather-done", (10,), starts[number])
            else:
                program.entry.kernel(25, RECOMPUTE if number == 2 else BACKWARD)
        t = time_of(program, 8)
        assert t.step_us == pytest.approx(t.compute_us + t.exposed_collective_us)
        assert t.exposed_collective_us <= t.collective_us + 1e-9
        assert t.hidden_recompute_us <= t.recompute_us + 1e-9 <= t.compute_us
        assert t.step_us >= max(t.compute_us, t.collective_us) - 1e-9


def test_bfloat16_halves_the_traffic():
    f32, bf16 = Program(), Program()
    for program, dtype in ((f32, 11), (bf16, BF16)):
        x = program.entry.add("parameter", (10**6,), dtype=dtype)
        program.entry.add("negate", (10**6,), x, dtype=dtype)
    assert time_of(f32).step_us == pytest.approx(2 * time_of(bf16).step_us)


# ---- Recompute inside fusions, copies within a device, the critical path -------------


def fused(program, phases, elements=10**6):
    """A fusion of as many additions as there are phases, which is its arithmetic."""
    inner = program.computation("fused")
    value = inner.add("parameter", (elements,))
    for op_name in phases:
        value = inner.add("add", (elements,), value, value, op_name=op_name)
    argument = program.entry.add("parameter", (elements,))
    program.entry.add(
        "fusion", (elements,), argument, calls=[inner], op_name=phases[-1]
    )
    return time_of(program)


def test_recompute_in_a_fusion_is_its_share_of_the_arithmetic():
    found = fused(Program(), [RECOMPUTE, RECOMPUTE, RECOMPUTE, BACKWARD])
    assert found.compute_us == pytest.approx(8)  # its traffic
    assert found.recompute_us == pytest.approx(6)
    spans = {s.phase: s.duration_us for s in found.spans}
    assert spans == {"recompute": pytest.approx(6), "backward": pytest.approx(2)}


def test_a_fusion_of_nothing_else_is_all_recompute():
    assert fused(Program(), [RECOMPUTE] * 3).recompute_us == pytest.approx(8)
    assert fused(Program(), [BACKWARD] * 3).recompute_us == 0


def test_fused_recompute_hides_under_a_collective_as_far_as_it_runs_then():
    program = Program()
    start = gather(program.entry, 4)
    found = fused(program, [RECOMPUTE, BACKWARD])  # 4 us of each, recompute first
    assert start.opcode == "all-gather-start"
    assert found.hidden_recompute_us == 0  # one device: nothing is in flight
    found = estimate(program.module(), machine(8))
    assert found.hidden_recompute_us == pytest.approx(4, rel=1e-3)


def test_a_copy_within_the_device_hides_under_work_and_is_no_transfer():
    program = Program()
    argument = program.entry.add("parameter", (10**6,))
    shape = [(10**6,), (10**6,)]
    start = program.entry.add("copy-start", shape, argument)
    program.entry.kernel(5)
    program.entry.add("copy-done", (10**6,), start)
    found = time_of(program)
    assert found.transfer_us == 0
    assert found.step_us == found.compute_us == pytest.approx(8)  # 5, then 3 more


def test_the_critical_path_is_the_longest_chain():
    program = Program()
    first = program.entry.kernel(10)
    program.entry.kernel(50)
    second = program.entry.kernel(20, "", first)
    last = program.entry.kernel(5)
    last.control_predecessor_ids.append(second.id)
    found = time_of(program)
    assert found.step_us == pytest.approx(85, rel=1e-3)
    assert found.critical_path_us == pytest.approx(50, rel=1e-3)
    program.entry.kernel(30, "", last)
    assert time_of(program).critical_path_us == pytest.approx(65, rel=1e-3)


def test_the_critical_path_goes_through_loops_and_waits_for_collectives():
    program = Program()
    body = program.computation("body")
    body.kernel(3)
    before = gather(program.entry, 40)
    done = program.entry.add("all-gather-done", (10,), before)
    config = {"known_trip_count": {"n": "5"}}
    program.entry.add("while", (), done, calls=[body], config=config)
    found = time_of(program, 8)
    assert found.critical_path_us == pytest.approx(55, rel=1e-3)
    assert found.step_us == pytest.approx(55, rel=1e-3)


# ---- What XLA itself says ------------------------------------------------------------


def test_xlas_own_estimates_are_added_up_beside_ours():
    program = Program()
    body = program.computation("body")
    costs = [{"name": "", "exec_time_us": 34e6}, {"name": "sol", "exec_time_us": 2.5}]
    kernel = body.kernel(3)
    kernel.backend_config = json.dumps({"reification_cost": costs}).encode()
    state = program.entry.add("parameter", ())
    config = {"known_trip_count": {"n": "4"}}
    program.entry.add("while", (), state, calls=[body], config=config)
    assert time_of(program).compiler_us == pytest.approx(10)


def test_cycles_become_time_by_the_cards_clock():
    program = Program()
    program.entry.kernel(3).backend_config = b'{"estimated_cycles": "3000"}'
    card = dataclasses.replace(CARD, description={"clock_rate_ghz": 1.5})
    assert time_of(program, card=card).compiler_us == pytest.approx(2)


def test_no_word_of_xlas_is_none():
    program = Program()
    program.entry.kernel(3)
    assert time_of(program).compiler_us is None
