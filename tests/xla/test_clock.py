"""The clock: FLOPs, links and streams of programs whose answer is known."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat.xla import Module, estimate
from revremat.xla._clock import roofline_us
from revremat.xla._collectives import groups_of
from revremat.xla._cost import Cost, cost_of
from revremat.xla._schema import HloProto, ModuleProto
from tests.xla.modules import BF16, CARD, Program, machine
from tests.xla.programs import spec


def time_of(program, devices=1, hosts=1, card=CARD):
    return estimate(program.module(), machine(devices, hosts, card))


# ---- Floating-point operations -------------------------------------------------------


def traced(function, *specs):
    """The module as JAX hands it to XLA, before any optimization."""
    lowered = jax.jit(function).lower(*specs)
    data = lowered.compiler_ir("hlo").as_serialized_hlo_module_proto()
    proto = HloProto()
    proto.hlo_module.CopyFrom(ModuleProto.FromString(data))
    return Module(proto)


def matmul_flops(module):
    costs = [
        cost_of(i, module)
        for c in module.computations.values()
        for i in c.instructions
        if i.opcode in ("dot", "convolution")
    ]
    assert costs
    return sum(sum(c.matmul_flops.values()) for c in costs)


def multiply_adds(function, *specs):
    """The oracle: on ones, every multiply-add adds one to the sum of the result."""
    ones = [np.ones(s.shape, np.float32) for s in specs]
    return float(np.sum(np.asarray(jax.jit(function)(*ones), np.float64)))


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("mk,kn->mn", [(5, 7), (7, 3)]),
        ("bmk,bkn->bmn", [(4, 5, 7), (4, 7, 3)]),
        ("mk,k->m", [(5, 7), (7,)]),
        ("bqhd,bkhd->bhqk", [(2, 6, 3, 8), (2, 5, 3, 8)]),
        ("ab,cd->abcd", [(2, 3), (4, 5)]),
        ("abc,abd->cd", [(2, 3, 4), (2, 3, 5)]),
    ],
)
def test_a_dot_is_two_flops_for_every_multiply_add(equation, shapes):
    product = lambda a, b: jnp.einsum(equation, a, b)
    specs = [spec(*shape) for shape in shapes]
    module = traced(product, *specs)
    assert matmul_flops(module) == 2 * multiply_adds(product, *specs)


EVEN = [(2, 1), (1, 2)]
CONVOLUTIONS = [
    {"lhs": (2, 9, 8, 3), "rhs": (3, 3, 3, 5)},
    {"lhs": (2, 9, 8, 3), "rhs": (3, 3, 3, 5), "padding": "VALID"},
    {"lhs": (2, 9, 8, 3), "rhs": (3, 2, 3, 5), "strides": (2, 3)},
    {"lhs": (2, 9, 9, 3), "rhs": (3, 3, 3, 5), "rhs_dilation": (2, 3)},
    {"lhs": (2, 5, 4, 3), "rhs": (3, 3, 3, 5), "lhs_dilation": (2, 3), "padding": EVEN},
    {"lhs": (1, 7, 7, 6), "rhs": (3, 3, 2, 9), "groups": 3},
    {"lhs": (1, 7, 7, 6), "rhs": (3, 3, 1, 6), "groups": 6},
    {"lhs": (6, 7, 7, 4), "rhs": (3, 3, 4, 9), "batch_groups": 3},
    {"lhs": (2, 6, 6, 3), "rhs": (4, 4, 3, 5), "padding": [(5, 0), (-1, 6)]},
    {
        "lhs": (2, 9, 7, 4),
        "rhs": (3, 3, 2, 6),
        "strides": (2, 1),
        "lhs_dilation": (1, 2),
        "padding": EVEN,
        "rhs_dilation": (2, 1),
        "groups": 2,
    },
]


def convolution(case):
    def run(lhs, rhs):
        return jax.lax.conv_general_dilated(
            lhs,
            rhs,
            case.get("strides", (1, 1)),
            case.get("padding", "SAME"),
            lhs_dilation=case.get("lhs_dilation"),
            rhs_dilation=case.get("rhs_dilation"),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=case.get("groups", 1),
            batch_group_count=case.get("batch_groups", 1),
        )

    return run, (spec(*case["lhs"]), spec(*case["rhs"]))


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_counts_only_what_meets_a_real_input(case):
    run, specs = convolution(case)
    assert matmul_flops(traced(run, *specs)) == 2 * multiply_adds(run, *specs)


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("argument", [0, 1])
def test_gradients_of_a_convolution_cost_what_it_does(case, argument):
    run, specs = convolution(case)
    out = jax.eval_shape(run, *specs)

    def gradient(lhs, rhs, ct):
        return jax.vjp(run, lhs, rhs)[1](ct)[argument]

    module = traced(gradient, *specs, spec(*out.shape))
    assert matmul_flops(module) == 2 * multiply_adds(run, *specs)


@pytest.mark.parametrize(
    "target", ["__cublas$gemm", "__cublas$lt$matmul", "__onednn$matmul"]
)
@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
@pytest.mark.parametrize("turned", [False, True])
def test_a_library_matmul_costs_what_the_dot_did(target, batch, turned):
    m, k, n = 6, 10, 14
    program = Program()
    lhs = program.entry.add("parameter", (*batch, *((k, m) if turned else (m, k))))
    rhs = program.entry.add("parameter", (*batch, k, n), parameter_number=1)
    out = [(*batch, m, n), (1000,)] if target != "__onednn$matmul" else (*batch, m, n)
    call = program.entry.add("custom-call", out, lhs, rhs, custom_call_target=target)
    flops = cost_of(call, program.module()).matmul_flops
    assert flops["float32"] == pytest.approx(2 * np.prod((*batch, m, k, n)))


@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
def test_compiled_programs_keep_their_flops(target):
    """Fusions and library calls included: what two matmuls cost, on every backend."""
    step = lambda x, w: jnp.tanh(x @ w) @ w
    m = rr.measure(step, spec(512, 256), spec(256, 256), target=target)
    assert m.time.flops == pytest.approx(2 * 2 * 512 * 256 * 256, rel=0.02)


@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
def test_compiled_convolutions_keep_their_flops(target):
    case = {"lhs": (8, 32, 32, 64), "rhs": (3, 3, 64, 64), "strides": (2, 2)}
    run, specs = convolution(case)
    m = rr.measure(run, *specs, target=target)
    # cuDNN's calls are counted by shapes: padding is not told apart.
    whole = 2 * 8 * 16 * 16 * 64 * 9 * 64
    exact = 2 * multiply_adds(run, *specs)
    assert exact * 0.99 <= m.time.flops <= whole * 1.05


@pytest.mark.parametrize("target", ["cpu:1", "h100:1"])
def test_a_loop_counts_its_trips(target):
    def loop(x, ws):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    few, many = (
        rr.measure(loop, spec(256, 256), spec(n, 256, 256), target=target).time
        for n in (3, 24)
    )
    assert many.flops == pytest.approx(8 * few.flops, rel=0.02)
    assert many.step_us > 5 * few.step_us


# ---- One instruction -----------------------------------------------------------------


def test_a_kernel_takes_its_arithmetic_or_its_traffic():
    traffic = Cost({"bfloat16": 1e9}, 0.0, 1e8)  # 1 us against 100 us
    arithmetic = Cost({"bfloat16": 1e12}, 0.0, 1e8)  # 1000 us against 100 us
    assert roofline_us(traffic, CARD) == pytest.approx(100)
    assert roofline_us(arithmetic, CARD) == pytest.approx(1000)
    assert roofline_us(Cost({}, 0.0, 0.0), CARD) == 0


def test_efficiency_and_launch_are_added():
    card = dataclasses.replace(
        CARD, launch_us=3.0, matmul_efficiency=0.5, memory_efficiency=0.25
    )
    assert roofline_us(Cost({"bfloat16": 1e12}, 0.0, 1e6), card) == pytest.approx(2003)
    assert roofline_us(Cost({"bfloat16": 1e6}, 0.0, 1e8), card) == pytest.approx(403)


@pytest.mark.parametrize(
    ("dtype", "us"),
    [("bfloat16", 1e3), ("float32", 2e3), ("float64", 1e6), ("float8_e4m3fn", 5e2)],
)
def test_each_dtype_has_its_own_peak(dtype, us):
    assert roofline_us(Cost({dtype: 1e12}, 0.0, 1.0), CARD) == pytest.approx(us)


def fusion_cost(write):
    program = Program()
    body = program.computation("fused")
    shapes, outside = write(body)
    arguments = [
        program.entry.add("parameter", shape, parameter_number=n)
        for n, shape in enumerate(shapes)
    ]
    call = program.entry.add("fusion", outside, *arguments, calls=[body])
    return cost_of(call, program.module())


def test_a_fusion_moves_only_what_enters_and_leaves():
    def write(body):
        x = body.add("parameter", (1000,))
        y = body.add("parameter", (1000,), parameter_number=1)
        total = body.add("add", (1000,), x, y)
        body.add("multiply", (1000,), total, total)
        return [(1000,), (1000,)], (1000,)

    cost = fusion_cost(write)
    assert cost.bytes == 3 * 4000
    assert cost.flops == 2 * 1000


def test_a_fused_slice_reads_the_slice():
    def write(body):
        whole = body.add("parameter", (100, 1000))
        at = body.add("parameter", (), parameter_number=1, dtype=4)
        row = body.add("dynamic-slice", (1, 1000), whole, at, at)
        body.add("negate", (1, 1000), row)
        return [(100, 1000), ()], (1, 1000)

    assert fusion_cost(write).bytes == pytest.approx(2 * 4000, abs=8)


def test_a_fused_update_in_place_writes_the_update():
    def write(body):
        whole = body.add("parameter", (100, 1000))
        row = body.add("parameter", (1, 1000), parameter_number=1)
        at = body.add("parameter", (), parameter_number=2, dtype=4)
        body.add("dynamic-update-slice", (100, 1000), whole, row, at, at)
        return [(100, 1000), (1, 1000), ()], (100, 1000)

    assert fusion_cost(write).bytes == pytest.approx(2 * 4000, abs=8)


# ---- Groups of devices ---------------------------------------------------------------


def collective(kind="all-reduce", size=1000, operand=None, **fields):
    program = Program()
    argument = program.entry.add("parameter", operand or (size,))
    i = program.entry.add(kind, (size,), argument, **fields)
    return program, i


def groups(num_devices=8, **fields):
    return groups_of(collective(**fields)[1], num_devices)


def test_listed_groups():
    listed = [{"replica_ids": [0, 2]}, {"replica_ids": [1, 3]}]
    assert groups(replica_groups=listed) == [[0, 2], [1, 3]]
    assert groups(device_list={"groups": listed}) == [[0, 2], [1, 3]]


def test_no_groups_are_everybody():
    assert groups(4) == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("text", "iota", "expected"),
    [
        ("[2,4]<=[8]", (2, 4, [8], []), [[0, 1, 2, 3], [4, 5, 6, 7]]),
        (
            "[4,2]<=[2,4]T(1,0)",
            (4, 2, [2, 4], [1, 0]),
            [[0, 4], [1, 5], [2, 6], [3, 7]],
        ),
        (
            "[4,2]<=[2,2,2]T(0,2,1)",
            (4, 2, [2, 2, 2], [0, 2, 1]),
            [[0, 2], [1, 3], [4, 6], [5, 7]],
        ),
        ("[1,8]<=[8]", (1, 8, [8], []), [list(range(8))]),
    ],
)
@pytest.mark.parametrize("where", ["device_list", "iota_groups"])
def test_groups_written_as_an_iota(text, iota, expected, where):
    names = ("num_groups", "group_size", "reshape_dims", "transpose_perm")
    found = dict(zip(names, iota, strict=True))
    fields = {where: {"iota": found} if where == "device_list" else found}
    assert groups(**fields) == expected, text


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ([0], [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ([1], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([0, 1], [list(range(8))]),
    ],
)
def test_groups_written_as_mesh_axes(axes, expected):
    mesh = {"axes": [{"name": "a", "size": 2}, {"name": "b", "size": 4}]}
    refs = [{"index": axis} for axis in axes]
    assert groups(mesh_groups={"mesh": mesh, "axes": refs}) == expected


def test_groups_written_as_a_part_of_a_mesh_axis():
    mesh = {"axes": [{"name": "a", "size": 8}]}
    outer = {"index": 0, "sub_axis": {"pre_size": 1, "size": 2}}
    inner = {"index": 0, "sub_axis": {"pre_size": 2, "size": 4}}
    found = [groups(mesh_groups={"mesh": mesh, "axes": [r]}) for r in (outer, inner)]
    assert found == [
        [[0, 4], [1, 5], [2, 6], [3, 7]],
        [[0, 1, 2, 3], [4, 5, 6, 7]],
    ]


@pytest.mark.parametrize("target", ["h100:8", "cpu:8"])
@pytest.mark.parametrize("axis", ["data", "model"])
def test_groups_of_compiled_programs_are_those_of_the_mesh(target, axis):
    """Whatever form the compiler writes them in."""
    target = rr.target(target)
    mesh = target.mesh({"data": 2, "model": 4})
    expected = np.arange(8).reshape(2, 4)
    expected = (expected.T if axis == "data" else expected).tolist()
    whole = jax.NamedSharding(mesh, jax.sharding.PartitionSpec())
    cut = jax.NamedSharding(mesh, jax.sharding.PartitionSpec(axis))
    gather = jax.jit(lambda x: x * 2, out_shardings=whole)
    from revremat.xla import compile_step

    artifact = compile_step(gather, (spec(8, 128, sharding=cut),), target)
    module = Module.from_bytes(artifact.hlo)
    found = [
        groups_of(i, 8)
        for i in module.instructions.values()
        if i.opcode.removesuffix("-start") in ("all-gather", "all-reduce")
    ]
    assert found == [expected] * len(found)
    assert found


# ---- Collectives ---------------------------------------------------------------------


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("all-reduce", lambda n: 2 * (n - 1) / n),
        ("all-gather", lambda n: n - 1),  # its operand is one part of n
        ("reduce-scatter", lambda n: (n - 1) / n),
        ("all-to-all", lambda n: (n - 1) / n),
        ("collective-permute", lambda n: 1),
    ],
)
def test_a_ring_passes_every_byte_so_often(kind, share, devices):
    fields = {}
    if kind == "collective-permute":
        pairs = zip(range(devices), [*range(1, devices), 0], strict=True)
        fields["source_target_pairs"] = [{"source": s, "target": t} for s, t in pairs]
    program, _ = collective(kind, 10**6, **fields)
    us = 4e6 * share(devices) / 1e5
    found = time_of(program, devices)
    assert found.collective_us == pytest.approx(us)
    assert found.exposed_collective_us == found.step_us == pytest.approx(us)


def test_between_hosts_each_device_carries_its_share():
    program, _ = collective("all-reduce", 10**6)
    # 16 devices on 2 hosts: each device's eighth crosses the network, there and back.
    between = 2 * 4e6 / 8 * (1 / 2) / 1e4
    within = 2 * 4e6 * (7 / 8) / 1e5
    found = time_of(program, 16, hosts=2)
    assert found.collective_us == pytest.approx(max(between, within))
    # Groups that stay on their hosts do not use the network.
    iota = {"num_groups": 2, "group_size": 8, "reshape_dims": [16]}
    program, _ = collective("all-reduce", 10**6, device_list={"iota": iota})
    assert time_of(program, 16, hosts=2).collective_us == pytest.approx(within)


def test_alone_there_is_nothing_to_wait_for():
    program, _ = collective("all-reduce", 10**6)
    assert time_of(program, 1).collective_us == 0
    singles = [{"replica_ids": [n]} for n in range(8)]
    program, _ = collective("all-reduce", 10**6, replica_groups=singles)
    assert time_of(program, 8).collective_us == 0


def test_latency_and_efficiency_of_links():
    card = dataclasses.replace(CARD, collective_latency_us=7.0, link_efficiency=0.5)
    program, _ = collective("reduce-scatter", 10**6)
    assert time_of(program, 2, card=card).collective_us == pytest.approx(7 + 2 * 20)


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


def test_loops_in_loops_multiply():
    program = Program()
    inner, outer = program.computation("inner"), program.computation("outer")
    inner.kernel(7)
    state = outer.add("parameter", ())
    for code, called, trips in ((outer, inner, 5), (program.entry, outer, 3)):
        config = {"known_trip_count": {"n": str(trips)}}
        code.add("while", (), state, calls=[called, called], config=config)
    # The condition is timed as often as the body: here it is the body itself.
    assert time_of(program).compute_us == pytest.approx((2 * 5) * (2 * 3) * 7, rel=1e-3)


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
