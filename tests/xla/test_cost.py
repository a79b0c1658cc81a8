"""What one instruction does: FLOPs and bytes, against known answers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import revremat as rr
from revremat.xla import Module, estimate
from revremat.xla.hlo._schema import HloProto, ModuleProto
from revremat.xla.step_time._cost import Cost, cost_of
from revremat.xla.step_time._roofline import roofline_us
from tests.xla.modules import CARD, Program, machine
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
